"""``governed_run``: a chain whose first denial ends the run, even if a framework swallows it."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar, cast

from countersign._chain import Chain, ChainScope
from countersign._client import Client
from countersign._config import ChainConfig
from countersign._fork import reset_in_child
from countersign._scope import Scope, current_scope, enter, inherit_in_threads, leave
from countersign._session import Session
from countersign.exceptions import ConfigurationError

__all__ = ["GovernedRun", "RunContext", "governed_run", "raise_final"]

F = TypeVar("F", bound="Callable[..., Any]")


class GovernedRun(ChainScope):
    """The value of ``with governed_run(...) as run``. Safe to use from several threads."""

    chain: Chain
    """The chain of the run. It has its ``receipt`` after the run."""

    def __init__(self, chain: Chain, agent: str | None, outer: ChainScope | None = None) -> None:
        super().__init__(chain)
        self._agent = agent or (outer.agent if outer else chain.name)
        self._outer = outer
        self._denial: Exception | None = None
        self._trace: TracebackType | None = None  # of the first time that the denial was raised
        self._ended = False
        self._lock = threading.Lock()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may have held."""
        self._lock = threading.Lock()

    @property
    def denial(self) -> Exception | None:
        """The error that ended the run: the first denial, stop or failure to record. No governed
        call runs after it."""
        if self._denial is None and isinstance(self._outer, GovernedRun):
            return self._outer.denial
        return self._denial

    @property
    def agent(self) -> str:
        return self._agent

    @property
    def session(self) -> Session | None:
        return None if self._ended else super().session

    def check(self) -> None:
        if self._outer is not None:
            self._outer.check()
        if self._denial is not None:
            if self._trace is None:
                self._trace = self._denial.__traceback__
            # Each raise adds its frames to the traceback, and with them the arguments of each
            # refused call would stay in memory.
            raise self._denial.with_traceback(self._trace)

    def deny(self, error: Exception) -> Exception:
        with self._lock:
            if self._denial is None:
                self._denial = error
        return error if self._outer is None else self._outer.deny(error)

    def _final_error(self, error: BaseException | None) -> BaseException | None:
        """Return the error that the run ends with: its denial, even if the code inside caught it.
        A cancellation or another ``BaseException`` is kept."""
        denial = self.denial
        if denial is None or (error is not None and not isinstance(error, Exception)):
            return error
        return denial


def governed_run(
    name: str = "governed_run",
    *,
    agent: str | None = None,
    external_chain_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    config: ChainConfig | Client | None = None,
) -> RunContext:
    """Run an agent so that a denial is always raised, even if a framework catches it.

    Use it around an agent's run, as a sync or async context manager or as a decorator. It opens a
    chain, records the governed calls inside in it and completes it at the end. The first denial,
    stop, timeout or failure to record ends the run: later governed calls are refused, and the end
    of the block raises it. Inside another run or an open :class:`Chain` the block is part of that.

    ``agent`` is the agent of governed calls that do not name one; the default is ``name``.

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

    def make_chain() -> Chain:
        return Chain(name, external_chain_id=external_chain_id, metadata=metadata, config=config)

    return RunContext(make_chain, agent)


class RunContext:
    """What :func:`governed_run` returns: a context manager for one run, or a decorator that runs
    each call as a run."""

    def __init__(self, make_chain: Callable[[], Chain], agent: str | None) -> None:
        inherit_in_threads()
        self._make_chain = make_chain
        self._agent = agent
        self._run: GovernedRun | None = None
        self._previous: Scope | None = None
        self._owns_chain = False  # whether this object opens and completes the chain
        self._latches: list[Callable[[Exception], object]] | None = None

    # -- as a context manager ------------------------------------------------------------

    def __enter__(self) -> GovernedRun:
        run = self._begin()
        if self._owns_chain:
            run.chain.__enter__()
        return self._enter(run)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run, final = self._leave(error)
        if self._owns_chain:
            run.chain.__exit__(_kind(final), final, None)
        raise_final(final, error)

    async def __aenter__(self) -> GovernedRun:
        run = self._begin()
        if self._owns_chain:
            await run.chain.__aenter__()
        return self._enter(run)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run, final = self._leave(error)
        if self._owns_chain:
            await run.chain.__aexit__(_kind(final), final, None)
        raise_final(final, error)

    def _begin(self) -> GovernedRun:
        if self._run is not None:
            raise RuntimeError("a run can be entered once; call governed_run() for each run")
        around = current_scope()
        if isinstance(around, GovernedRun) and self._agent in (None, around.agent):
            run = around
        elif isinstance(around, ChainScope):
            run = GovernedRun(around.chain, self._agent, around)
        else:
            self._owns_chain = True
            run = GovernedRun(self._make_chain(), self._agent)
        self._run = run
        return run

    def _enter(self, run: GovernedRun) -> GovernedRun:
        self._previous = enter(run)
        session = run.session
        if session is not None and run.deny not in session.latches:
            self._latches = session.latches
            self._latches.append(run.deny)
        return run

    def _leave(self, error: BaseException | None) -> tuple[GovernedRun, BaseException | None]:
        run = self._run
        assert run is not None
        leave(run, self._previous)
        if self._latches is not None:
            self._latches.remove(run.deny)
            run._ended = True
        return run, run._final_error(error)

    # -- as a decorator --------------------------------------------------------------------

    def __call__(self, function: F) -> F:
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigurationError(
                "governed_run decorates functions and coroutine functions; use it inside the "
                "generator, or around the loop that consumes it"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                async with RunContext(self._make_chain, self._agent):
                    return await function(*args, **kwargs)

            return cast("F", run_async)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with RunContext(self._make_chain, self._agent):
                return function(*args, **kwargs)

        return cast("F", run)


def _kind(error: BaseException | None) -> type[BaseException] | None:
    return None if error is None else type(error)


def raise_final(final: BaseException | None, error: BaseException | None) -> None:
    """Raise the final error, unless it is already being raised."""
    if final is not None and final is not error:
        # Keep the denial's own cause instead of the framework's error.
        raise final from final.__cause__
