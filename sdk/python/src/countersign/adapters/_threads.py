"""Blocking calls from wherever a framework calls its hooks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from countersign._fork import in_child
from countersign._loops import in_event_loop

__all__ = ["blocking"]

T = TypeVar("T")

_POOL_SIZE = 512
_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def blocking(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that the client refuses in a thread whose event loop runs. Sync code that
    is called there blocks its loop by itself; here it does so by waiting for another thread."""
    if in_event_loop():
        return _threads().submit(function, *arguments).result()
    return function(*arguments)


def _threads() -> ThreadPoolExecutor:
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(_POOL_SIZE, thread_name_prefix="countersign-adapter")
        return _pool


@in_child
def _after_fork() -> None:
    # The child has none of the threads, and another one may have held the lock.
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()
