"""The recipe for the Microsoft Agent Framework."""

from __future__ import annotations

from typing import Any

from agent_framework import (
    BaseChatClient,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
)

from recipes import ANSWER, cases


class Scripted(FunctionInvocationLayer, BaseChatClient):  # type: ignore[misc]
    def __init__(self, calls: list[tuple[str, Any]]) -> None:
        super().__init__()
        self._calls = list(calls)
        self.seen: list[Any] = []

    async def _inner_get_response(self, *, messages: Any, **_: Any) -> ChatResponse:
        self.seen += [content.to_dict() for message in messages for content in message.contents]
        content: Any = ANSWER
        if self._calls:
            name, arguments = self._calls.pop(0)
            call = f"call-{len(self._calls)}"
            content = Content.from_function_call(call, name, arguments=arguments)
        return ChatResponse(messages=[Message("assistant", [content])])


globals().update(cases("Microsoft Agent Framework", Scripted))
