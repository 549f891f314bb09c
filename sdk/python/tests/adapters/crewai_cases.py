"""CrewAI in the matrix. Run as a program, it is the process that is killed."""

# With and without the framework's types.
# mypy: disallow-untyped-decorators=False, warn-unused-ignores=False

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crewai_scripts import Crew, ScriptedModel, agent, task, tool
from crewai_ways import WAYS
from matrix import Framework, Work, replay

from countersign.adapters.crewai import govern

__all__ = ["FRAMEWORK"]


def _tool(work: Work, name: str) -> Any:
    @tool(name)
    def body(amount: int = 0) -> str:
        """Does its work."""
        return work.run(name)

    return body


def governed_crew(work: Work, chain_name: str) -> Any:
    """A clerk that calls one tool after the other, natively or in text."""

    def made(native: bool) -> Any:
        lines = [[(name, {"amount": 1})] for name in work.tools]
        tools = [_tool(work, name) for name in work.tools]
        clerk = agent("clerk", ScriptedModel(*lines, "done", native=native), tools)
        return govern(Crew(agents=[clerk], tasks=[task("first", clerk)]), chain_name)

    return made


def _style(way: Callable[[Any], Any], native: bool) -> Callable[[Any], Any]:
    return lambda made: way(made(native))


FRAMEWORK = Framework(
    "crewai",
    governed_crew,
    {
        f"{name}, {kind}": _style(way, kind == "native")
        for name, way in WAYS.items()
        for kind in ("native", "text")
    },
    quick=("kickoff, native", "akickoff, native", "kickoff_async, text", "stream, native"),
    program=__file__,
)

if __name__ == "__main__":
    replay(FRAMEWORK)
