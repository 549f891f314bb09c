"""Waiting for people."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from countersign._clients import Unreachable
from countersign._config import ChainConfig, current_config
from countersign._decision import PolicyDecision
from countersign._enforce import denial_of
from countersign._steps import Pause, Steps
from countersign._transport import transport_of

if TYPE_CHECKING:
    from countersign._transport import Transport

__all__ = ["wait_for_approval", "wait_for_approval_sync"]

_HOLD = 30  # seconds the service holds an answer back; proxies often cut off at 60
_SHORTEST = 1.0  # an undecided answer sooner than this means that nothing was held back
_LONGEST_BACKOFF = 5.0
_GRACE = 60.0


async def wait_for_approval(
    approval_id: str, *, config: ChainConfig | None = None
) -> PolicyDecision:
    """Wait for the decision on an approval, for instance after a restart of the process.

    Returns once it is approved; raises ``ActionDeniedError`` when it was denied or
    cancelled, and ``ApprovalTimedOutError`` when nobody decided in time.
    """
    config = current_config(config)
    transport = transport_of(config)
    return await transport.run_async(await_decision(transport, approval_id, config))


def wait_for_approval_sync(
    approval_id: str, *, config: ChainConfig | None = None
) -> PolicyDecision:
    """:func:`wait_for_approval` for code without an event loop."""
    config = current_config(config)
    transport = transport_of(config)
    return transport.run(await_decision(transport, approval_id, config))


def await_decision(
    transport: Transport,
    approval_id: str,
    config: ChainConfig,
    decision: PolicyDecision | None = None,
) -> Steps[PolicyDecision]:
    """Long-poll until the approval is decided. An unreachable service is waited out: to
    fail here would forget that somebody was asked."""
    # The service says when the time is up; this one counts only while it is silent.
    deadline = time.monotonic() + config.default_approval_timeout_hours * 3600 + _GRACE
    path = f"/v1/approvals/{quote(approval_id, safe='')}?wait={_HOLD}"
    backoff = 0.1
    while True:
        asked = time.monotonic()
        try:
            approval = yield from transport.call("GET", path, wait=_HOLD)
        except Unreachable:
            if time.monotonic() > deadline:
                raise denial_of(
                    _settled(decision, {"id": approval_id}, "deny"), "the action", "timed_out"
                ) from None
            backoff = min(backoff * 2, _LONGEST_BACKOFF)
            yield Pause(backoff)
            continue
        status = approval.get("status")
        if status not in ("pending", "escalated"):
            return _decided(decision, approval, str(status))
        deadline = asked + _validity(approval, deadline - asked) + _GRACE
        if time.monotonic() - asked < _SHORTEST:
            yield Pause(_SHORTEST / 4)


def _decided(
    decision: PolicyDecision | None, approval: Mapping[str, Any], status: str
) -> PolicyDecision:
    if status == "approved":
        return _settled(decision, approval, "allow")
    action = f"{approval.get('action_type', 'action')} {approval.get('action_name', '')!r}"
    raise denial_of(_settled(decision, approval, "deny"), action, status)


def _settled(
    decision: PolicyDecision | None, approval: Mapping[str, Any], outcome: Any
) -> PolicyDecision:
    status = approval.get("status", "timed_out")
    reason = approval.get("comment") or {
        "approved": "approved by a reviewer",
        "denied": "denied by a reviewer",
        "timed_out": "nobody decided in time",
        "cancelled": "the chain was completed before anybody decided",
    }.get(status, f"the approval is {status}")
    base = decision or PolicyDecision(
        "require_approval",
        policy_name=approval.get("policy_name"),
        event_id=approval.get("event_id"),
        chain_id=approval.get("chain_id"),
        approval_id=approval.get("id"),
    )
    return replace(
        base,
        policy_decision=outcome,
        decision_source="human_approval",
        decision_reason=reason,
        status="allowed" if outcome == "allow" else "denied",
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
