"""A governed run: a chain, and a latch that no framework can open."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar, cast

from countersign._chain import Chain, ChainPlace
from countersign._client import Client
from countersign._config import ChainConfig
from countersign._place import Place, current_place, enter, inherit_in_threads, leave
from countersign._session import Session
from countersign.exceptions import ConfigurationError

__all__ = ["GovernedRun", "RunScope", "governed_run"]

F = TypeVar("F", bound="Callable[..., Any]")


class GovernedRun(ChainPlace):
    """What ``with governed_run(...) as run`` gives. Safe to use from several threads."""

    chain: Chain
    """The chain that the run records in. After the run its ``receipt`` is there."""

    def __init__(self, chain: Chain, agent: str | None, outer: ChainPlace | None = None) -> None:
        super().__init__(chain)
        self._agent = agent or (outer.agent if outer else chain.name)
        self._outer = outer
        self._denial: Exception | None = None
        self._over = False
        self._lock = threading.Lock()

    @property
    def denial(self) -> Exception | None:
        """What ended the run: the first denial, stop or failure to record. Nothing that is
        governed runs after it."""
        return self._denial

    @property
    def agent(self) -> str:
        return self._agent

    @property
    def session(self) -> Session | None:
        return None if self._over else super().session

    def check(self) -> None:
        if self._outer is not None:
            self._outer.check()
        if self._denial is not None:
            raise self._denial

    def deny(self, error: Exception) -> Exception:
        with self._lock:
            if self._denial is None:
                self._denial = error
        return error if self._outer is None else self._outer.deny(error)

    def _end(self, error: BaseException | None) -> BaseException | None:
        """What the run ends with: its denial, whatever has become of it on the way. What is no
        ``Exception``, such as a cancellation, goes on as it is."""
        if self._denial is None or (error is not None and not isinstance(error, Exception)):
            return error
        return self._denial


def governed_run(
    name: str = "governed_run",
    *,
    agent: str | None = None,
    external_chain_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    config: ChainConfig | Client | None = None,
) -> RunScope:
    """A run whose denials surface, whatever a framework makes of them.

    Use it around an agent's run, as a sync or async context manager or as a decorator. It opens a
    chain, which governed calls inside are recorded in, and completes it at the end. The first
    denial, stop, time-out or failure to record ends the run: later governed calls are refused, and
    at the end of the block it is raised, even when everything inside went on and returned. Inside
    another run, or an open :class:`Chain`, the block is part of that.

    ``agent`` is who acts, where a governed call does not say; without it, ``name``.

    >>> import countersign
    >>> from countersign.testing import FakeService
    >>> @countersign.governed
    ... def pay(invoice: int) -> str:
    ...     return "paid"
    >>> def agent() -> str:
    ...     try:
    ...         return pay(7)
    ...     except Exception:  # as many frameworks do
    ...         return "all done"
    >>> with FakeService() as service:
    ...     config = countersign.init(**service.settings())
    ...     service.script("deny", decision_reason="over budget")
    ...     with countersign.governed_run("invoices", agent="clerk") as run:
    ...         agent()
    Traceback (most recent call last):
        ...
    countersign.exceptions.ActionDeniedError: tool_call 'pay' by 'clerk' was denied: over budget
    """

    def make() -> Chain:
        return Chain(name, external_chain_id=external_chain_id, metadata=metadata, config=config)

    return RunScope(make, agent)


class RunScope:
    """What :func:`governed_run` returns: a context manager for one run, or a decorator that makes
    a run of each call."""

    def __init__(self, make: Callable[[], Chain], agent: str | None) -> None:
        inherit_in_threads()
        self._make = make
        self._agent = agent
        self._run: GovernedRun | None = None
        self._before: Place | None = None
        self._opens = False  # whether the chain is ours to open and complete
        self._latches: list[Callable[[Exception], object]] | None = None

    # -- as a context manager ------------------------------------------------------------

    def __enter__(self) -> GovernedRun:
        run = self._begin()
        if self._opens:
            run.chain.__enter__()
        return self._entered(run)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run, final = self._left(error)
        if self._opens:
            run.chain.__exit__(_kind(final), final, None)
        _surface(final, error)

    async def __aenter__(self) -> GovernedRun:
        run = self._begin()
        if self._opens:
            await run.chain.__aenter__()
        return self._entered(run)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run, final = self._left(error)
        if self._opens:
            await run.chain.__aexit__(_kind(final), final, None)
        _surface(final, error)

    def _begin(self) -> GovernedRun:
        if self._run is not None:
            raise RuntimeError("a run is entered once; call governed_run() for each")
        around = current_place()
        if isinstance(around, GovernedRun):
            run = around
        elif isinstance(around, ChainPlace):
            run = GovernedRun(around.chain, self._agent, around)
        else:
            self._opens = True
            run = GovernedRun(self._make(), self._agent)
        self._run = run
        return run

    def _entered(self, run: GovernedRun) -> GovernedRun:
        self._before = enter(run)
        session = run.session
        if session is not None and run.deny not in session.latches:
            self._latches = session.latches
            self._latches.append(run.deny)
        return run

    def _left(self, error: BaseException | None) -> tuple[GovernedRun, BaseException | None]:
        run = self._run
        assert run is not None
        leave(run, self._before)
        if self._latches is not None:
            self._latches.remove(run.deny)
            run._over = True
        return run, run._end(error)

    # -- as a decorator --------------------------------------------------------------------

    def __call__(self, function: F) -> F:
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigurationError(
                "governed_run decorates functions and coroutine functions; use it inside of a "
                "generator, or around the loop that consumes it"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                async with RunScope(self._make, self._agent):
                    return await function(*args, **kwargs)

            return cast("F", run_async)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with RunScope(self._make, self._agent):
                return function(*args, **kwargs)

        return cast("F", run)


def _kind(error: BaseException | None) -> type[BaseException] | None:
    return None if error is None else type(error)


def _surface(final: BaseException | None, error: BaseException | None) -> None:
    """Raise what the run ends with, unless it is on its way already."""
    if final is not None and final is not error:
        # Its own cause, and not what a framework made of it.
        raise final from final.__cause__
