"""The scope of a governed call: the chain or run that is open around it.

The scope is a context variable. asyncio tasks inherit it, but threads do not. After
:func:`inherit_in_threads`, threads that are started in a run, and work that is submitted in it to a
``ThreadPoolExecutor`` or a ``multiprocessing.pool.ThreadPool``, are part of that run.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from countersign._fork import in_child
from countersign._session import Session

__all__ = [
    "Scope",
    "carry",
    "current_scope",
    "entered",
    "inherit_in_threads",
    "innermost_scope",
    "scope_of_call",
    "why_closed",
]

logger = logging.getLogger("countersign")

P = ParamSpec("P")
T = TypeVar("T")


class Scope(ABC):
    """A chain or run that governed calls are recorded in."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    @abstractmethod
    def agent(self) -> str:
        """The agent of calls that do not name one."""

    @property
    @abstractmethod
    def session(self) -> Session | None:
        """The open chain; ``None`` before it is opened and after it is left."""

    @abstractmethod
    def check(self) -> None:
        """Raise the error that ended the run. Called before each call and after each wait."""

    @abstractmethod
    def deny(self, error: Exception) -> Exception:
        """Note an error that prevents an action. Returns the error to raise."""

    def is_open(self) -> bool:
        """Whether it is open and was opened by this process. A denial that a forked process
        latches would not be seen here."""
        return self.session is not None and self._process == os.getpid()


_SCOPE: ContextVar[Scope | None] = ContextVar("countersign_scope", default=None)


def innermost_scope() -> Scope | None:
    """Return the scope of the calling code, whether it is still open or not."""
    return _SCOPE.get()


def current_scope() -> Scope | None:
    """Return the scope of the calling code, if it is still open."""
    scope = _SCOPE.get()
    return scope if scope is not None and scope.is_open() else None


def scope_of_call(name: str) -> tuple[Scope, Session]:
    """Return where to record a call. Raises ``RuntimeError`` outside of a run, so that nothing runs
    ungoverned or in the wrong chain."""
    scope = _SCOPE.get()
    session = scope.session if scope is not None and scope.is_open() else None
    if scope is None or session is None:
        text = f"{name} is governed and was not called: " + _reason(scope)
        logger.error("countersign: %s", text)
        raise RuntimeError(text)
    return scope, session


def _reason(scope: Scope | None) -> str:
    if scope is None:
        return (
            "no run is open here. Call it inside `with countersign.governed_run(...)` or "
            "`with countersign.Chain(...)`. In a thread that was started outside the run, such as "
            "a queue's worker, call the result of countersign.carry(function), made inside the run"
        )
    return why_closed(scope)


def why_closed(scope: Scope) -> str:
    """Say why nothing can be recorded in a scope any more."""
    if scope._process != os.getpid():
        return (
            "its run was opened by another process. Open one in this process, with "
            "`with countersign.governed_run(...)`"
        )
    return "the run that it is part of has ended. Wait for the call inside the run"


def enter(scope: Scope) -> Scope | None:
    """Make a scope the current one. Returns the previous one, for :func:`leave`."""
    before = _SCOPE.get()
    _SCOPE.set(scope)
    return before


def leave(scope: Scope, before: Scope | None) -> None:
    """Restore the previous scope, if ``scope`` is current. A context variable's token would not
    work, because a framework may leave in another context than it entered."""
    if _SCOPE.get() is scope:
        _SCOPE.set(before)


@contextmanager
def entered(scope: Scope | None) -> Iterator[None]:
    """Make a scope the current one inside the block."""
    token = _SCOPE.set(scope)
    try:
        yield
    finally:
        _SCOPE.reset(token)


def carry(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that runs as part of the current run, wherever it is called.

    Use it for threads that the run did not start: a worker that reads a queue, or a callback of a
    library with its own threads. Coroutine functions do not need it.
    """
    if _SCOPE.get() is None:
        raise RuntimeError("carry() must be called inside a run, and none is open here")
    in_scope = _Carried(function)

    @functools.wraps(function)
    def carried(*args: P.args, **kwargs: P.kwargs) -> T:
        return in_scope(*args, **kwargs)  # type: ignore[no-any-return]

    return carried


# -- threads ---------------------------------------------------------------------------

_installing = threading.Lock()
_installed = False


@in_child
def _after_fork() -> None:
    # Another thread of the parent may have held the lock.
    global _installing
    _installing = threading.Lock()


_carried: list[ContextVar[Any]] = [_SCOPE]  # only ever appended to, under _installing


def inherit_in_threads(*variables: ContextVar[Any]) -> None:
    """Make threads and pools inherit the scope, and the given context variables, from now on in the
    whole process. Outside of runs their behaviour does not change."""
    global _installed
    with _installing:
        _carried.extend(v for v in variables if v not in _carried)
        if not _installed:
            _installed = True
            _wrap_submit()
            _wrap_start()
            _wrap_thread_pool()


class _Carried:
    """Calls a function in the scope in which this object was made. The context of the calling
    thread is restored afterwards, because a pool's worker serves other runs too."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._values = [(variable, variable.get(None)) for variable in tuple(_carried)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tokens = [(variable, variable.set(value)) for variable, value in self._values]
        try:
            return self._function(*args, **kwargs)
        finally:
            for variable, token in reversed(tokens):
                variable.reset(token)


def _wrap_submit() -> None:
    from concurrent.futures import ThreadPoolExecutor

    submit: Callable[..., Future[Any]] = ThreadPoolExecutor.submit

    @functools.wraps(submit)
    def submit_in_scope(
        self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        if _SCOPE.get() is None or _is_of_interpreters(self):
            return submit(self, fn, *args, **kwargs)
        carried = _Carried(fn)
        # A worker that is started here serves other runs too: only the work gets the scope.
        with entered(None):
            return submit(self, carried, *args, **kwargs)

    ThreadPoolExecutor.submit = submit_in_scope  # type: ignore[method-assign]


def _is_of_interpreters(executor: object) -> bool:
    """Whether the work is pickled and sent to another interpreter, which no run extends to."""
    module = sys.modules.get("concurrent.futures.interpreter")
    return module is not None and isinstance(executor, module.InterpreterPoolExecutor)


def _wrap_start() -> None:
    start = threading.Thread.start

    @functools.wraps(start)
    def start_in_scope(self: threading.Thread) -> None:
        if _SCOPE.get() is not None:
            self.run = _Carried(self.run)  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = start_in_scope  # type: ignore[method-assign]


def _wrap_thread_pool() -> None:
    """Wrap the methods that submit work, because a worker serves several runs."""
    from multiprocessing.pool import ThreadPool

    def wrapped(name: str) -> Callable[..., Any]:
        method = getattr(ThreadPool, name)

        @functools.wraps(method)
        def in_scope(self: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            carried = func if _SCOPE.get() is None else _Carried(func)
            return method(self, carried, *args, **kwargs)

        return in_scope

    # All other methods call one of these.
    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        setattr(ThreadPool, name, wrapped(name))
