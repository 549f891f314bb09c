"""Runs of the OpenAI Agents SDK, for what is measured of many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agents import Runner, function_tool
from bodies import Around, unchanged
from openai_agents_scripts import agent

from countersign.adapters.openai_agents import GovernedRunner

__all__ = ["prepare"]


async def _body(n: int = 0) -> str:
    return "done"


def prepare(
    tools: Sequence[str], chain_name: str | None, around: Around = unchanged
) -> Callable[[], Awaitable[Any]]:
    """An agent that calls the tools in turn; without a chain's name, ungoverned."""
    bodies = [function_tool(around(_body), name_override=name) for name in dict.fromkeys(tools)]
    lines = [[(name, {"n": n})] for n, name in enumerate(tools)]
    clerk = agent("clerk", *lines, tools=bodies)
    runner = Runner if chain_name is None else GovernedRunner(chain_name)
    return lambda: runner.run(clerk, "go", max_turns=len(tools) + 1)
