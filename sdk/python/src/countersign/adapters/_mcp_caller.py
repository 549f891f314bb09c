"""Who made a call to an MCP server: its session, whether it is still there, and how it is told that
its call waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from countersign._progress import ApprovalProgress

__all__ = ["Caller", "CallerGoneError", "SessionLifetime"]

logger = logging.getLogger("countersign")

T = TypeVar("T")

_POLL_SECONDS = 1.0  # seconds between two looks at whether a caller is still there


class CallerGoneError(Exception):
    """The caller went away while its call waited, so nobody receives this."""


class SessionLifetime:
    """The lifetime of a session of a server, or of its serving calls that have no session."""

    def __init__(self) -> None:
        self._ended: list[Callable[[], Awaitable[None]]] = []

    def at_end(self, callback: Callable[[], Awaitable[None]]) -> None:
        self._ended.append(callback)

    async def end(self) -> None:
        while self._ended:
            await self._ended.pop()()


class Caller:
    """The sender of one request."""

    def __init__(
        self,
        scope: SessionLifetime | None,
        report: Callable[[float, str], Awaitable[None]] | None,
        is_gone: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        self.scope = scope
        self._report = report
        self._is_gone = is_gone
        self._last = -1.0
        self._sending: set[asyncio.Task[None]] = set()

    def tell(self, progress: ApprovalProgress) -> None:
        """Say by the protocol that the call waits, where the caller wants to know."""
        if self._report is None:
            return
        waited = progress.waited_seconds
        if progress.waiting:
            text = f"Waiting for a person to decide {progress.action} for {waited:.0f} s"
        else:
            text = f"{progress.status.replace('_', ' ').capitalize()} after {waited:.0f} s"
        if progress.console_url and progress.waiting:
            text = f"{text}: {progress.console_url}"
        self._last = max(round(waited, 3), self._last + 0.001)  # it must increase
        task = asyncio.get_running_loop().create_task(self._send(self._last, text))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, value: float, text: str) -> None:
        assert self._report is not None
        try:
            await self._report(value, text)
        except Exception as fault:
            logger.debug("countersign: progress was not reported (%s)", type(fault).__name__)

    async def while_connected(self, work: Awaitable[T]) -> T:
        """What the work returns. Raises and cancels it if the caller goes away meanwhile."""
        if self._is_gone is None:
            return await work
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait((task,), timeout=_POLL_SECONDS))[0]:
                await self.check()
        finally:
            if not task.done():
                task.cancel()
                with anyio.CancelScope(shield=True):
                    await asyncio.wait((task,))
        return task.result()

    async def check(self) -> None:
        """Raise if the caller went away."""
        if self._is_gone is not None and await self._is_gone():
            raise CallerGoneError("the caller went away while its call waited")
