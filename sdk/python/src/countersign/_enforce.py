"""The exceptions for decisions that deny an action."""

from __future__ import annotations

from countersign._decision import PolicyDecision
from countersign.exceptions import (
    ActionDeniedError,
    ApprovalTimedOutError,
    ChainAutoPausedError,
    ChainTimeoutError,
    KillSwitchActiveError,
    PolicyViolationError,
)

__all__ = ["arguments_changed", "denial_of", "is_stop"]

CHAIN_TIMEOUT = "chain_timeout"
"""The policy name with which the service denies the actions of a chain that ran too long."""


_STOPS = (KillSwitchActiveError, ChainTimeoutError, ChainAutoPausedError)


def is_stop(kind: type[BaseException]) -> bool:
    """Whether an exception stops the whole chain or organization, not a single action."""
    return issubclass(kind, _STOPS)


def denial_of(decision: PolicyDecision, action: str, approval_status: str = "denied") -> Exception:
    """Return the exception for a decision that does not allow the action."""
    text = _explain(decision, action)
    if decision.kill_switch_active:
        return KillSwitchActiveError(text, decision)
    if decision.auto_paused:
        return ChainAutoPausedError(text, decision)
    if decision.policy_name == CHAIN_TIMEOUT:
        return ChainTimeoutError(text, decision)
    if approval_status == "timed_out":
        return ApprovalTimedOutError(text, decision)
    return ActionDeniedError(text, decision)


def arguments_changed(name: str, decision: PolicyDecision) -> PolicyViolationError:
    """Return the error for a call whose arguments changed after they were recorded."""
    return PolicyViolationError(
        f"the arguments of {name!r} changed while it waited: what was decided is not what would be "
        "carried out",
        decision,
    )


def _explain(decision: PolicyDecision, action: str) -> str:
    by = f" by policy {decision.policy_name!r}" if decision.policy_name else ""
    if decision.kill_switch_active:
        by = ": the kill switch is active"
    elif decision.decision_source == "human_approval":
        # A reviewer decided, not the policy that required the approval.
        by = ""
    parts = [f"{action} was denied{by}"]
    if reason := decision.pause_reason or decision.decision_reason:
        parts.append(f": {reason}")
    if decision.remediation:
        # Reasons are free text, and most of them end with a full stop.
        stop = "" if parts[-1].endswith((".", "!", "?")) else "."
        parts.append(f"{stop} {decision.remediation}")
    if decision.docs_url:
        parts.append(f" (see {decision.docs_url})")
    return "".join(parts)
