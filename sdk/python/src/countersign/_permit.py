"""Deciding one governed call, and reporting its outcome."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from countersign._action import Action
from countersign._collector import in_garbage_collection
from countersign._decision import PolicyDecision
from countersign._enforce import arguments_changed
from countersign._loops import in_event_loop, run_to_completion
from countersign._plain import Snapshot
from countersign._scope import Scope
from countersign._session import Session
from countersign._steps import Steps
from countersign.exceptions import ActionDeniedError

__all__ = ["Denied", "OnDenial", "Payload", "Permit", "Request"]

_LONG = 0.1
"""Seconds for which reading many arguments again may use up a permission: after that it is asked
for once more."""

OnDenial = Literal["raise", "tell_model"]
Payload = Callable[[dict[str, Any]], Mapping[str, Any]]


class Request:
    """One action, before it is decided."""

    def __init__(
        self,
        scope: Scope,
        session: Session,
        agent: str,
        action_type: str,
        name: str,
        arguments: Mapping[str, Any],
        payload_of: Payload | None,
        redact: Collection[str],
        tell_model: bool,
    ) -> None:
        self._scope = scope
        self._session = session
        self._agent = agent
        self._action_type = action_type
        self._name = name
        self._arguments = arguments
        self._payload_of = payload_of
        self._redact = redact
        self._tell_model = tell_model

    def decide(self) -> Permit | Denied:
        """Return when the action may be carried out. Blocks while a reviewer decides."""
        if in_event_loop():
            error = RuntimeError(
                f"{self._name} is governed and was not called: it is a sync function, and waiting "
                "for its decision would stop the event loop that runs in this thread. Make it "
                "`async def`, or call it with `await asyncio.to_thread(...)`"
            )
            raise self._scope.deny(error)
        return self._session.transport.run(self._deciding())

    async def decide_async(self) -> Permit | Denied:
        """:meth:`decide` on the running event loop."""
        return await self._session.transport.run_async(self._deciding())

    def _deciding(self) -> Steps[Permit | Denied]:
        self._scope.check()
        session = self._session
        try:
            action = self._action()
            # The arguments, not the payload: a payload function may return something else later.
            before = Snapshot(self._arguments).value
            decision = session.decide_locally(action)
            if decision is None:
                decision = yield from session.record(action)
        except Exception as error:
            return self._refusal(error)
        permit = Permit(session, decision)
        try:
            self._scope.check()  # another call may have been denied during the wait
            clock = session.transport.clock
            began = clock.monotonic()
            self._compare(before, decision)
            if clock.monotonic() - began > _LONG and decision.event_id is not None:
                try:
                    yield from session.record(action)
                except Exception as error:
                    refusal = self._refusal(error)
                    yield from permit.reporting("failed", type(error).__name__)
                    return refusal
                self._compare(before, decision)  # another thread had the time of an answer
        except BaseException as error:
            # The action was allowed but will not be carried out.
            yield from permit.reporting("failed", type(error).__name__)
            raise
        return permit

    def _compare(self, before: Any, decision: PolicyDecision) -> None:
        """Deny the call if its arguments are not those that were decided about."""
        if Snapshot(self._arguments).value != before:
            raise self._scope.deny(arguments_changed(self._name, decision))

    def _refusal(self, error: Exception) -> Denied:
        """Return the denial that the model is told of. Raises every other error."""
        if self._tell_model and isinstance(error, ActionDeniedError):
            return Denied(str(error))
        raise self._scope.deny(error) from error.__cause__

    def _action(self) -> Action:
        arguments = self._arguments
        return Action(
            self._session.config._sanitizer,
            self._agent,
            self._action_type,
            self._name,
            self._payload_of(dict(arguments)) if self._payload_of else arguments,
            None,
            None,
            None,  # a new idempotency key: each call has its own record
            self._redact,
        )


@dataclass(frozen=True)
class Denied:
    """A denial whose text is returned to the model."""

    text: str


class Permit:
    """An action that may be carried out, once."""

    def __init__(self, session: Session, decision: PolicyDecision) -> None:
        self._session = session
        self.decision = decision
        session.unreported[id(decision)] = decision

    def end(self, error: BaseException | None, detail: str | None = None) -> None:
        """Report the outcome. Never raises, so that the caller gets the function's result."""
        outcome = _outcome_of(error, detail)
        if in_event_loop() or in_garbage_collection():
            # A generator that was started in a thread and is closed on an event loop, or by the
            # garbage collector. That interrupts any code, also this library's while it holds locks.
            self._session.defer_report(self.decision, *outcome)
            return
        self._session.transport.run(self.reporting(*outcome))

    async def end_async(self, error: BaseException | None, detail: str | None = None) -> None:
        """:meth:`end` on the running event loop. A cancelled task still reports."""
        steps = self.reporting(*_outcome_of(error, detail))
        await run_to_completion(self._session.transport.run_async(steps))

    def reporting(self, outcome: str, detail: str | None) -> Steps[None]:
        yield from self._session.end_call(self.decision, outcome, detail)


def _outcome_of(error: BaseException | None, detail: str | None) -> tuple[str, str | None]:
    """Return the outcome and its detail: the type of an error, never its text, which could contain
    secrets."""
    if error is None:
        return "succeeded", detail
    # After a cancellation or an interrupt nobody knows how far the function got.
    return "failed" if isinstance(error, Exception) else "unknown", type(error).__name__
