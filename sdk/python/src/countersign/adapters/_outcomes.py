"""What became of the actions of a run, reported when their bodies end.

An error is reported by its type. Its text stays here: it may hold what the tool was given.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from countersign._chain import Chain
from countersign._collector import in_garbage_collection
from countersign._decision import PolicyDecision
from countersign._loops import run_to_completion
from countersign._session import Session
from countersign._steps import Steps
from countersign.adapters._threads import blocking

__all__ = ["HANDLED", "Ending", "Outcomes", "ending_of"]

logger = logging.getLogger("countersign")

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

    The chain's session keeps them: it makes up for a report that was interrupted, and reports at
    the chain's end what is still open. An outcome that cannot be recorded is logged and not
    raised: the body has run.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain

    def begin(self, decision: PolicyDecision) -> None:
        """A body was released."""
        self._session.unreported[id(decision)] = decision

    def end(self, decision: PolicyDecision, ending: Ending) -> None:
        """A body has ended. Blocks until the service knows it; the first report stands."""
        session = self._session
        if in_garbage_collection():  # which interrupts any code, also this library's
            session.defer_report(decision, ending.outcome, ending.detail)
        elif id(decision) in session.unreported:
            steps = session.end_call(decision, ending.outcome, ending.detail)
            blocking(session.transport.run, steps)

    async def end_async(self, decision: PolicyDecision, ending: Ending) -> None:
        """:meth:`end` on the running event loop. A cancelled task still reports."""
        session = self._session
        if id(decision) in session.unreported:
            steps = session.end_call(decision, ending.outcome, ending.detail)
            await run_to_completion(session.transport.run_async(steps))

    def report_unknown(self, decision: PolicyDecision) -> None:
        """A body is about to run again that an earlier run may have begun. If nobody said how it
        ended, that is not known; how this run of it ends settles it."""
        try:
            blocking(self._chain.record_outcome_sync, decision, "unknown", _BROKEN_OFF)
        except Exception as fault:
            _log_unless_known(fault)

    async def report_unknown_async(self, decision: PolicyDecision) -> None:
        """:meth:`report_unknown` on the running event loop."""
        try:
            await self._chain.record_outcome(decision, "unknown", _BROKEN_OFF)
        except Exception as fault:
            _log_unless_known(fault)

    def pause(self) -> None:
        """The run pauses: what became of the bodies that are still open is not known. The run
        that resumes this one settles it."""
        blocking(self._session.transport.run, self._pausing())

    async def pause_async(self) -> None:
        """:meth:`pause` on the running event loop. A cancelled task still reports all of them."""
        await run_to_completion(self._session.transport.run_async(self._pausing()))

    def _pausing(self) -> Steps[None]:
        for decision in self.open_decisions():
            self._session.defer_report(decision, "unknown", _PAUSED)
        yield from self._session.report_deferred()

    def open_decisions(self) -> list[PolicyDecision]:
        return list(self._session.unreported.values())

    @property
    def _session(self) -> Session:
        session = self._chain._session
        assert session is not None  # something was decided in it
        return session


def _log_unless_known(fault: Exception) -> None:
    if getattr(fault, "code", None) != "outcome_conflict":
        logger.warning("countersign: an outcome was not recorded (%s)", type(fault).__name__)
