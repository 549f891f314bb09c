"""Where a governed call belongs: the chain or run that the code around it has opened.

The place is a context variable. Tasks of asyncio inherit it by themselves, threads do not: once
:func:`inherit_in_threads` was called, threads that are started, and work that is handed to a
``ThreadPoolExecutor`` or a ``multiprocessing.pool.ThreadPool``, within a run belong to that run.
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
from typing import Any, TypeVar

from countersign._session import Session

__all__ = ["Place", "carry", "current_place", "entered", "inherit_in_threads", "place_of_call"]

logger = logging.getLogger("countersign")

T = TypeVar("T")


class Place(ABC):
    """Something that governed calls are recorded in."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    @abstractmethod
    def agent(self) -> str:
        """Who acts, where a call does not say."""

    @property
    @abstractmethod
    def session(self) -> Session | None:
        """The open chain; ``None`` before it was opened and after it was left."""

    @abstractmethod
    def check(self) -> None:
        """Raise what ended the run. Asked before each call, and after each wait."""

    @abstractmethod
    def deny(self, error: Exception) -> Exception:
        """Take note of what kept an action from being carried out. Returns what to raise."""

    def is_here(self) -> bool:
        """Whether it is open, and was opened by this process: what another process latches,
        nobody here would learn of."""
        return self.session is not None and self._process == os.getpid()


_PLACE: ContextVar[Place | None] = ContextVar("countersign_place", default=None)


def current_place() -> Place | None:
    """The place that the calling code is in, if it is still open."""
    place = _PLACE.get()
    return place if place is not None and place.is_here() else None


def place_of_call(name: str) -> tuple[Place, Session]:
    """Where to record a call. Refuses one that is in no run: nothing runs ungoverned, and nobody
    guesses which run it is part of."""
    place = _PLACE.get()
    session = place.session if place is not None and place.is_here() else None
    if place is None or session is None:
        text = f"{name} is governed and was not called: " + _reason(place)
        logger.error("countersign: %s", text)
        raise RuntimeError(text)
    return place, session


def _reason(place: Place | None) -> str:
    if place is None:
        return (
            "no run is open here. Call it inside `with countersign.governed_run(...)` or "
            "`with countersign.Chain(...)`; in a thread that was started outside of the run, or a "
            "queue's worker, call countersign.carry(function), made inside the run"
        )
    if place._process != os.getpid():
        return (
            "its run was opened by another process. Open one in this process, with "
            "`with countersign.governed_run(...)`"
        )
    return "the run that it is part of has ended. Wait for it inside of the run"


def enter(place: Place) -> Place | None:
    """Make a place the current one. Returns the one before, for :func:`leave`."""
    before = _PLACE.get()
    _PLACE.set(place)
    return before


def leave(place: Place, before: Place | None) -> None:
    """Go back to the place before. A token would not do: a framework may leave in another
    context than it entered, where the place may be another."""
    if _PLACE.get() is place:
        _PLACE.set(before)


@contextmanager
def entered(place: Place | None) -> Iterator[None]:
    """Be in a place for the length of the block."""
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)


def carry(function: Callable[..., T]) -> Callable[..., T]:
    """The function, to be called from anywhere as part of the present run.

    For threads that the run did not start: a worker that takes work from a queue, a callback of
    a library that has threads of its own. A coroutine function keeps its place by itself.
    """
    if _PLACE.get() is None:
        raise RuntimeError("carry() is called inside of a run, and none is open here")
    in_place = _Carried(function)

    @functools.wraps(function)
    def carried(*args: Any, **kwargs: Any) -> T:
        return in_place(*args, **kwargs)  # type: ignore[no-any-return]

    return carried


# -- threads ---------------------------------------------------------------------------

_installing = threading.Lock()
_installed = False


def _after_fork() -> None:
    # Another thread of the parent may have held it.
    global _installing
    _installing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_carried: list[ContextVar[Any]] = [_PLACE]  # only ever appended to, under _installing


def inherit_in_threads(*variables: ContextVar[Any]) -> None:
    """Let threads and pools take the place along, and what else an adapter keeps of it, from now
    on and in the whole process. Outside of runs they do what they did."""
    global _installed
    with _installing:
        _carried.extend(v for v in variables if v not in _carried)
        if not _installed:
            _installed = True
            _wrap_submit()
            _wrap_start()
            _wrap_thread_pool()


class _Carried:
    """A function, to be called in the place in which this object was made. A worker that calls it
    serves others afterwards: so its own context is left as it was."""

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
    def submit_in_place(
        self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        if _PLACE.get() is None or _is_of_interpreters(self):
            return submit(self, fn, *args, **kwargs)
        carried = _Carried(fn)
        # A worker that is started here serves others afterwards: the place goes with the work.
        with entered(None):
            return submit(self, carried, *args, **kwargs)

    ThreadPoolExecutor.submit = submit_in_place  # type: ignore[method-assign]


def _is_of_interpreters(executor: object) -> bool:
    """Whether the work is pickled and sent to another interpreter: no run reaches there."""
    module = sys.modules.get("concurrent.futures.interpreter")
    return module is not None and isinstance(executor, module.InterpreterPoolExecutor)


def _wrap_start() -> None:
    start = threading.Thread.start

    @functools.wraps(start)
    def start_in_place(self: threading.Thread) -> None:
        if _PLACE.get() is not None:
            self.run = _Carried(self.run)  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = start_in_place  # type: ignore[method-assign]


def _wrap_thread_pool() -> None:
    """Its workers take work from a queue: the place goes with each piece of it."""
    from multiprocessing.pool import ThreadPool

    def wrapped(name: str) -> Callable[..., Any]:
        method = getattr(ThreadPool, name)

        @functools.wraps(method)
        def in_place(self: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            carried = func if _PLACE.get() is None else _Carried(func)
            return method(self, carried, *args, **kwargs)

        return in_place

    # All others come down to these.
    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        setattr(ThreadPool, name, wrapped(name))
