"""The decision on an action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

__all__ = ["DecisionSource", "Outcome", "PolicyDecision", "allowed_locally"]

Outcome = Literal["allow", "allow_with_flag", "require_approval", "deny"]
DecisionSource = Literal["backend_evaluation", "local_fast_path", "human_approval", "offline_stub"]


@dataclass(frozen=True)
class PolicyDecision:
    """The decision on one action, and its reason.

    >>> decision = PolicyDecision("allow_with_flag", decision_reason="unlisted domain")
    >>> decision.allowed, decision.decision_source
    (True, 'backend_evaluation')
    """

    policy_decision: Outcome
    """``allow``, ``allow_with_flag``, ``require_approval`` or ``deny``."""
    decision_reason: str = ""
    """The explanation, if a policy matched."""
    decision_source: DecisionSource = "backend_evaluation"
    """Who decided: the service, this process under a lease, a reviewer, or the fail mode."""
    policy_name: str | None = None
    """The policy that matched."""
    kill_switch_active: bool = False
    """Whether the organization's kill switch was active."""
    pause_reason: str | None = None
    """The reason given when the organization was paused."""
    remediation: str | None = None
    """A suggested fix, when a policy matched."""
    docs_url: str | None = None
    """Where this kind of decision is explained."""
    evaluation_mode: str | None = None
    """``enforce`` or ``shadow``."""
    shadow_decision: str | None = None
    """In shadow mode, what enforcing would have decided."""
    estimated_cost_usd: float | None = None
    """The cost of an LLM call; ``None`` when its model has no known price."""
    auto_paused: bool = False
    """Whether the chain paused itself at this action."""
    event_id: str | None = None
    """The recorded event; ``None`` while it has not reached the service."""
    chain_id: str | None = None
    sequence: int | None = None
    """The event's position in its chain, from 1."""
    approval_id: str | None = None
    """The approval that the action needed; keep it to resume waiting after a restart."""
    policy_version: str | None = None
    status: str | None = None
    """``allowed``, ``flagged``, ``awaiting_approval`` or ``denied``."""
    cumulative_metrics: Mapping[str, Any] | None = field(default=None, hash=False)
    idempotency_key: str | None = None
    """The key under which the action was recorded. The same key records it only once."""

    @property
    def allowed(self) -> bool:
        """Whether the action may be carried out."""
        return self.policy_decision in ("allow", "allow_with_flag")

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], **known: Any) -> PolicyDecision:
        """Read an answer of the service. Unknown members are ignored.

        >>> PolicyDecision.from_json({"policy_decision": "deny", "added_later": 1}).allowed
        False
        """
        given = {name: answer[name] for name in _NAMES if answer.get(name) is not None}
        if given.get("policy_decision") not in _OUTCOMES:
            # Fail closed: an unknown decision is not permission.
            given["decision_reason"] = (
                f"the service answered with a decision that this version does not know: "
                f"{given.get('policy_decision')!r}"
            )
            given["policy_decision"] = "deny"
        return cls(**{**given, **known})


_ALLOWED = vars(PolicyDecision("allow", status="allowed"))


def allowed_locally(
    reason: str,
    source: DecisionSource,
    chain_id: str | None,
    policy_version: str | None,
    idempotency_key: str,
) -> PolicyDecision:
    """Return the decision on an action that this process has allowed."""
    decision = object.__new__(PolicyDecision)
    # A frozen dataclass sets its fields one by one, which would be a tenth of a local decision.
    decision.__dict__.update(
        _ALLOWED,
        decision_reason=reason,
        decision_source=source,
        chain_id=chain_id,
        policy_version=policy_version,
        idempotency_key=idempotency_key,
    )
    return decision


_NAMES = tuple(f.name for f in fields(PolicyDecision))
_OUTCOMES = ("allow", "allow_with_flag", "require_approval", "deny")
_STRICTNESS = {outcome: rank for rank, outcome in enumerate(_OUTCOMES)}


def stricter_than_allow(outcome: object) -> bool:
    """Whether a decision, shadow or not, is stricter than ``allow``."""
    return _STRICTNESS.get(cast("str", outcome), 0) > 0
