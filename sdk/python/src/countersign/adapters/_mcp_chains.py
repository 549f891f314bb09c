"""The chains of a server's sessions: opened by the first call, rolled over before they reach their
limits, and completed when the session ends."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from countersign._chain import Chain
from countersign._client import transport_of
from countersign._decision import PolicyDecision
from countersign._fork import in_child, reset_in_child
from countersign._steps import until
from countersign.adapters._outcomes import Ending, Outcomes
from countersign.adapters._threads import blocking

__all__ = ["ChainSource", "GivenChain", "OpenChain", "SessionChain", "close_at_exit"]

logger = logging.getLogger("countersign")

_LEFT = Ending("unknown", "the session ended before it did")
_TIMEOUT = 10.0  # seconds
_ROLLOVER_SHARE = 0.9
"""Of a limit: what begins before it is reached must also end before it."""
_LIMITS = {"max_events": 10_000, "max_duration_seconds": 86_400, "max_tokens": 10_000_000}
"""At which an organization that has set nothing pauses a chain. A chain's answer says its own."""


@dataclass(eq=False)
class OpenChain:
    """One chain of a session, with the calls that are under way in it."""

    chain: Chain
    began: float  # monotonic seconds
    outcomes: Outcomes = field(init=False)
    actions: int = 0
    tokens: int = 0
    users: int = 0
    retired: bool = False
    """A successor has taken over: it is completed when its last call ends."""

    def __post_init__(self) -> None:
        self.outcomes = Outcomes(self.chain)

    def learn(self, decision: PolicyDecision) -> None:
        """Take note of where the chain stands."""
        self.actions = max(self.actions, decision.sequence or 0)
        total = (decision.cumulative_metrics or {}).get("total_tokens")
        if isinstance(total, int):
            self.tokens = max(self.tokens, total)


class ChainSource(ABC):
    """Where calls are recorded."""

    @abstractmethod
    def held(self) -> AbstractAsyncContextManager[OpenChain]:
        """The chain of a call, which stays open for the length of the block."""


class GivenChain(ChainSource):
    """A chain that the program has opened, and will complete."""

    def __init__(self, chain: Chain) -> None:
        self._part = OpenChain(chain, 0.0)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[OpenChain]:
        yield self._part


class SessionChain(ChainSource):
    """The chains of one session, one after the other. Safe to use from several event loops."""

    def __init__(
        self,
        name: str,
        metadata: Mapping[str, Any] | None,
        limits: Mapping[str, float],
        completed: Callable[[Chain], None],
    ) -> None:
        self._name = name
        self._metadata = dict(metadata or {})
        self._given = limits
        self._completed = completed
        self._lock = threading.Lock()  # guards what follows, and the counters of the parts
        self._part: OpenChain | None = None
        self._opening: Future[None] | None = None
        self._parts: set[OpenChain] = set()
        self._ended = False
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may have held, and do not wait for
        the chain that it opened."""
        self._lock = threading.Lock()
        self._opening = None

    @asynccontextmanager
    async def held(self) -> AsyncIterator[OpenChain]:
        part = await self._take()
        try:
            yield part
        finally:
            with self._lock:
                part.users -= 1
                is_over = part.retired and not part.users
            if is_over:
                with anyio.move_on_after(_TIMEOUT, shield=True):
                    await self._complete(part)

    async def aclose(self) -> None:
        """The session has ended."""
        for part in self._end():
            await self._complete(part)

    def close(self) -> None:
        """:meth:`aclose` for code without an event loop."""
        for part in self._end():
            try:
                for decision in part.outcomes.open_decisions():
                    part.outcomes.end(decision, _LEFT)
                blocking(part.chain.__exit__, None, None, None)
            except Exception as fault:
                _log(fault)

    # -- inside --------------------------------------------------------------------------

    async def _take(self) -> OpenChain:
        while True:
            with self._lock:
                if self._ended:
                    raise RuntimeError("the session of this call has ended")
                part = self._part
                if part is not None and not self._needs_rollover(part):
                    part.users += 1
                    part.actions += 1
                    return part
                ours = self._opening is None
                opening = self._opening = self._opening or Future()
            if ours:
                await self._open(part, opening)
            else:
                await until(opening)

    async def _open(self, before: OpenChain | None, opening: Future[None]) -> None:
        try:
            part = await self._opened(before)
        except BaseException:
            with self._lock:
                self._opening = None
            opening.set_result(None)  # whoever waits tries for itself
            raise
        with self._lock:
            self._part, self._opening = part, None
            self._parts.add(part)
            is_late = self._ended
            idle = before is not None and not before.users
            if before is not None:
                before.retired = True
        opening.set_result(None)
        if before is not None and idle:
            await self._complete(before)
        if is_late:
            await self._complete(part)

    async def _opened(self, before: OpenChain | None) -> OpenChain:
        metadata = dict(self._metadata)
        if before is not None:
            metadata["predecessor_chain_id"] = before.chain.id
        chain = _UnscopedChain(self._name, metadata=metadata or None)
        await chain.__aenter__()
        return OpenChain(chain, transport_of(chain._config).clock.monotonic())

    def _needs_rollover(self, part: OpenChain) -> bool:
        """Whether the chain is about to reach a limit. One that was paused is not left: only an
        admin lets it go on."""
        session = part.chain._session
        if session is None or session.paused:
            return False
        told = session.chain.get("effective_limits")
        told = told.get("auto_pause") if isinstance(told, Mapping) else None
        limits = {**_LIMITS, **(told if isinstance(told, Mapping) else {}), **self._given}
        longest = float(limits["max_duration_seconds"])
        if (own := session.config.chain_timeout_seconds) is not None:
            longest = min(longest, own)
        age = session.transport.clock.monotonic() - part.began
        return (
            age >= longest * _ROLLOVER_SHARE
            or part.actions >= max(1, int(limits["max_events"] * _ROLLOVER_SHARE))
            or part.tokens >= limits["max_tokens"] * _ROLLOVER_SHARE
        )

    def _end(self) -> list[OpenChain]:
        with self._lock:
            self._ended = True
            self._part = None
            parts, self._parts = list(self._parts), set()
        return parts

    async def _complete(self, part: OpenChain) -> None:
        with self._lock:
            self._parts.discard(part)
        if part.chain._closed:
            return
        try:
            for decision in part.outcomes.open_decisions():
                await part.outcomes.end_async(decision, _LEFT)
            await part.chain.__aexit__(None, None, None)
        except Exception as fault:
            _log(fault)
        self._completed(part.chain)


class _UnscopedChain(Chain):
    # It is opened by one task and used by others: it is the place of governed calls while a tool
    # is carried out.
    _is_scope = False


def _log(fault: Exception) -> None:
    logger.warning("countersign: the chain of a session was not completed (%s)", fault)


_OPEN: weakref.WeakSet[SessionChain] = weakref.WeakSet()


def close_at_exit(session: SessionChain) -> SessionChain:
    """For a session whose end nobody tells of: it ends with the process."""
    _OPEN.add(session)
    return session


@atexit.register
def _close_all() -> None:
    for session in list(_OPEN):
        session.close()


@in_child
def _after_fork() -> None:
    # The parent still serves them.
    _OPEN.clear()
