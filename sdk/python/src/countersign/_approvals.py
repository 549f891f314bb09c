"""Waiting for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from countersign._answers import may_pass
from countersign._client import Client, client_of
from countersign._clients import Unreachable
from countersign._clock import Moment
from countersign._config import ChainConfig
from countersign._decision import PolicyDecision
from countersign._enforce import denial_of
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

_HOLD = 30  # seconds the service holds an answer back; proxies often cut off at 60
_SHORTEST = 1.0  # an undecided answer sooner than this means that nothing was held back
_LONGEST_BACKOFF = 5.0
_GRACE = 60.0
_LONGEST_COMMENT = 2000

LATE_ANSWERS = 3
"""So many allows that came too late to be used are taken for silence."""
TOO_LATE = "its answers come too late"


async def wait_for_approval(
    approval_id: str, *, config: ChainConfig | Client | None = None
) -> PolicyDecision:
    """Wait for the decision on an approval, for instance after a restart of the process.

    Returns once it is approved and nothing else stands against the action now; raises
    ``ActionDeniedError`` when it was denied or cancelled, ``ApprovalTimedOutError`` when nobody
    decided in time, and ``KillSwitchActiveError`` while the kill switch is active.
    """
    client = client_of(config)
    return await client.transport.run_async(
        await_release(client.transport, approval_id, client.config)
    )


def wait_for_approval_sync(
    approval_id: str, *, config: ChainConfig | Client | None = None
) -> PolicyDecision:
    """:func:`wait_for_approval` for code without an event loop."""
    client = client_of(config)
    return client.transport.run(await_release(client.transport, approval_id, client.config))


async def cancel_approval(
    approval_id: str, comment: str | None = None, *, config: ChainConfig | Client | None = None
) -> bool:
    """Give up on an approval for good, so that nobody decides it for nothing.

    Returns true once it is cancelled, and false where a person had decided or its time had run
    out before: that stands. A call that waits for it raises ``ActionDeniedError``. Nothing else
    cancels: a wait that is broken off, or a process that ends, leaves the question open.
    """
    client = client_of(config)
    return await client.transport.run_async(
        give_up(client.transport, approval_id, client.config, comment)
    )


def cancel_approval_sync(
    approval_id: str, comment: str | None = None, *, config: ChainConfig | Client | None = None
) -> bool:
    """:func:`cancel_approval` for code without an event loop."""
    client = client_of(config)
    return client.transport.run(give_up(client.transport, approval_id, client.config, comment))


def give_up(
    transport: Transport, approval_id: str, config: ChainConfig, comment: str | None
) -> Steps[bool]:
    """Cancel an approval; whether it ended so. Repeating it is harmless."""
    body = None
    if comment is not None:
        body = {"comment": config._sanitizer.prose(str(comment))[:_LONGEST_COMMENT]}
    try:
        yield from transport.call("POST", f"{_path(approval_id)}/cancel", body)
    except Unreachable as fault:
        raise BackendUnavailableError(
            f"the service did not confirm that the approval is cancelled ({fault}): cancel it "
            f"again, as a person may still be deciding it"
        ) from fault
    except APIError as error:
        if error.code in ("approval_decided", "approval_expired"):
            return False
        raise
    return True


def await_release(
    transport: Transport, approval_id: str, config: ChainConfig
) -> Steps[PolicyDecision]:
    """Wait, and ask once more: a wait is long, and an allow is good for a second."""
    yield from await_decision(transport, approval_id, config)
    patience = Patience(transport, config)
    while True:
        reason = TOO_LATE
        try:
            for _ in range(LATE_ANSWERS):
                decision, sent, current = yield from transport.again.through(
                    release_now(transport, approval_id)
                )
                if current and transport.is_fresh(sent):
                    return decision
        except Unreachable as fault:
            reason = str(fault)
        yield from patience.pause(reason)


class Patience:
    """For an action that was approved and that the service has yet to confirm: it is never
    carried out offline, and not given up either while the approval could be valid."""

    def __init__(self, transport: Transport, config: ChainConfig) -> None:
        self._clock = transport.clock
        self._until = self._clock.monotonic() + config.default_approval_timeout_hours * 3600
        self._backoff = 0.1

    def pause(self, reason: str) -> Steps[None]:
        """Wait a little longer than the last time. Raises when the time is up."""
        if self._clock.monotonic() > self._until:
            raise BackendUnavailableError(
                f"the action was approved, but the service did not confirm it ({reason}): record "
                f"it again under the same idempotency key"
            )
        self._backoff = min(self._backoff * 2, _LONGEST_BACKOFF)
        yield Pause(self._backoff * JITTER.uniform(0.5, 1.0))


def await_decision(
    transport: Transport,
    approval_id: str,
    config: ChainConfig,
    known: PolicyDecision | None = None,
    action: str | None = None,
    chain_name: str | None = None,
) -> Steps[PolicyDecision]:
    """Wait for a person's decision, and say so. Raises unless it releases the action."""
    wait = Wait(approval_id, config, transport.clock, known, action, chain_name)
    ended = "broken_off"
    try:
        approval, sent = yield from _poll(transport, approval_id, config, known, wait)
        ended = str(approval.get("status"))
        return _released(transport, known, approval, sent)[0]
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
    """Long-poll until the approval is decided. An unreachable or overloaded service is waited
    out: to fail here would forget that somebody was asked. What is returned is too old to act
    on."""
    clock = transport.clock
    # The service says when the time is up; this one counts only while it is silent.
    deadline = clock.monotonic() + config.default_approval_timeout_hours * 3600 + _GRACE
    path = f"{_path(approval_id)}?wait={_HOLD}"
    backoff = 0.1
    while True:
        asked = clock.monotonic()
        try:
            approval, sent = yield from transport.ask("GET", path, wait=_HOLD)
        except (Unreachable, APIError) as fault:
            if isinstance(fault, APIError) and not may_pass(fault):
                raise
            if clock.monotonic() > deadline:
                late = {"id": approval_id, "status": "timed_out"}
                raise denial_of(_settled(known, late), "the action", "timed_out") from None
            backoff = min(backoff * 2, _LONGEST_BACKOFF)
            yield Pause(backoff)
            continue
        if approval.get("status") not in ("pending", "escalated"):
            return approval, sent
        wait.go_on(approval)
        deadline = asked + _validity(approval, deadline - asked) + _GRACE
        if clock.monotonic() - asked < _SHORTEST:
            yield Pause(_SHORTEST / 4)


