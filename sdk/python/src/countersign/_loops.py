"""Code that must not block an event loop, or must not be interrupted by cancellation."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

__all__ = ["in_event_loop", "next_of", "refuse_in_loop", "run_to_completion"]

T = TypeVar("T")


def in_event_loop() -> bool:
    """Whether an event loop is running in this thread. Does not import asyncio: a program that
    never imported it has no loop."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def refuse_in_loop(instead: str | None = None) -> None:
    """Refuse to block a thread that runs an event loop. Without ``instead``, the call has an async
    form of the same name."""
    if in_event_loop():
        use = f"`{instead}`" if instead else "the async form, whose name has no `_sync`"
        raise RuntimeError(
            f"this call would block the event loop that runs in this thread: use {use}"
        )


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Await the work to its end even if the caller is cancelled, and then deliver the cancellation.
    Otherwise the chain of a cancelled agent would stay open."""
    import asyncio

    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            # A cancel scope of anyio cancels again on each turn of the loop until it is obeyed.
            with _shield_from_scopes() if cancelled else nullcontext():
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


def _shield_from_scopes() -> AbstractContextManager[object]:
    """Hold off the cancel scopes of anyio. A program that never imported it has none, and neither
    has one whose other thread is importing it now."""
    scope = getattr(sys.modules.get("anyio"), "CancelScope", None)
    return nullcontext() if scope is None else scope(shield=True)


def next_of(items: AsyncIterator[T]) -> Awaitable[T]:
    """Return the next item of a stream that only the generator around it closes.

    An event loop closes the generators that the garbage collector has found, and at its end all of
    them. It would close both at once, and log that the inner one is running already. A generator
    learns who closes it at the first call.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=None, finalizer=lambda _: None)
    try:
        return items.__anext__()
    finally:
        sys.set_asyncgen_hooks(*hooks)
