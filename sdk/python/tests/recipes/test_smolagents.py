"""The recipe for smolagents."""

from __future__ import annotations

from typing import Any

import pytest
from smolagents import ChatMessage, MessageRole, Model
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction

from recipes import ANSWER, cases

# It warns that other decorators are lost where it sends a tool's source elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore:.*decorators other than @tool:UserWarning")


class Scripted(Model):  # type: ignore[misc]
    def __init__(self, calls: list[tuple[str, Any]]) -> None:
        super().__init__()
        self._calls = [*calls, ("final_answer", {"answer": ANSWER})]
        self.seen: list[Any] = []

    def generate(self, messages: Any, **_: Any) -> Any:
        self.seen.append(messages)
        name, arguments = self._calls.pop(0)
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        call = ChatMessageToolCall(
            id=f"call-{len(self._calls)}", type="function", function=function
        )
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[call])


globals().update(cases("smolagents", Scripted))
