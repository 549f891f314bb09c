"""Every way in which a crew can be started."""

# With and without the framework's types.
# mypy: disallow-subclassing-any=False, disallow-untyped-decorators=False, warn-unused-ignores=False

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from crewai_scripts import Crew

__all__ = ["ONE", "WAYS"]


def _stream(crew: Crew) -> None:
    crew.stream = True
    for _ in crew.kickoff():
        pass


async def _read(crew: Crew, kickoff: str) -> None:
    crew.stream = True
    async for _ in await getattr(crew, kickoff)():
        pass


ONE: list[dict[str, Any]] = [{"order": "1"}]
WAYS: dict[str, Callable[[Crew], Any]] = {
    "kickoff": lambda crew: crew.kickoff(),
    "kickoff_async": lambda crew: asyncio.run(crew.kickoff_async()),
    "akickoff": lambda crew: asyncio.run(crew.akickoff()),
    "kickoff_for_each": lambda crew: crew.kickoff_for_each(ONE),
    "kickoff_for_each_async": lambda crew: asyncio.run(crew.kickoff_for_each_async(ONE)),
    "akickoff_for_each": lambda crew: asyncio.run(crew.akickoff_for_each(ONE)),
    "stream": _stream,
    "stream of kickoff_async": lambda crew: asyncio.run(_read(crew, "kickoff_async")),
    "stream of akickoff": lambda crew: asyncio.run(_read(crew, "akickoff")),
}
