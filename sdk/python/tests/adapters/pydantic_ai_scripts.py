"""Agents of Pydantic AI with a model that follows a script: no network, no key."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

__all__ = ["agent", "scripted", "tool"]


def scripted(*lines: Any) -> FunctionModel:
    """Says its lines in turn: a text, an error to raise, or pairs of a tool and its arguments."""

    def line_of(messages: list[Any]) -> Any:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        line = lines[turn] if turn < len(lines) else "done"
        if isinstance(line, Exception):
            raise line
        return line

    def say(messages: list[Any], info: Any) -> ModelResponse:
        line = line_of(messages)
        if isinstance(line, str):
            return ModelResponse(parts=[TextPart(line)])
        # Every call has the same id: what was decided goes by the call, not by its id.
        return ModelResponse(parts=[ToolCallPart(name, given, "same") for name, given in line])

    async def stream(messages: list[Any], info: Any) -> AsyncIterator[Any]:
        line = line_of(messages)
        if isinstance(line, str):
            yield line
            return
        for i, (name, given) in enumerate(line):
            yield {i: DeltaToolCall(name, json.dumps(given), tool_call_id=f"same-{i}")}

    return FunctionModel(say, stream_function=stream, model_name="scripted-1")


def tool(name: str, body: Callable[[], Any], **options: Any) -> Tool[Any]:
    def run(n: int = 0) -> str:
        """Does something."""
        return str(body())

    return Tool(run, name=name, **options)


def agent(name: str, *lines: Any, tools: Any = (), **options: Any) -> Agent[Any, Any]:
    return Agent(scripted(*lines), name=name, tools=list(tools), **options)
