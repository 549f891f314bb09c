"""Runs of Pydantic AI, for what is measured of many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bodies import Around, unchanged
from pydantic_ai import Tool, UsageLimits
from pydantic_ai_scripts import agent

from countersign.adapters.pydantic_ai import govern

__all__ = ["prepare"]


async def _body(n: int = 0) -> str:
    return "done"


def prepare(
    tools: Sequence[str], chain_name: str | None, around: Around = unchanged
) -> Callable[[], Awaitable[Any]]:
    """An agent that calls the tools in turn; without a chain's name, ungoverned."""
    bodies = [Tool(around(_body), name=name) for name in dict.fromkeys(tools)]
    lines = [[(name, {"n": n})] for n, name in enumerate(tools)]
    made: Any = agent("clerk", *lines, tools=bodies)
    if chain_name is not None:
        made = govern(made, chain_name)
    return lambda: made.run("go", usage_limits=UsageLimits(request_limit=None))
