"""Crews with models that follow a script: no network, no key."""

# With and without the framework's types.
# mypy: disallow-subclassing-any=False, disallow-untyped-decorators=False, warn-unused-ignores=False

from __future__ import annotations

import json
import os
import tempfile
import threading
import warnings
from typing import Any

# Before the import: CrewAI reports home, asks questions at the terminal, and keeps the outputs of
# tasks in the user's folder, where another version of it would not understand them.
os.environ.update(
    dict.fromkeys(("CREWAI_DISABLE_TELEMETRY", "CREWAI_TESTING", "OTEL_SDK_DISABLED"), "true")
)
_folder = tempfile.TemporaryDirectory(prefix="countersign-crewai-")
os.environ["XDG_DATA_HOME"] = _folder.name
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the import of a framework warns of is its own affair
    from crewai import Agent, BaseLLM, Crew, Process, Task
    from crewai.hooks.dispatch import InterceptionPoint, scoped_hooks
    from crewai.tools import BaseTool, tool

__all__ = [
    "MODEL",
    "BaseLLM",
    "BaseTool",
    "Crew",
    "InterceptionPoint",
    "Marks",
    "Process",
    "ScriptedModel",
    "agent",
    "crew_of",
    "hierarchy_of",
    "scoped_hooks",
    "task",
    "tool",
]

MODEL = "claude-sonnet-4-5"


class ScriptedModel(BaseLLM):
    """Says its lines in turn, whoever asks. A line that is a list calls tools, natively."""

    lines: list[Any]
    native: bool = True
    calls: list[str]

    def __init__(self, *lines: Any, native: bool = True) -> None:
        given: dict[str, Any] = {"lines": list(lines), "native": native, "calls": []}
        super().__init__(model=MODEL, **given)

    def supports_function_calling(self) -> bool:
        return self.native

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        return self._say(messages)

    async def acall(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        return self._say(messages)

    def _say(self, messages: Any) -> Any:
        self.calls.append(json.dumps(messages, default=str))
        self._track_token_usage_internal({"prompt_tokens": 100, "completion_tokens": 20})
        if not self.lines:
            return self._final("nothing more to say")
        line = self.lines.pop(0)
        if callable(line):
            line = line()
        if isinstance(line, str):
            return self._final(line)
        return self._native(line) if self.native else self._react(line)

    def _final(self, text: str) -> str:
        return f"Thought: I now can give a great answer\nFinal Answer: {text}"

    def _native(self, line: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        return [
            {
                "id": f"call_{len(self.calls)}_{i}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for i, (name, arguments) in enumerate(line)
        ]

    def _react(self, line: list[tuple[str, dict[str, Any]]]) -> str:
        name, arguments = line[0]
        return f"Thought: now\nAction: {name}\nAction Input: {json.dumps(arguments)}"


class Marks(list[str]):
    """What the bodies of tools have left behind."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def leave(self, mark: str) -> str:
        with self._lock:
            self.append(mark)
        return f"{mark} done"

    def tools(self) -> list[Any]:
        @tool("plain")
        def plain(amount: int = 0) -> str:
            """Does something harmless."""
            return self.leave(f"plain {amount}")

        @tool("asked_pay")
        def asked_pay(amount: int = 0) -> str:
            """Pays, once somebody agrees."""
            return self.leave(f"asked_pay {amount}")

        @tool("denied_wipe")
        def denied_wipe(amount: int = 0) -> str:
            """Wipes everything."""
            return self.leave(f"denied_wipe {amount}")

        return [plain, asked_pay, denied_wipe]


def agent(role: str, model: BaseLLM, tools: list[Any] | None = None, **settings: Any) -> Agent:
    return Agent(
        role=role,
        goal="work",
        backstory="a worker",
        llm=model,
        tools=tools or [],
        allow_delegation=settings.pop("allow_delegation", False),
        **settings,
    )


def task(name: str, worker: Agent | None, **settings: Any) -> Task:
    return Task(
        name=name, description=f"do {name}", expected_output="a word", agent=worker, **settings
    )


def crew_of(marks: Marks, *lines: Any, native: bool = True, **settings: Any) -> Crew:
    """One clerk with one task."""
    clerk = agent("clerk", ScriptedModel(*lines, native=native), marks.tools())
    return Crew(agents=[clerk], tasks=[task("first", clerk)], **settings)


def hierarchy_of(marks: Marks, worker_lines: list[Any]) -> Crew:
    """A manager that delegates to a clerk."""
    clerk = agent("clerk", ScriptedModel(*worker_lines), marks.tools())
    order = {"task": "do it", "context": "all of it", "coworker": "clerk"}
    manager = ScriptedModel([("delegate_work_to_coworker", order)], "delegated")
    return Crew(
        agents=[clerk],
        tasks=[task("first", None)],
        process=Process.hierarchical,
        manager_agent=agent("chief", manager, allow_delegation=True),
    )
