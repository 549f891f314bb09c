"""Blocking calls from wherever a framework calls its hooks, and threads for what must not wait."""

from __future__ import annotations

import _thread
import asyncio
import atexit
import functools
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from countersign._fork import in_child
from countersign._loops import in_event_loop

__all__ = ["blocking", "later", "to_thread"]

logger = logging.getLogger("countersign")

T = TypeVar("T")

_POOL_SIZE = 512
_pools: dict[str, ThreadPoolExecutor] = {}
_pool_lock = threading.Lock()


def blocking(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that the client refuses in a thread whose event loop runs. Sync code that
    is called there blocks its loop by itself; here it does so by waiting for another thread."""
    if in_event_loop():
        return _threads().submit(function, *arguments).result()
    return function(*arguments)


async def to_thread(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """``asyncio.to_thread`` for what was just allowed. Its pool has few threads, and what waits for
    one of them would begin when its permission has long run out."""
    call = functools.partial(copy_context().run, function, *args, **kwargs)
    # Not the pool of the blocking calls, which such a function may make.
    return await asyncio.get_running_loop().run_in_executor(_threads("countersign-tool"), call)


def _threads(name: str = "countersign-adapter") -> ThreadPoolExecutor:
    with _pool_lock:
        if name not in _pools:
            _pools[name] = ThreadPoolExecutor(_POOL_SIZE, thread_name_prefix=name)
        return _pools[name]


_LONGEST_END = 10.0  # seconds that the process waits at its end for what was left for later
_left: deque[Callable[[], object]] = deque()
_at_work = threading.Lock()  # held by the thread that does what was left for later


def later(work: Callable[[], object]) -> None:
    """Have a function called by another thread. For code that the garbage collector calls: it
    interrupts any code, and so waits for no lock, nor does the start of the thread."""
    _left.append(work)
    if _at_work.acquire(blocking=False):
        try:
            _thread.start_new_thread(_work, ())
        except RuntimeError:  # at the end of the process, which does it itself
            _at_work.release()


def _work() -> None:
    while True:
        _do_what_was_left()
        _at_work.release()
        # More may have come after the last look.
        if not _left or not _at_work.acquire(blocking=False):
            return


def _do_what_was_left() -> None:
    while _left:
        try:
            _left.popleft()()
        except Exception as fault:
            logger.warning("countersign: a run that was left was not ended properly: %s", fault)


@atexit.register
def _at_exit() -> None:
    if _at_work.acquire(timeout=_LONGEST_END):
        _do_what_was_left()
        _at_work.release()


@in_child
def _after_fork() -> None:
    # The child has none of the threads, and another one may have held a lock.
    global _pool_lock, _at_work
    _pool_lock, _at_work = threading.Lock(), threading.Lock()
    _pools.clear()
    _left.clear()
