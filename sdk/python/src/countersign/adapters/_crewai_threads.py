"""Threads for the steps of governed crews.

CrewAI carries out the steps of an agent with ``asyncio.to_thread``, whose pool has the number of
processors and four. A step that waits for a person holds its thread, so a handful of waiting runs
would keep all others from asking. In a governed run each step has a thread of its own instead,
and leaves it to the next. For this, CrewAI's modules see an ``asyncio`` with another ``to_thread``;
outside of governed runs it is the one that they saw before.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from countersign._fork import in_child
from countersign.adapters._shared import current_run

__all__ = ["give_steps_threads"]

T = TypeVar("T")

_MODULES = (
    "crewai.crew",
    "crewai.flow.flow",
    "crewai.flow.runtime",
    "crewai.agents.agent_executor",
    "crewai.utilities.agent_utils",
)
"""Those that start threads for steps, in the versions that are supported."""


_IDLE_SECONDS = 5.0  # seconds that a thread waits for another step
_lock = threading.Lock()  # guards _idle
_idle: list[SimpleQueue[Callable[[], None]]] = []
"""The threads that wait for a step, each by where it takes it from."""


def _begin(work: Callable[[], None]) -> None:
    """Do the work in a thread that does nothing else: one that is idle, or a new one."""
    with _lock:
        steps = _idle.pop() if _idle else None
    if steps is not None:
        steps.put(work)
        return
    # A daemon: at the end of the process nobody waits for what a person has not decided.
    threading.Thread(target=_serve, args=(work,), name="countersign-crew", daemon=True).start()


def _serve(work: Callable[[], None]) -> None:
    steps: SimpleQueue[Callable[[], None]] = SimpleQueue()
    while True:
        work()
        del work  # what it holds is not kept while the thread is idle
        with _lock:
            _idle.append(steps)
        try:
            work = steps.get(timeout=_IDLE_SECONDS)
        except Empty:
            with _lock:
                if steps in _idle:
                    _idle.remove(steps)
                    return
            work = steps.get()  # it came at the last moment


@in_child
def _after_fork() -> None:
    """The threads of the parent are not in a forked process."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()


class _Asyncio:
    """The module, but for one function."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def to_thread(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        if current_run() is None:
            return await asyncio.to_thread(function, *args, **kwargs)
        done: Future[T] = Future()
        context = copy_context()

        def work() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                result = context.run(function, *args, **kwargs)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        _begin(work)
        return await asyncio.wrap_future(done)


def give_steps_threads() -> None:
    """Have CrewAI's modules start the steps of governed runs in threads of their own."""
    for name in _MODULES:
        try:
            module: Any = import_module(name)
        except ImportError:
            continue  # another version's
        if getattr(module, "asyncio", None) is asyncio:
            module.asyncio = _Asyncio()
