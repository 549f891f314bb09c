"""What event loops ask of code that blocks or must not be cut off."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["finish", "refuse_in_loop"]

T = TypeVar("T")


def refuse_in_loop(instead: str) -> None:
    """Refuse to block a thread that runs an event loop."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:
        return
    raise RuntimeError(f"an event loop is running in this thread, and would stop: use `{instead}`")


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Await to the end even if the caller is cancelled: otherwise a cancelled agent's chain
    would stay open for ever. The cancellation is delivered afterwards."""
    import asyncio

    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except BaseException:
            break  # the task's own error, raised below
    if cancelled is not None:
        if not task.cancelled() and task.exception() is not None:
            cancelled.__context__ = task.exception()
        raise cancelled
    return task.result()
