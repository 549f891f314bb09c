"""Waiting for approvals, and cancelling them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from countersign._answers import is_retryable
from countersign._client import Client, client_of
from countersign._clients import Unreachable
from countersign._clock import Moment
from countersign._config import ChainConfig
from countersign._decision import PolicyDecision
from countersign._enforce import denial_of
from countersign._loops import refuse_in_loop
from countersign._steps import JITTER, Pause, Steps
from countersign._transport import Transport
from countersign._waiting import Wait
from countersign.exceptions import APIError, ApprovalTimedOutError, BackendUnavailableError

__all__ = [
    "cancel_approval",
    "cancel_approval_sync",
    "wait_for_approval",
    "wait_for_approval_sync",
]

_LONG_POLL = 30  # seconds; proxies often close a connection after 60
_MIN_HOLD = 1.0  # seconds; a faster answer means that the service did not hold the request
_LONGEST_BACKOFF = 5.0  # seconds
_GRACE = 60.0  # seconds
_LONGEST_COMMENT = 2000

MAX_LATE_ANSWERS = 3
"""After this many stale answers the service counts as unreachable."""
TOO_LATE = "its answers come too late"


async def wait_for_approval(
    approval_id: str, *, config: ChainConfig | Client | None = None
) -> PolicyDecision:
    """Wait for the decision on an approval, for example after a restart of the process.

    Returns once the approval is granted and the action may be carried out. Raises
    ``ActionDeniedError`` if it was denied or cancelled, ``ApprovalTimedOutError`` if nobody decided
    in time, and ``KillSwitchActiveError`` while the kill switch is active.
    """
    client = client_of(config)
    return await client.transport.run_async(
        wait_for_release(client.transport, approval_id, client.config)
    )


def wait_for_approval_sync(
    approval_id: str, *, config: ChainConfig | Client | None = None
) -> PolicyDecision:
    """:func:`wait_for_approval` for code without an event loop."""
    refuse_in_loop()
    client = client_of(config)
    return client.transport.run(wait_for_release(client.transport, approval_id, client.config))


async def cancel_approval(
    approval_id: str, comment: str | None = None, *, config: ChainConfig | Client | None = None
) -> bool:
    """Cancel an approval, so that no reviewer decides it in vain.

    Returns true once it is cancelled, and false if a reviewer had already decided or its time had
    run out; that result stands. A call that waits for it raises ``ActionDeniedError``. Ending a
    wait or the process does not cancel an approval.
    """
    client = client_of(config)
    return await client.transport.run_async(
        cancel(client.transport, approval_id, client.config, comment)
    )


def cancel_approval_sync(
    approval_id: str, comment: str | None = None, *, config: ChainConfig | Client | None = None
) -> bool:
    """:func:`cancel_approval` for code without an event loop."""
    refuse_in_loop()
    client = client_of(config)
    return client.transport.run(cancel(client.transport, approval_id, client.config, comment))


def cancel(
    transport: Transport, approval_id: str, config: ChainConfig, comment: str | None
) -> Steps[bool]:
    """Cancel an approval and return whether it ended as cancelled. Safe to repeat."""
    body = None
    if comment is not None:
        body = {"comment": config._sanitizer.prose(str(comment))[:_LONGEST_COMMENT]}
    try:
        yield from transport.call("POST", f"{_path(approval_id)}/cancel", body)
    except Unreachable as fault:
        raise BackendUnavailableError(
            f"the service did not confirm that the approval is cancelled ({fault}): cancel it "
            f"again, because a reviewer may still decide it"
        ) from fault
    except APIError as error:
        if error.code in ("approval_decided", "approval_expired"):
            return False
        raise
    return True


def wait_for_release(
    transport: Transport, approval_id: str, config: ChainConfig
) -> Steps[PolicyDecision]:
    """Wait for the decision, then confirm it: an allow is valid for one second only."""
    yield from wait_for_decision(transport, approval_id, config)
    backoff = ConfirmationBackoff(transport, config)
    while True:
        reason = TOO_LATE
        try:
            for _ in range(MAX_LATE_ANSWERS):
                decision, sent, current = yield from transport.retry_slots.run(
                    check_release(transport, approval_id)
                )
                if current and transport.is_fresh(sent):
                    return decision
        except Unreachable as fault:
            reason = str(fault)
        yield from backoff.pause(reason)


class ConfirmationBackoff:
    """Spaces the attempts to confirm an approved action.

    An approved action is never carried out offline. It is retried for as long as the approval can
    be valid.
    """

    def __init__(self, transport: Transport, config: ChainConfig) -> None:
        self._clock = transport.clock
        self._until = self._clock.monotonic() + config.default_approval_timeout_hours * 3600
        self._backoff = 0.1

    def pause(self, reason: str) -> Steps[None]:
        """Wait, each time longer. Raises ``BackendUnavailableError`` when the time is up."""
        if self._clock.monotonic() > self._until:
            raise BackendUnavailableError(
                f"the action was approved, but the service did not confirm it ({reason}): record "
                f"it again with the same idempotency key"
            )
        self._backoff = min(self._backoff * 2, _LONGEST_BACKOFF)
        yield Pause(self._backoff * JITTER.uniform(0.5, 1.0))


def wait_for_decision(
    transport: Transport,
    approval_id: str,
    config: ChainConfig,
    known: PolicyDecision | None = None,
    action: str | None = None,
    chain_name: str | None = None,
) -> Steps[PolicyDecision]:
    """Wait for a reviewer's decision and report the wait. Raises unless the action is released."""
    wait = Wait(approval_id, config, transport.clock, known, action, chain_name)
    ended = "broken_off"
    try:
        approval, sent = yield from _poll(transport, approval_id, config, known, wait)
        ended = str(approval.get("status"))
        return _read_release(transport, known, approval, sent)[0]
    except ApprovalTimedOutError:
        ended = "timed_out"
        raise
    finally:
        wait.end(ended)


