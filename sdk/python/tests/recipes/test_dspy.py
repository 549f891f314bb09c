"""The recipe for DSPy."""

from __future__ import annotations

from typing import Any

import pytest
from dspy.utils import DummyLM

from recipes import ANSWER, cases

# The framework's own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Scripted(DummyLM):  # type: ignore[misc]
    def __init__(self, calls: list[tuple[str, Any]]) -> None:
        steps = [
            {"next_thought": "", "next_tool_name": name, "next_tool_args": arguments}
            for name, arguments in [*calls, ("finish", {})]
        ]
        super().__init__([*steps, {"reasoning": "", "answer": ANSWER}])
        self.seen: list[Any] = []

    def forward(self, prompt: Any = None, messages: Any = None, **given: Any) -> Any:
        self.seen.append(messages)
        return super().forward(prompt, messages, **given)


globals().update(cases("DSPy", Scripted))
