"""Opening a run's chain, and ending the run with its receipt or its denial."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from countersign._action import new_key
from countersign._chain import Chain
from countersign._clients import Unreachable
from countersign._collector import in_garbage_collection
from countersign._fork import in_child
from countersign._session import Session
from countersign._steps import Steps
from countersign.adapters._run import Run, current_run
from countersign.adapters._threads import blocking, later
from countersign.exceptions import APIError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "RunChain",
    "SavedChain",
    "governed_run",
    "governed_run_async",
    "last_chain",
    "opened_run",
]


logger = logging.getLogger("countersign")


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
    async with opened_run(chain(), **options) as run:
        with run.active():
            yield run


class opened_run:  # noqa: N801 - it is called like a function
    """A new run on a chain that is opened here and completed at the end, on the running event loop
    with ``async with``. It is not made the current one: see :meth:`Run.active`.

    It is no generator, which the garbage collector and the event loop would end apart from the one
    that it is used in.
    """

    def __init__(self, chain: Chain, **options: Any) -> None:
        self._chain = chain
        self._options = options
        self._reserved: str | None = None
        self._run: Run

    def __enter__(self) -> Run:
        self._reserve()
        try:
            try:
                blocking(self._chain.__enter__)
            except APIError as error:
                self._chain = _replacement(self._chain, error)
                blocking(self._chain.__enter__)
            if _was_sealed(self._chain):
                self._chain = _replacement(self._chain)
                blocking(self._chain.__enter__)
            return self._begin()
        except BaseException:
            _IN_USE.discard(self._reserved)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        final = self._run._final_error(error)
        if in_garbage_collection():
            later(partial(self._leave, final))
        else:
            self._leave(final)
        if final is not None and final is not error:
            raise final from None

    async def __aenter__(self) -> Run:
        self._reserve()
        try:
            try:
                await self._chain.__aenter__()
            except APIError as error:
                self._chain = _replacement(self._chain, error)
                await self._chain.__aenter__()
            if _was_sealed(self._chain):
                self._chain = _replacement(self._chain)
                await self._chain.__aenter__()
            return self._begin()
        except BaseException:
            _IN_USE.discard(self._reserved)
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        final = self._run._final_error(error)
        try:
            await _leave_async(self._run, final)
        finally:
            _IN_USE.discard(self._reserved)
        if final is not None and final is not error:
            raise final from None

    def _reserve(self) -> None:
        """Take another chain if a run of this process is in this one just now: the first of two to
        end would seal it under the other."""
        key = getattr(self._chain, "key", None)
        with _LOCK:
            if key in _IN_USE:
                self._chain = _replacement(self._chain)
            elif key is not None:
                _IN_USE.add(key)
                self._reserved = key

    def _begin(self) -> Run:
        self._run = Run(self._chain, **self._options)
        LAST_CHAIN.set(self._chain)
        return self._run

    def _leave(self, error: BaseException | None) -> None:
        try:
            _leave(self._run, error)
        finally:
            _IN_USE.discard(self._reserved)


_IN_USE: set[str | None] = set()
_LOCK = threading.Lock()


@in_child
def _after_fork() -> None:
    # Another thread of the parent may have held it; its runs are not this process's.
    global _LOCK
    _LOCK = threading.Lock()
    _IN_USE.clear()


def _leave(run: Run, error: BaseException | None) -> None:
    if run.find_pause is not None:
        with suppress(Exception):
            run.paused = run.find_pause()
    if not _stays_open(run):
        blocking(run.chain.__exit__, *_reason(run, error))
        return
    try:
        run.outcomes.pause()
    finally:
        blocking(run.chain.leave_open, error)  # type: ignore[attr-defined]


async def _leave_async(run: Run, error: BaseException | None) -> None:
    if not _stays_open(run):
        await run.chain.__aexit__(*_reason(run, error))
        return
    try:
        await run.outcomes.pause_async()
    finally:
        await run.chain.leave_open_async(error)  # type: ignore[attr-defined]


def _stays_open(run: Run) -> bool:
    return run.paused and run.denial is None and isinstance(run.chain, RunChain)


def _reason(run: Run, error: BaseException | None) -> tuple[Any, Any, Any]:
    if error is None or (run.denial is None and isinstance(error, run.benign)):
        return None, None, None
    return type(error), error, error.__traceback__


def _was_sealed(chain: Chain) -> bool:
    return isinstance(chain, RunChain) and chain.sealed


def _replacement(chain: Chain, error: APIError | None = None) -> Chain:
    """A new chain in place of one that cannot be continued: it was completed, or was opened
    with other settings."""
    if isinstance(chain, RunChain) and (error is None or error.code == "idempotency_conflict"):
        return chain.replacement()
    raise error or RuntimeError("the chain cannot be continued")


LAST_CHAIN: ContextVar[Chain | None] = ContextVar("countersign_last_chain", default=None)


def last_chain() -> Chain | None:
    """The chain of the governed run that this thread or task started last. After the run its
    ``receipt`` is there."""
    return LAST_CHAIN.get()


@dataclass(frozen=True)
class SavedChain:
    """The chain of a run that was interrupted, as it was opened then."""

    key: str
    chain_id: str | None = None
    opening: Mapping[str, Any] | None = None
    """What was sent to open it. Sent again, it finds the chain, whatever has changed since: the
    settings, the metadata, the key's secret."""
    branch: str = ""
    """Tells the steps of a run that went back to an earlier one from those that it does again."""


