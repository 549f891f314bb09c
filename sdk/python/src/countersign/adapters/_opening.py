"""Opening a run's chain, and ending the run with its receipt or its denial."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

from countersign._action import new_key
from countersign._chain import Chain
from countersign._session import Session
from countersign.adapters._run import Run, current_run
from countersign.adapters._threads import blocking
from countersign.exceptions import APIError

__all__ = [
    "RunChain",
    "governed_run",
    "governed_run_async",
    "last_chain",
    "opened_run",
    "opened_run_async",
]


@contextmanager
def governed_run(chain: Callable[[], Chain], **options: Any) -> Iterator[Run]:
    """The run that the block is part of: the current one if there is one, which its own
    outermost call ends; otherwise a new one on a new chain, completed at the end."""
    outer = current_run()
    if outer is not None:
        yield outer
        outer.check()
        return
    with opened_run(chain(), **options) as run, run.active():
        yield run


@asynccontextmanager
async def governed_run_async(chain: Callable[[], Chain], **options: Any) -> AsyncIterator[Run]:
    """:func:`governed_run` on the running event loop."""
    outer = current_run()
    if outer is not None:
        yield outer
        outer.check()
        return
    async with opened_run_async(chain(), **options) as run:
        with run.active():
            yield run


@contextmanager
def opened_run(chain: Chain, **options: Any) -> Iterator[Run]:
    """A new run on a chain that is opened here and completed at the end. It is not made the
    current one: see :meth:`Run.active`."""
    with _held(chain) as chain:
        try:
            blocking(chain.__enter__)
        except APIError as error:
            chain = _another(chain, error)
            blocking(chain.__enter__)
        if _was_sealed(chain):
            chain = _another(chain)
            blocking(chain.__enter__)
        run = Run(chain, **options)
        _LAST.set(chain)
        try:
            with run._ending():
                yield run
        except BaseException as error:
            _leave(run, error)
            raise
        _leave(run, None)


@asynccontextmanager
async def opened_run_async(chain: Chain, **options: Any) -> AsyncIterator[Run]:
    """:func:`opened_run` on the running event loop."""
    with _held(chain) as chain:
        try:
            await chain.__aenter__()
        except APIError as error:
            chain = _another(chain, error)
            await chain.__aenter__()
        if _was_sealed(chain):
            chain = _another(chain)
            await chain.__aenter__()
        run = Run(chain, **options)
        _LAST.set(chain)
        try:
            with run._ending():
                yield run
        except BaseException as error:
            await _leave_async(run, error)
            raise
        await _leave_async(run, None)


@contextmanager
def _held(chain: Chain) -> Iterator[Chain]:
    """The chain, or another one if a run of this process is in it just now: the first of two to
    end would seal it under the other."""
    key = getattr(chain, "key", None)
    with _LOCK:
        if key in _IN_USE:
            chain, key = _another(chain), None
        if key is not None:
            _IN_USE.add(key)
    try:
        yield chain
    finally:
        with _LOCK:
            _IN_USE.discard(key)


_IN_USE: set[str | None] = set()
_LOCK = threading.Lock()


def _leave(run: Run, error: BaseException | None) -> None:
    if _stays_open(run):
        blocking(run.chain.park)  # type: ignore[attr-defined]
        return
    run.outcomes.leave()
    blocking(run.chain.__exit__, *_reason(run, error))


async def _leave_async(run: Run, error: BaseException | None) -> None:
    if _stays_open(run):
        await run.chain.park_async()  # type: ignore[attr-defined]
        return
    try:
        await run.outcomes.leave_async()
    finally:
        await run.chain.__aexit__(*_reason(run, error))


def _stays_open(run: Run) -> bool:
    return run.paused and run.denial is None and isinstance(run.chain, RunChain)


def _reason(run: Run, error: BaseException | None) -> tuple[Any, Any, Any]:
    if error is None or (run.denial is None and isinstance(error, run.benign)):
        return None, None, None
    return type(error), error, error.__traceback__


def _was_sealed(chain: Chain) -> bool:
    return isinstance(chain, RunChain) and chain.sealed


def _another(chain: Chain, error: APIError | None = None) -> Chain:
    """A new chain in place of one that cannot be continued: it was completed, or was opened
    with other settings."""
    if isinstance(chain, RunChain) and (error is None or error.code == "idempotency_conflict"):
        return chain.renewed()
    raise error or RuntimeError("the chain cannot be continued")


_LAST: ContextVar[Chain | None] = ContextVar("countersign_last_chain", default=None)


def last_chain() -> Chain | None:
    """The chain of the governed run that this thread or task started last. After the run its
    ``receipt`` is there."""
    return _LAST.get()


class RunChain(Chain):
    """A chain that can be left open and continued, in another process too: opening it again
    under the same key, with the same name and metadata, gives the same chain."""

    # The run is the place of governed calls: the code between the items of a stream is not part
    # of it, and the chain is open there too.
    _is_place = False

    def __init__(
        self, name: str, *, metadata: Mapping[str, Any] | None = None, key: str | None = None
    ) -> None:
        super().__init__(name, metadata=metadata)
        self.key = key or new_key()
        self._metadata = metadata

    def renewed(self) -> RunChain:
        """Another chain with the same name and metadata."""
        return RunChain(self.name, metadata=self._metadata)

    def _begin(self) -> Session:
        session = super()._begin()
        session._opening_key = self.key
        return session

    @property
    def sealed(self) -> bool:
        """Whether the chain that was opened had been completed before."""
        chain = self._session.chain if self._session else {}
        return chain.get("status") in ("completed", "failed")

    def park(self) -> None:
        """Deliver what was decided here, and leave the chain open."""
        session = self._open_session()
        self._left = True
        session.transport.run(session.settle())

    async def park_async(self) -> None:
        """:meth:`park` on the running event loop."""
        session = self._open_session()
        self._left = True
        await session.transport.run_async(session.settle())