def _poll(
    transport: Transport,
    approval_id: str,
    config: ChainConfig,
    known: PolicyDecision | None,
    wait: Wait,
) -> Steps[tuple[dict[str, Any], Moment]]:
    """Long-poll until the approval is decided.

    An outage of the service is waited out: failing here would abandon a pending approval. The
    returned decision is too old to act on.
    """
    clock = transport.clock
    # The service enforces the time limit. This deadline matters only while it is unreachable.
    deadline = clock.monotonic() + config.default_approval_timeout_hours * 3600 + _GRACE
    path = f"{_path(approval_id)}?wait={_LONG_POLL}"
    backoff = 0.1
    while True:
        asked = clock.monotonic()
        try:
            approval, sent = yield from transport.ask("GET", path, wait=_LONG_POLL)
        except (Unreachable, APIError) as fault:
            if isinstance(fault, APIError) and not is_retryable(fault):
                raise
            if clock.monotonic() > deadline:
                late = {"id": approval_id, "status": "timed_out"}
                raise denial_of(_resolved(known, late), "the action", "timed_out") from None
            backoff = min(backoff * 2, _LONGEST_BACKOFF)
            yield Pause(backoff)
            continue
        if approval.get("status") not in ("pending", "escalated"):
            return approval, sent
        wait.go_on(approval)
        deadline = asked + _validity(approval, deadline - asked) + _GRACE
        if clock.monotonic() - asked < _MIN_HOLD:
            yield Pause(_MIN_HOLD / 4)


def check_release(
    transport: Transport, approval_id: str, known: PolicyDecision | None = None
) -> Steps[tuple[PolicyDecision, Moment, bool]]:
    """Return the current decision on an approval, when it was requested, and whether the answer is
    as new as what is known about the organization. Raises if the action is not released."""
    approval, sent = yield from transport.ask("GET", _path(approval_id))
    decision, current = _read_release(transport, known, approval, sent)
    return decision, sent, current


def _path(approval_id: str) -> str:
    return f"/v1/approvals/{quote(approval_id, safe='')}"


def _read_release(
    transport: Transport,
    known: PolicyDecision | None,
    approval: Mapping[str, Any],
    sent: Moment,
) -> tuple[PolicyDecision, bool]:
    """Read the decision of an approval. The status is not enough: while the kill switch is active,
    an approved action is denied."""
    decision = _resolved(known, approval)
    current = transport.learn(
        {
            "act_number": approval.get("act_number"),
            "kill_switch_active": decision.kill_switch_active or None,
            "pause_reason": decision.pause_reason,
        },
        sent,
    )
    if decision.allowed:
        return decision, current
    if decision.auto_paused:
        transport.note_pause(str(approval.get("chain_id")), decision.pause_reason)
    action = f"{approval.get('action_type', 'action')} {approval.get('action_name', '')!r}"
    raise denial_of(decision, action, str(approval.get("status")))


def _resolved(known: PolicyDecision | None, approval: Mapping[str, Any]) -> PolicyDecision:
    """Return the decision of an approval that is no longer pending."""
    status = approval.get("status")
    told = approval.get("decision")
    if isinstance(told, Mapping):
        decision = PolicyDecision.from_json(told)
    else:
        reason = f"the approval is {status}, but the answer has no decision"
        if status == "timed_out":
            reason = "nobody decided in time"
        decision = PolicyDecision("deny", decision_reason=reason)
    base = known or PolicyDecision(
        "require_approval",
        policy_name=approval.get("policy_name"),
        event_id=approval.get("event_id"),
        chain_id=approval.get("chain_id"),
        sequence=approval.get("sequence"),
        approval_id=approval.get("id"),
    )
    # A rule can end the wait too, such as a new one or the chain's timeout: then it is the rule's
    # decision, not a person's.
    ruled = isinstance(told, Mapping) and told.get("decision_source") == "backend_evaluation"
    return replace(
        base,
        policy_decision=decision.policy_decision,
        policy_name=decision.policy_name or base.policy_name,
        decision_source="backend_evaluation" if ruled else "human_approval",
        decision_reason=decision.decision_reason,
        kill_switch_active=decision.kill_switch_active,
        pause_reason=decision.pause_reason,
        remediation=decision.remediation,
        docs_url=decision.docs_url,
        auto_paused=decision.auto_paused,
        status="allowed" if decision.allowed else "denied",
    )


def _validity(approval: Mapping[str, Any], otherwise: float) -> float:
    """Return how many seconds an approval is valid in total, by the service's clock."""
    try:
        requested, expires = (
            datetime.fromisoformat(str(approval[name]).replace("Z", "+00:00"))
            for name in ("requested_at", "expires_at")
        )
    except (KeyError, ValueError):
        return otherwise
    return (expires - requested).total_seconds()
