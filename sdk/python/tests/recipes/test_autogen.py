"""The recipe for AutoGen."""

from __future__ import annotations

import json
from typing import Any

from autogen_core import FunctionCall
from autogen_core.models import ChatCompletionClient, CreateResult, ModelInfo, RequestUsage

from recipes import ANSWER, cases

USAGE = RequestUsage(0, 0)


class Scripted(ChatCompletionClient):  # type: ignore[misc]
    def __init__(self, calls: list[tuple[str, Any]]) -> None:
        self._calls = list(calls)
        self.seen: list[Any] = []

    async def create(self, messages: Any, **_: Any) -> CreateResult:
        self.seen.append(list(messages))
        content: Any = ANSWER
        if self._calls:
            name, arguments = self._calls.pop(0)
            call = f"call-{len(self._calls)}"
            content = [FunctionCall(id=call, name=name, arguments=json.dumps(arguments))]
        reason = "stop" if content == ANSWER else "function_calls"
        return CreateResult(finish_reason=reason, content=content, usage=USAGE, cached=False)

    def create_stream(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    def actual_usage(self) -> RequestUsage:
        return USAGE

    total_usage = actual_usage

    def count_tokens(self, *_: Any, **__: Any) -> int:
        return 0

    remaining_tokens = count_tokens

    @property
    def model_info(self) -> ModelInfo:
        return ModelInfo(
            vision=False,
            function_calling=True,
            json_output=False,
            family="unknown",
            structured_output=False,
        )

    capabilities = model_info


globals().update(cases("AutoGen", Scripted))
