"""The recipe for LlamaIndex."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection

from recipes import ANSWER, cases

# The framework's own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Scripted(FunctionCallingLLM):  # type: ignore[misc]
    calls: list[Any] = []  # noqa: RUF012
    seen: list[Any] = []  # noqa: RUF012

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True, model_name="scripted")

    def _answer(self, messages: Any) -> ChatResponse:
        self.seen.append(list(messages))
        chosen = []
        if self.calls:
            name, arguments = self.calls.pop(0)
            call = {"tool_id": f"call-{len(self.calls)}", "tool_name": name}
            chosen = [ToolSelection(tool_kwargs=arguments, **call)]
        extra = {"chosen": chosen}
        message = ChatMessage(role="assistant", content=ANSWER, additional_kwargs=extra)
        return ChatResponse(message=message, raw={})

    async def astream_chat_with_tools(
        self, tools: Any, user_msg: Any = None, chat_history: Any = None, **_: Any
    ) -> AsyncIterator[ChatResponse]:
        answer = self._answer(chat_history or [])

        async def stream() -> AsyncIterator[ChatResponse]:
            yield answer

        return stream()

    def get_tool_calls_from_response(self, response: Any, **_: Any) -> Any:
        return response.message.additional_kwargs.get("chosen", [])

    def _prepare_chat_with_tools(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    chat = complete = stream_chat = stream_complete = _prepare_chat_with_tools
    achat = acomplete = astream_chat = astream_complete = _prepare_chat_with_tools


globals().update(cases("LlamaIndex", lambda calls: Scripted(calls=calls, seen=[])))
