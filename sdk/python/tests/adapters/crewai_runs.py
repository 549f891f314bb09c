"""Runs of CrewAI, for what is measured of many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bodies import Around, unchanged
from crewai_scripts import Marks, crew_of

from countersign.adapters.crewai import govern

__all__ = ["prepare", "prepare_sync"]


def _crew(tools: Sequence[str], chain_name: str | None, around: Around) -> Any:
    marks = Marks()
    marks.leave = around(marks.leave)  # type: ignore[method-assign]
    # Other arguments each time: CrewAI answers a call that it has seen from its cache.
    made = crew_of(marks, *([(name, {"amount": n})] for n, name in enumerate(tools)), "done")
    made.agents[0].max_iter = len(tools) + 5
    return made if chain_name is None else govern(made, chain_name)


def prepare(
    tools: Sequence[str], chain_name: str | None, around: Around = unchanged
) -> Callable[[], Awaitable[Any]]:
    """An agent that calls the tools in turn; without a chain's name, ungoverned."""
    crew = _crew(tools, chain_name, around)
    return lambda: crew.akickoff()


def prepare_sync(
    tools: Sequence[str], chain_name: str | None, around: Around = unchanged
) -> Callable[[], Any]:
    crew = _crew(tools, chain_name, around)
    return lambda: crew.kickoff()
