"""The background thread that delivers locally decided events."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from countersign._answers import is_retryable
from countersign._clients import Unreachable
from countersign._fork import reset_in_child
from countersign._steps import Steps
from countersign.exceptions import APIError

__all__ = ["Sender"]

logger = logging.getLogger("countersign")

_LINGER = 0.02  # seconds during which events are collected into one batch
_IDLE = 5.0  # seconds without work after which the thread ends
_PATIENCE = 1.0  # seconds for which the thread waits while another caller delivers a chain
_FIRST_BACKOFF = 0.2  # seconds
_LONGEST_BACKOFF = 5.0  # seconds


class Deliverable(Protocol):
    """Something with undelivered work."""

    def flush(self, patience: float | None = None) -> Steps[None]:
        """Deliver everything. Raises ``Unreachable`` to be tried again later, also if another
        caller delivers and does not end within ``patience`` seconds."""

    def fail(self, error: Exception) -> None:
        """Called with a permanent error: the work will not be tried again."""

    def undelivered(self) -> int:
        """Return the number of undelivered events and outcomes."""


class Sender:
    """Delivers the work of all chains of a configuration on one thread, ordered by due time. The
    thread exists only while there is work."""

    def __init__(self, run: Callable[[Steps[Any]], Any]) -> None:
        self._run = run
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Start empty: the parent has the thread, and delivers what was submitted there."""
        self._changed = threading.Condition()
        self._due: dict[Deliverable, float] = {}
        self._busy: set[Deliverable] = set()
        self._failures: dict[Deliverable, int] = {}
        self._thread: threading.Thread | None = None
        self._closing = False

    def submit(self, work: Deliverable, delay: float = _LINGER) -> None:
        """Schedule the work. Does nothing if it is already scheduled."""
        if work in self._due and self._thread is not None:
            return
        if sys.is_finalizing():
            return  # the thread was stopped wherever it was, perhaps with the condition
        with self._changed:
            self._due.setdefault(work, time.monotonic() + delay)
            if self._thread is None and not self._closing:
                self._start_thread()
            self._changed.notify_all()

    def _start_thread(self) -> None:
        """Start the thread. The condition is held."""
        thread = threading.Thread(target=self._work, name="countersign-sender", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The action was decided, so this must not fail it. The next submit tries again, and
            # leaving the chain delivers its queue in any case.
            logger.warning("countersign: events are delivered later: %s", error)
        else:
            self._thread = thread

    def retry_now(self) -> None:
        """Try all scheduled work now, because the service answers again."""
        if self._due:
            with self._changed:
                self._due = dict.fromkeys(self._due, 0.0)
                self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Deliver everything on the calling thread. Returns whether nothing is left."""
        deadline = time.monotonic() + timeout
        for work in tuple(self._due):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            # Bounded, because this thread may run the event loop of the task that delivers now.
            self._deliver(work, remaining)
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, max(deadline - time.monotonic(), 0))
            return not self._due and not self._busy

    def close(self, timeout: float) -> None:
        """Flush one last time, and log how many events and outcomes are lost."""
        self._closing = True
        try:
            if not self.flush(timeout):
                chains = self._busy.union(self._due)
                lost = sum(work.undelivered() for work in chains)
                text = "undelivered events and outcomes were lost: %d, in chains: %d"
                logger.warning(text, lost, len(chains))
        finally:
            with self._changed:
                self._due.clear()
                self._failures.clear()
                self._closing = False
                self._changed.notify_all()

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    work = self._await_due()
                    if work is None:
                        self._thread = None
                        return
                # Bounded, because a blocked event loop must not hold up all other chains.
                self._deliver(work, _PATIENCE)
        except BaseException:
            # Not the work's own error, but one such as that of a program's logging.
            with self._changed:
                self._thread = None
                if self._due:
                    self._start_thread()
            raise

    def _await_due(self) -> Deliverable | None:
        """Return the next work once it is due; None when idle. The condition is held."""
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

    def _deliver(self, work: Deliverable, patience: float) -> None:
        # Removed first, so that events which arrive during the delivery schedule it again.
        with self._changed:
            if self._due.pop(work, None) is None:
                return
            self._busy.add(work)
        try:
            self._run(work.flush(patience))
            self._failures.pop(work, None)
        except (Unreachable, APIError) as error:
            if isinstance(error, APIError) and not is_retryable(error):
                self._failures.pop(work, None)
                work.fail(error)
                return
            failures = self._failures[work] = self._failures.get(work, 0) + 1
            self.submit(work, min(_FIRST_BACKOFF * 2 ** min(failures, 10), _LONGEST_BACKOFF))
        except Exception as error:
            self._failures.pop(work, None)
            work.fail(error)
        except BaseException:
            self.submit(work)  # interrupted, not done
            raise
        finally:
            with self._changed:
                self._busy.discard(work)
                self._changed.notify_all()
