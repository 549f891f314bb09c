"""Runs of the OpenAI Agents SDK, for what is measured of many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agents import Runner
from openai_agents_scripts import agent, tool

from countersign.adapters.openai_agents import GovernedRunner

__all__ = ["prepare"]


def prepare(tools: Sequence[str], chain_name: str | None) -> Callable[[], Awaitable[Any]]:
    """An agent that calls the tools in turn; without a chain's name, ungoverned."""
    bodies = [tool(name, lambda: "done") for name in dict.fromkeys(tools)]
    lines = [[(name, {"n": n})] for n, name in enumerate(tools)]
    clerk = agent("clerk", *lines, tools=bodies)
    runner = Runner if chain_name is None else GovernedRunner(chain_name)
    return lambda: runner.run(clerk, "go", max_turns=len(tools) + 1)
