"""A limit to how many do something at the same time, across threads and event loops."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from countersign._steps import Effect, Steps, Until

__all__ = ["Turns"]

T = TypeVar("T")


class Turns:
    """Lets ``most`` at a time through, in the order in which they came."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    def through(self, steps: Steps[T]) -> Steps[T]:
        """Perform the steps when it is their turn."""
        yield from self._wait()
        try:
            return (yield from steps)
        finally:
            self._pass_on()

    def _wait(self) -> Generator[Effect, Any, None]:
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
            self._pass_on()  # the turn had come, and is not used
            raise

    def _pass_on(self) -> None:
        with self._lock:
            following = self._waiting.popleft() if self._waiting else None
            if following is None:
                self._free += 1
        if following is not None:
            following.set_result(None)
