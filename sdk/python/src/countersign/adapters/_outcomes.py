"""What became of the actions of a run, reported when their bodies end.

An error is reported by its type. Its text stays here: it may hold what the tool was given.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Literal

from countersign._chain import Chain
from countersign._decision import PolicyDecision
from countersign._loops import run_to_completion
from countersign.adapters._threads import blocking

__all__ = ["HANDLED", "Ending", "Outcomes", "ending_of"]

logger = logging.getLogger("countersign")

_RUN_ENDED = "the run ended before it did"
_PAUSED = "the run was interrupted before it ended"
_BROKEN_OFF = "an earlier run was broken off"


@dataclass(frozen=True)
class Ending:
    """How a body ended."""

    outcome: Literal["succeeded", "failed", "unknown"]
    detail: str | None = None


HANDLED = Ending("failed", "handled by the tool")
"""The tool made a text of its own error: its type is not known."""


def ending_of(error: BaseException | None) -> Ending:
    """How a body ended that raised an error, or none. What cuts a body off, such as a
    cancellation, does not tell what it had done by then."""
    if error is None:
        return Ending("succeeded")
    outcome: Literal["failed", "unknown"] = "failed" if isinstance(error, Exception) else "unknown"
    return Ending(outcome, type(error).__name__)


class Outcomes:
    """The bodies of one run that were released, until each has ended. Safe to use from several
    threads and event loops.

    An outcome that cannot be recorded is logged and not raised: the body has run.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._open: dict[int, PolicyDecision] = {}
        self._lock = threading.Lock()  # guards _open

    def begin(self, decision: PolicyDecision) -> None:
        """A body was released."""
        with self._lock:
            self._open[id(decision)] = decision

    def end(self, decision: PolicyDecision, ending: Ending) -> None:
        """A body has ended. Blocks until the service knows it; the first report stands."""
        if not self._forget(decision):
            return
        try:
            blocking(self._report, decision, ending)
        except Exception as fault:
            _log(fault)

    async def end_async(self, decision: PolicyDecision, ending: Ending) -> None:
        """:meth:`end` on the running event loop. A cancelled task still reports."""
        if not self._forget(decision):
            return
        try:
            await run_to_completion(
                self._chain.record_outcome(decision, ending.outcome, ending.detail)
            )
        except Exception as fault:
            _log(fault)

    def report_unknown(self, decision: PolicyDecision) -> None:
        """A body is about to run again that an earlier run may have begun. If nobody said how it
        ended, that is not known; how this run of it ends settles it."""
        try:
            blocking(self._report, decision, Ending("unknown", _BROKEN_OFF))
        except Exception as fault:
            _log_unless_known(fault)

    async def report_unknown_async(self, decision: PolicyDecision) -> None:
        """:meth:`report_unknown` on the running event loop."""
        try:
            await self._chain.record_outcome(decision, "unknown", _BROKEN_OFF)
        except Exception as fault:
            _log_unless_known(fault)

    def close(self, *, paused: bool) -> None:
        """The run ends, or pauses: what became of the bodies that are still open is not known.
        The run that resumes this one settles it."""
        for decision in self.open_decisions():
            self.end(decision, Ending("unknown", _PAUSED if paused else _RUN_ENDED))

    async def close_async(self, *, paused: bool) -> None:
        """:meth:`close` on the running event loop. A cancelled task still reports all of them."""

        async def report(decisions: list[PolicyDecision]) -> None:
            for decision in decisions:
                await self.end_async(decision, Ending("unknown", _PAUSED if paused else _RUN_ENDED))

        if decisions := self.open_decisions():
            await run_to_completion(report(decisions))

    def _forget(self, decision: PolicyDecision) -> bool:
        with self._lock:
            return self._open.pop(id(decision), None) is not None

    def open_decisions(self) -> list[PolicyDecision]:
        with self._lock:
            return list(self._open.values())

    def _report(self, decision: PolicyDecision, ending: Ending) -> None:
        self._chain.record_outcome_sync(decision, ending.outcome, ending.detail)


def _log_unless_known(fault: Exception) -> None:
    if getattr(fault, "code", None) != "outcome_conflict":
        _log(fault)


def _log(fault: Exception) -> None:
    # A step that is replayed after an interrupt may end differently: the first outcome stands.
    logger.warning("countersign: an outcome was not recorded (%s)", type(fault).__name__)
