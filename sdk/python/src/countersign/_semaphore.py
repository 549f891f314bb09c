"""A semaphore for steps, shared by threads and event loops."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from countersign._steps import Effect, Steps, Until

__all__ = ["Semaphore"]

T = TypeVar("T")

_LONGEST_WAIT = 30.0  # seconds


class Semaphore:
    """Runs at most ``slots`` steps at a time, in the order of arrival.

    Nothing waits for a slot without an end: who holds it may be a task of an event loop that stands
    still until then. After half a minute steps run without one.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    def run(self, steps: Steps[T]) -> Steps[T]:
        """Perform the steps once a slot is free."""
        has_slot = yield from self._acquire()
        try:
            return (yield from steps)
        finally:
            if has_slot:
                self._release()

    def _acquire(self) -> Generator[Effect, Any, bool]:
        """Return whether a slot became free in time."""
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return True
            turn: Future[None] = Future()
            self._waiting.append(turn)
        try:
            if not (yield Until(turn, _LONGEST_WAIT)):
                with self._lock:
                    if turn in self._waiting:
                        self._waiting.remove(turn)
                        return False
            return True
        except BaseException:
            with self._lock:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                    raise
            self._release()  # the slot was assigned already
            raise

    def _release(self) -> None:
        with self._lock:
            following = self._waiting.popleft() if self._waiting else None
            if following is None:
                self._free += 1
        if following is not None:
            following.set_result(None)
