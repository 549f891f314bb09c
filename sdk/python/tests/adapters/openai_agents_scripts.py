"""Agents of the OpenAI Agents SDK with a model that follows a script: no network, no key."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from agents import Agent, FunctionTool, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.usage import Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from openai.types.responses.response_usage import (
    InputTokensDetails,
    OutputTokensDetails,
    ResponseUsage,
)

__all__ = ["ScriptedModel", "agent", "tool"]

set_tracing_disabled(True)
_USAGE = ResponseUsage(
    input_tokens=10,
    output_tokens=2,
    total_tokens=12,
    input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
    output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
)


class ScriptedModel(Model):
    """Says its lines in turn: a text, an error to raise, or pairs of a tool and its arguments."""

    model = "scripted-1"

    def __init__(self, *lines: Any) -> None:
        self.lines = list(lines)
        self.heard: list[Any] = []

    def _say(self, heard: Any) -> list[Any]:
        self.heard.append(heard)
        line = self.lines.pop(0) if self.lines else "done"
        if isinstance(line, Exception):
            raise line
        if isinstance(line, str):
            text = ResponseOutputText(text=line, type="output_text", annotations=[])
            return [
                ResponseOutputMessage(
                    id="m", type="message", role="assistant", status="completed", content=[text]
                )
            ]
        return [
            ResponseFunctionToolCall(
                id=f"f-{len(self.heard)}-{i}",
                call_id=f"c-{id(self)}-{len(self.heard)}-{i}",
                type="function_call",
                name=name,
                arguments=json.dumps(arguments),
            )
            for i, (name, arguments) in enumerate(line)
        ]

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> Any:  # noqa: A002
        output = self._say(input)
        usage = Usage(requests=1, input_tokens=10, output_tokens=2, total_tokens=12)
        return ModelResponse(output=output, usage=usage, response_id=None)

    async def stream_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002
        *_: Any,
        **__: Any,
    ) -> Any:
        answer = Response(
            id="r",
            created_at=0,
            model="scripted-1",
            object="response",
            output=self._say(input),
            tool_choice="none",
            tools=[],
            parallel_tool_calls=False,
            usage=_USAGE,
        )
        yield ResponseCompletedEvent(type="response.completed", sequence_number=0, response=answer)


def tool(name: str, body: Callable[[], Any], **options: Any) -> FunctionTool:
    def run(n: int = 0) -> str:
        """Does something."""
        return str(body())

    return function_tool(run, name_override=name, strict_mode=False, **options)


def agent(name: str, *lines: Any, tools: Any = (), **options: Any) -> Agent[Any]:
    return Agent(name, model=ScriptedModel(*lines), tools=list(tools), **options)