def release_now(
    transport: Transport, approval_id: str, known: PolicyDecision | None = None
) -> Steps[tuple[PolicyDecision, Moment, bool]]:
    """Whether the approval releases its action at this moment, when that was asked, and whether
    the answer is as new as what is known of the organization. Raises when it does not."""
    approval, sent = yield from transport.ask("GET", _path(approval_id))
    decision, current = _released(transport, known, approval, sent)
    return decision, sent, current


def _path(approval_id: str) -> str:
    return f"/v1/approvals/{quote(approval_id, safe='')}"


def _released(
    transport: Transport,
    known: PolicyDecision | None,
    approval: Mapping[str, Any],
    sent: Moment,
) -> tuple[PolicyDecision, bool]:
    """The approval's decision, and not its status, says what may happen: under the kill switch
    an approved action is denied."""
    decision = _settled(known, approval)
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
        for delivery in tuple(transport.deliveries):
            delivery.told_of_pause(str(approval.get("chain_id")), decision.pause_reason)
    action = f"{approval.get('action_type', 'action')} {approval.get('action_name', '')!r}"
    raise denial_of(decision, action, str(approval.get("status")))


def _settled(known: PolicyDecision | None, approval: Mapping[str, Any]) -> PolicyDecision:
    """What an approval that is no longer open amounts to."""
    status = approval.get("status")
    told = approval.get("decision")
    if isinstance(told, Mapping):
        decision = PolicyDecision.from_json(told)
    else:
        reason = f"the approval is {status}, and the answer does not say what that means now"
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
    return replace(
        base,
        policy_decision=decision.policy_decision,
        decision_source="human_approval",
        decision_reason=decision.decision_reason,
        kill_switch_active=decision.kill_switch_active,
        pause_reason=decision.pause_reason,
        remediation=decision.remediation,
        docs_url=decision.docs_url,
        auto_paused=decision.auto_paused,
        status="allowed" if decision.allowed else "denied",
    )


def _validity(approval: Mapping[str, Any], otherwise: float) -> float:
    """How long an approval is valid in all, by the service's own clock."""
    try:
        requested, expires = (
            datetime.fromisoformat(str(approval[name]).replace("Z", "+00:00"))
            for name in ("requested_at", "expires_at")
        )
    except (KeyError, ValueError):
        return otherwise
    return (expires - requested).total_seconds()
