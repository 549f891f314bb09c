"""Many async runs that wait for people at once."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from office import Office

__all__ = ["threads_of_waiting_runs"]

COUNT = 200 if os.environ.get("COUNTERSIGN_NIGHTLY") == "1" else 24
_AT_ONCE = 4  # an answer that comes too late is a refusal


def threads_of_waiting_runs(
    office: Office, prepare: Callable[[Sequence[str], str | None], Callable[[], Awaitable[Any]]]
) -> tuple[int, int]:
    """How many runs waited at once, and how many threads they held together. All are approved,
    and must end well."""

    async def main() -> int:
        # Whatever is started once in a process, and is no run's own, is started by this.
        await prepare(["plain"], "no wait")()
        await asyncio.to_thread(office.waiting, 0)
        before = threading.active_count()
        runs: list[asyncio.Task[Any]] = []
        while len(runs) < COUNT:
            runs += [
                asyncio.ensure_future(prepare(["asked_pay"], f"waits {len(runs) + n}")())
                for n in range(_AT_ONCE)
            ]
            await asyncio.to_thread(office.waiting, len(runs))
        assert not any(task.done() for task in runs)
        held = threading.active_count() - before
        for _ in range(0, COUNT, _AT_ONCE):
            waiting = (await asyncio.to_thread(office.waiting, 1))[:_AT_ONCE]
            left = sum(not task.done() for task in runs) - len(waiting)
            for approval in waiting:
                await asyncio.to_thread(office.approve, approval)
            while sum(not task.done() for task in runs) > left:
                await asyncio.sleep(0.01)
        await asyncio.gather(*runs)
        return held

    return COUNT, asyncio.run(main())
