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


class Semaphore:
    """Runs at most ``slots`` steps at a time, in the order of arrival."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    def run(self, steps: Steps[T]) -> Steps[T]:
        """Perform the steps once a slot is free."""
        yield from self._acquire()
        try:
            return (yield from steps)
        finally:
            self._release()

    def _acquire(self) -> Generator[Effect, Any, None]:
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            turn: Future[None] = Future()
            self._waiting.append(turn)
        try:
            yield Until(turn)
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
