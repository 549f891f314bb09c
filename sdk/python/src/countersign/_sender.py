"""The background thread that delivers what was decided in this process."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from countersign._answers import may_pass
from countersign._clients import Unreachable
from countersign._steps import Steps
from countersign.exceptions import APIError

__all__ = ["Sender"]

logger = logging.getLogger("countersign")

_LINGER = 0.02  # seconds in which events gather into one batch
_IDLE = 5.0  # seconds without work after which the thread ends
_FIRST_BACKOFF = 0.2
_LONGEST_BACKOFF = 5.0


class Deliverable(Protocol):
    """Something with undelivered work."""

    def settle(self) -> Steps[None]:
        """Deliver it all. Raises ``Unreachable`` when it is to be tried again."""

    def fail(self, error: Exception) -> None:
        """Learn that it can never be delivered."""

    def undelivered(self) -> int:
        """How many events would be lost if the process ended now."""


class Sender:
    """Runs while there is work, and not otherwise. One thread for all chains of a
    configuration: what waits is ordered by when it is due."""

    def __init__(self, run: Callable[[Steps[Any]], Any]) -> None:
        self._run = run
        self._forget()
        _every.add(self)

    def _forget(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Deliverable, float] = {}
        self._busy: set[Deliverable] = set()
        self._failures: dict[Deliverable, int] = {}
        self._thread: threading.Thread | None = None
        self._closing = False

    def submit(self, work: Deliverable, delay: float = _LINGER) -> None:
        """Have the work delivered soon. Submitting it again changes nothing."""
        if work in self._due:
            return
        with self._changed:
            self._due.setdefault(work, time.monotonic() + delay)
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(
                    target=self._work, name="countersign-sender", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def hurry(self) -> None:
        """The service is back: try everything now."""
        if self._due:
            with self._changed:
                self._due = dict.fromkeys(self._due, 0.0)
                self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Try to deliver everything, in this thread; whether nothing is left."""
        deadline = time.monotonic() + timeout
        for work in tuple(self._due):
            if time.monotonic() >= deadline:
                break
            self._deliver(work)
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, max(deadline - time.monotonic(), 0))
            return not self._due and not self._busy

    def close(self, timeout: float) -> None:
        """One last try; what cannot be delivered is lost, and said to be."""
        self._closing = True
        try:
            if not self.flush(timeout):
                chains = self._busy.union(self._due)
                lost = sum(work.undelivered() for work in chains)
                logger.warning("%d events of %d chains were not delivered", lost, len(chains))
        finally:
            with self._changed:
                self._due.clear()
                self._failures.clear()
                self._closing = False
                self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                work = self._await_due()
                if work is None:
                    self._thread = None
                    return
            self._deliver(work)

    def _await_due(self) -> Deliverable | None:
        """The next piece of work, once it is due; None after a while without any."""
        while True:
            if not self._due:
                if not self._changed.wait_for(lambda: bool(self._due), _IDLE):
                    return None
                continue
            work, due = min(self._due.items(), key=lambda item: item[1])
            now = time.monotonic()
            if due <= now:
                return work
            self._changed.wait(due - now)

    def _deliver(self, work: Deliverable) -> None:
        # Taken off first: what arrives during the delivery submits the work anew.
        with self._changed:
            if self._due.pop(work, None) is None:
                return
            self._busy.add(work)
        try:
            self._run(work.settle())
            self._failures.pop(work, None)
        except (Unreachable, APIError) as error:
            if isinstance(error, APIError) and not may_pass(error):
                self._failures.pop(work, None)
                work.fail(error)
                return
            failures = self._failures[work] = self._failures.get(work, 0) + 1
            self.submit(work, min(_FIRST_BACKOFF * 2 ** min(failures, 10), _LONGEST_BACKOFF))
        except Exception as error:
            self._failures.pop(work, None)
            work.fail(error)
        finally:
            with self._changed:
                self._busy.discard(work)
                self._changed.notify_all()


_every: weakref.WeakSet[Sender] = weakref.WeakSet()


def _after_fork() -> None:
    # The thread stayed with the parent, and so does what it had to deliver.
    for sender in tuple(_every):
        sender._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