class RunChain(Chain):
    """A chain that can be left open and continued, in another process too: opening it again
    under the same key, in the same words, gives the same chain."""

    # The run is the place of governed calls: the code between the items of a stream is not part
    # of it, and the chain is open there too.
    _is_scope = False

    def __init__(
        self,
        name: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        earlier: SavedChain | None = None,
    ) -> None:
        super().__init__(name, metadata=metadata)
        self._earlier = earlier
        self.key = earlier.key if earlier else new_key()
        self.branch = earlier.branch if earlier else ""
        self.recorded_before = 0
        """How many actions it had when it was opened here."""
        self._metadata = metadata
        if earlier is not None and earlier.opening is not None:
            self._opening = dict(earlier.opening)

    @property
    def saved(self) -> SavedChain:
        """What a later run needs to go on in this chain."""
        return SavedChain(self.key, self.id, self._opening, self.branch)

    def replacement(self) -> RunChain:
        """Another chain with the same name and metadata."""
        return RunChain(self.name, metadata=self._metadata)

    def __enter__(self) -> Self:
        super().__enter__()
        session = self._open_session()
        session.transport.run(self._rejoin(session))
        return self

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        session = self._open_session()
        await session.transport.run_async(self._rejoin(session))
        return self

    def _start_session(self) -> Session:
        session = super()._start_session()
        session._opening_key = self.key
        session.keys_are_of_content = True
        return session

    def _rejoin(self, session: Session) -> Steps[None]:
        """Go on in the earlier chain although another API key opened it, if this one may: the
        service keeps the idempotency keys of each apart, and has opened a new chain."""
        wanted = self._earlier.chain_id if self._earlier else None
        opened = session.id
        if wanted is not None and opened not in (None, wanted):
            path = f"/v1/chains/{quote(wanted, safe='')}"
            try:
                chain, sent = yield from session.transport.ask("GET", path)
            except (APIError, Unreachable):
                logger.warning(
                    "countersign: a run continues in a new chain, because this API key may not use "
                    "the one that it began in: resume it with the key that opened that chain; a "
                    "rotated secret of that key will do"
                )
                return
            session._learn_chain(chain, sent)
            superseded = {"type": "superseded", "message": "the run went on in its first chain"}
            done = {"outcome": "failed", "error": superseded}
            try:
                yield from session.transport.call("POST", session.path("/complete", opened), done)
            except (APIError, Unreachable) as fault:
                # Nothing is recorded in it: the service seals it as abandoned.
                logger.warning("countersign: a chain without actions stays open: %s", fault)
        if self._earlier is not None:
            self.recorded_before = int(session.chain.get("total_actions") or 0)

    @property
    def sealed(self) -> bool:
        """Whether the chain that was opened had been completed before."""
        chain = self._session.chain if self._session else {}
        return chain.get("status") in ("completed", "failed")

    def leave_open(self, error: BaseException | None) -> None:
        """Deliver what was decided here, and leave the chain open. ``error`` is what the run was
        left with."""
        session = self._leave_scope()
        session.transport.run(self._leave(session, error, stays_open=True))

    async def leave_open_async(self, error: BaseException | None) -> None:
        """:meth:`leave_open` on the running event loop."""
        session = self._leave_scope()
        await session.transport.run_async(self._leave(session, error, stays_open=True))
