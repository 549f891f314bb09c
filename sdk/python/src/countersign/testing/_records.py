"""The records of the fake service."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from concurrent.futures import Future
from copy import deepcopy
from datetime import datetime, timedelta, timezone
from typing import Any

from countersign._limits import within
from countersign._safe import SAFE_VERBS
from countersign.testing._evidence import Evidence
from countersign.testing._facts import count, facts_of, no_metrics

__all__ = ["RecordKeeper"]

_POLICY_VERSION = "v0+000000000000"
_FAIL_MODES = {"safe": "allow", "default": "deny"}
_BINDING_KEY = base64.b64encode(bytes(range(32))).decode()
_STATUS = {
    "allow": "allowed",
    "allow_with_flag": "flagged",
    "require_approval": "awaiting_approval",
    "deny": "denied",
}
_SUMMARIZED = ("agent_name", "action_type", "action_name", "policy_decision")
_SEALED = ("agent_name", "action_name", "status", "requested_at", "decided_at")
_ASKED_ABOUT = (
    "chain_id",
    "sequence",
    "agent_name",
    "action_type",
    "action_name",
    "amount_usd",
    "payload",
    "payload_sha256",
    "redactions_sha256",
    "policy_name",
    "policy_version",
    "matched_rules",
)
_RELEASED = ("event_id", "chain_id", "sequence", "policy_name", "matched_rules")
_REVIEWER = {"key_id": "00000000-0000-4000-8000-000000000000", "name": "reviewer"}
_NUMBERS = (
    "approval_timeout_hours",
    "cumulative_financial_threshold_usd",
    "financial_approval_threshold_usd",
)
_LIMITS: dict[str, Any] = {
    "approval_timeout_hours": 24,
    "auto_pause": {"max_duration_seconds": 86400, "max_events": 10000, "max_tokens": 10000000},
    "cumulative_financial_threshold_action": "require_approval",
    "cumulative_financial_threshold_usd": 10000,
    "external_domains_allowlist": None,
    "financial_approval_threshold_usd": 5000,
    "high_risk_agents": [],
}
_DECISION: dict[str, Any] = {
    "policy_decision": "allow",
    "decision_reason": "",
    "decision_source": "backend_evaluation",
    "policy_name": None,
    "kill_switch_active": False,
    "pause_reason": None,
    "remediation": None,
    "docs_url": None,
    "evaluation_mode": "enforce",
    "shadow_decision": None,
    "estimated_cost_usd": None,
    "auto_paused": False,
    "policy_version": _POLICY_VERSION,
}
_GAP: dict[str, Any] = {
    "policy_decision": "allow_with_flag",
    "decision_reason": "the client dropped events while it could not reach the service",
    "policy_name": "dropped_events",
    "remediation": "Find out why the service could not be reached, and raise the client's "
    "offline_buffer_max_events if it may happen again.",
    "docs_url": "docs/rules.md#dropped_events",
}
_UNSENT = dict.fromkeys(("executed_at", "idempotency_key", "metadata", "parent_agent_name"))


class RecordKeeper(Evidence):
    """Chains, events, approvals, receipts and tokens, with deterministic ids and times."""

    def __init__(self, fast_path: bool) -> None:
        super().__init__()
        self.fast_path = fast_path
        self.lease_terms: dict[str, Any] = {
            "milliseconds": 1000,
            "max_actions": 100,
            "actions": sorted(SAFE_VERBS),
            "except_agents": [],
        }
        self.limits: dict[str, Any] = dict(_LIMITS)
        """The organization's limits. A chain can only tighten them."""
        self.act_number = 1
        self._kill_switch: str | None = None
        self.events: list[dict[str, Any]] = []
        self.decided: dict[str, Future[None]] = {}
        self._answers: dict[tuple[str, str], dict[str, Any]] = {}
        self._sent: dict[tuple[str, str], dict[str, Any]] = {}
        self._count = itertools.count(1)
        self._leases = itertools.count(1)
        self._now = datetime(2026, 1, 1, tzinfo=timezone.utc)

    @property
    def kill_switch(self) -> str | None:
        return self._kill_switch

    @kill_switch.setter
    def kill_switch(self, reason: str | None) -> None:
        self._kill_switch = reason
        self.act_number += 1

    def granted(self, chain: dict[str, Any]) -> dict[str, Any]:
        """Return the organization's state, which every answer about a chain contains."""
        lease = None
        if self.fast_path and self.kill_switch is None and chain["status"] == "active":
            lease = {"id": f"lease-{next(self._leases)}", **self.lease_terms}
        return {"act_number": self.act_number, "fast_path_lease": lease, "continued_by": None}

    def _id(self) -> str:
        return f"00000000-0000-4000-8000-{next(self._count):012d}"

    def _time(self) -> str:
        self._now += timedelta(milliseconds=1)
        return _written(self._now)

    # -- chains ----------------------------------------------------------------------

    def open(self, request: dict[str, Any], key: str | None) -> dict[str, Any]:
        earlier = self._answers.get(("open", key or ""))
        if earlier is not None:
            return self._opened(earlier)
        opened = self._time()
        chain = {
            "id": self._id(),
            "name": request.get("name") or request["external_chain_id"],
            "external_chain_id": request.get("external_chain_id"),
            "metadata": request.get("metadata"),
            "environment": request.get("environment") or "production",
            "status": "active",
            "pause_reason": None,
            "started_at": opened,
            "completed_at": None,
            "created_at": opened,
            "updated_at": opened,
            "total_actions": 0,
            "agents_involved": [],
            "cumulative_metrics": no_metrics(),
            "policy_version": _POLICY_VERSION,
            "receipt_id": None,
            "continues": None,
            "continued_by": None,
            "fail_modes": _FAIL_MODES,
            "fast_path": self.fast_path,
            "effective_limits": self._tightest(request.get("policy_config") or {}),
            "organization_id": "default",
            "error": None,
        }
        self.chains[chain["id"]] = chain
        if key:
            self._answers["open", key] = chain
        return self._opened(chain)

    def _tightest(self, asked: dict[str, Any]) -> dict[str, Any]:
        limits = {**self.limits, "chain_timeout_seconds": asked.get("chain_timeout_seconds")}
        for name in _NUMBERS:
            limits[name] = min(limits[name], asked.get(name) or limits[name])
        name = "external_domains_allowlist"
        one, other = limits[name], asked.get(name)
        if one is None or other is None:
            limits[name] = other if one is None else one
        else:
            limits[name] = [d for d in one if any(within(d, wider) for wider in other)]
            limits[name] += [d for d in other if any(within(d, w) and d != w for w in one)]
        name = "high_risk_agents"
        limits[name] = list(dict.fromkeys([*limits[name], *(asked.get(name) or ())]))
        return limits

    def _opened(self, chain: dict[str, Any]) -> dict[str, Any]:
        return {**chain, "binding_key": _BINDING_KEY, **self.granted(chain)}

    def is_other(self, where: str, key: str, content: dict[str, Any]) -> bool:
        """Whether the idempotency key was used for other content before."""
        return self._sent.setdefault((where, key), content) != content

    def is_recorded(self, chain_id: str, action: dict[str, Any]) -> bool:
        """Whether the action was recorded under its idempotency key."""
        return (chain_id, action.get("idempotency_key")) in self._answers

    def record(
        self, chain_id: str, action: dict[str, Any], script: dict[str, Any]
    ) -> dict[str, Any]:
        key = (chain_id, action.get("idempotency_key") or "")
        chain = self.chains[chain_id]
        decision = self._answers.get(key) if key[1] else None
        if decision is None:
            decision = self._answers[key] = self._record(chain, action, script)
        return {**self._now_of(decision), **self.granted(chain)}

    def _now_of(self, decision: dict[str, Any]) -> dict[str, Any]:
        """Return a recorded decision as it is answered now."""
        chain = self.chains[decision["chain_id"]]
        decision = {**decision, "cumulative_metrics": chain["cumulative_metrics"]}
        approval = self.approvals.get(decision["approval_id"] or "")
        if approval is not None and approval["status"] not in ("pending", "escalated"):
            decision = {**decision, **self.release(approval)}
        return self._halted(decision)

    def _halted(self, decision: dict[str, Any]) -> dict[str, Any]:
        """Return a decision as it is while the kill switch is active: a denial."""
        if self.kill_switch is None:
            return decision
        if decision["policy_decision"] != "deny":
            stop = self._stop()
            rules = [*stop["matched_rules"], *decision["matched_rules"]]
            decision = {**decision, **stop, "status": "denied", "matched_rules": rules}
        return {**decision, "kill_switch_active": True, "pause_reason": self.kill_switch}

    def _stop(self) -> dict[str, Any]:
        """Return the decision of the kill switch's rule."""
        stop = {
            "policy_decision": "deny",
            "decision_reason": f"the organization's kill switch is active: {self.kill_switch}",
            "policy_name": "kill_switch",
            "remediation": "Wait until an admin deactivates the kill switch.",
            "docs_url": "docs/rules.md#kill_switch",
        }
        return {**stop, "matched_rules": _matched(stop)}

    def release(self, approval: dict[str, Any]) -> dict[str, Any]:
        """Return the current decision of an approval that is no longer pending."""
        status, comment = approval["status"], approval["comment"]
        cancelled = "the approval was cancelled" if comment else "the chain was completed"
        reason, remediation = {
            "approved": ("a reviewer approved the action", None),
            "denied": ("a reviewer denied the action", None),
            "timed_out": (
                f"nobody decided before the approval timed out at {approval['expires_at']}",
                "Record the action again to ask anew.",
            ),
            "cancelled": (
                f"{cancelled} before anyone decided",
                "Record the action in a new chain to ask anew.",
            ),
        }[status]
        if comment:
            reason += f": {comment}"
        allowed = status == "approved"
        return self._halted(
            {
                **_DECISION,
                **{name: approval[name] for name in _RELEASED},
                "approval_id": approval["id"],
                "policy_decision": "allow" if allowed else "deny",
                "decision_reason": reason,
                "decision_source": "human_approval",
                "remediation": remediation,
                "status": "allowed" if allowed else "denied",
            }
        )

    def _record(
        self, chain: dict[str, Any], action: dict[str, Any], script: dict[str, Any]
    ) -> dict[str, Any]:
        chain_id = chain["id"]
        is_gap = action["action_type"] == "gap"  # which is not an action and has no agent
        if not is_gap:
            chain["total_actions"] += 1
            if action["agent_name"] not in chain["agents_involved"]:
                chain["agents_involved"].append(action["agent_name"])
        decision = {**_DECISION, **script}
        decision.setdefault("matched_rules", _matched(decision))
        if action.get("decision_source") is None:
            decision = self._halted(decision)
        decision.update(
            event_id=self._id(),
            chain_id=chain_id,
            sequence=1 + sum(e["chain_id"] == chain_id for e in self.events),
            approval_id=None,
            status=_STATUS[decision["policy_decision"]],
            fast_path=self.fast_path,
        )
        chain["updated_at"] = self._time()
        event = {
            **_UNSENT,
            **action,
            **facts_of(action),
            **decision,
            "id": decision["event_id"],
            "recorded_at": chain["updated_at"],
        }
        if decision["policy_decision"] == "require_approval":
            decision["approval_id"] = event["approval_id"] = self._ask(event)
        elif decision["policy_decision"] != "deny" and not is_gap:
            count(chain["cumulative_metrics"], event)
        self.events.append(event)
        return decision

    def record_decided(
        self, chain_id: str, event: dict[str, Any], script: dict[str, Any]
    ) -> dict[str, Any]:
        """Record an event that the client decided. A script says what the service would have
        decided; a decision under a lease is never a violation."""
        rule = script if self.kill_switch is None else self._stop()
        stricter = rule.get("policy_decision", "allow")
        violated = stricter != "allow" and event.get("lease_id") is None
        found = {
            **rule,
            "matched_rules": _matched({**_DECISION, **rule}),
            "policy_decision": "allow_with_flag" if violated else "allow",
            "shadow_decision": stricter if violated else None,
        }
        if event["action_type"] == "gap":
            found, violated = {**_GAP, "matched_rules": _matched(_GAP)}, False
        stopped = {
            "kill_switch_active": self.kill_switch is not None,
            "pause_reason": self.kill_switch,
        }
        found.update(stopped, decision_source=event["decision_source"], violation=violated)
        key = (chain_id, event["idempotency_key"])
        if key not in self._answers:
            self._answers[key] = self._record(self.chains[chain_id], event, found)
        answer = {**self._answers[key]}
        # A copy, because later events of the batch are counted before it is answered.
        answer["cumulative_metrics"] = deepcopy(self.chains[chain_id]["cumulative_metrics"])
        return {**answer, **stopped}

    def report(self, event: dict[str, Any], outcome: str, detail: str | None) -> str | None:
        """Record the outcome of an event. Returns the code of the error, if it is refused: an
        outcome is final unless it is unknown, and what was not allowed has none."""
        earlier = event.get("outcome"), event.get("outcome_detail")
        if earlier == (outcome, detail):
            return None
        if earlier[0] is not None and (earlier[0] != "unknown" or outcome == "unknown"):
            return "outcome_conflict"
        if self.chains[event["chain_id"]]["receipt_id"] is not None:
            return "chain_sealed"
        approval = self.approvals.get(event["approval_id"] or "", {})
        if event["status"] == "denied" or approval.get("status", "approved") != "approved":
            return "outcome_conflict"
        event.update(outcome=outcome, outcome_detail=detail, outcome_recorded_at=self._time())
        return None

    def complete(self, chain_id: str, completion: dict[str, Any]) -> dict[str, Any] | None:
        """Seal a chain. Returns None if it was sealed with another outcome."""
        chain = self.chains[chain_id]
        outcome = completion.get("outcome") or "completed"
        if chain["receipt_id"] is None:
            for approval in self.approvals.values():
                if approval["chain_id"] == chain_id:
                    self.decide_approval(approval["id"], "cancelled", None)
            chain["status"] = outcome
            chain["error"] = completion.get("error")
            chain["completed_at"] = chain["updated_at"] = self._time()
            receipt = self._seal(chain)
            chain["receipt_id"] = receipt["receipt_id"]
            chain["effective_limits"] = None
            self.receipts[receipt["receipt_id"]] = receipt
        if chain["status"] != outcome:
            return None
        return {**chain, **self.granted(chain), "receipt": self.receipts[chain["receipt_id"]]}

    def _seal(self, chain: dict[str, Any]) -> dict[str, Any]:
        last = next(reversed(self.receipts.values()), None)
        receipt = {
            "receipt_number": f"CSN-2026-{len(self.receipts) + 1:05d}",
            "receipt_id": self._id(),
            "chain_id": chain["id"],
            "organization": "default",
            "environment": chain["environment"],
            "external_chain_id": chain["external_chain_id"],
            "evaluation_mode": "enforce" if chain["total_actions"] else None,
            "format": "countersign-receipt-v2",
            "summary": f"Chain {chain['name']} {chain['status']}.",
            "started_at": chain["started_at"],
            "completed_at": chain["completed_at"],
            "generated_at": chain["completed_at"],
            "agents_involved": list(chain["agents_involved"]),
            "total_actions": chain["total_actions"],
            "cumulative_metrics": chain["cumulative_metrics"],
            "approvals": [
                {name: approval[name] for name in _SEALED}
                | {"approval_id": approval["id"], "approval_hash": "sha256:" + _digest(approval)}
                for approval in self.approvals.values()
                if approval["chain_id"] == chain["id"]
            ],
            "events_summary": self._summarize(chain),
            "events_digest": "sha256:"
            + _digest([e for e in self.events if e["chain_id"] == chain["id"]]),
            "key_id": "mk_000000000000",
            "metadata": chain["metadata"],
            "policy_version": _POLICY_VERSION,
            "previous_receipt_hash": None if last is None else "sha256:" + _digest(last),
        }
        # Well-formed but not a signature: the fake service has no signing key.
        return {**receipt, "signature": "hmac-sha256:" + _digest(receipt)}

    def _summarize(self, chain: dict[str, Any]) -> list[dict[str, Any]]:
        summary: dict[tuple[Any, ...], dict[str, Any]] = {}
        for event in self.events:
            if event["chain_id"] != chain["id"]:
                continue
            same = {name: event[name] for name in _SUMMARIZED}
            if event["action_type"] == "gap":
                same["agent_name"] = None
            at = event["recorded_at"]
            element = summary.setdefault(
                tuple(same.values()), {**same, "count": 0, "first_at": at, "last_at": at}
            )
            element["count"] += 1
            element["last_at"] = at
        if chain["status"] == "failed":
            failure = dict.fromkeys(_SUMMARIZED) | {
                "action_type": "chain_failure",
                "action_name": (chain["error"] or {}).get("type"),
            }
            at = chain["completed_at"]
            summary["failure",] = {**failure, "count": 1, "first_at": at, "last_at": at}
        return list(summary.values())

    # -- approvals -------------------------------------------------------------------

    def _ask(self, event: dict[str, Any]) -> str:
        approval_id = self._id()
        requested = self._time()
        hours = self.chains[event["chain_id"]]["effective_limits"]["approval_timeout_hours"]
        redactions = event.get("redactions")
        self.decided[approval_id] = Future()
        self.approvals[approval_id] = {
            **{name: event[name] for name in _ASKED_ABOUT},
            "id": approval_id,
            "event_id": event["id"],
            "redactions": redactions,
            "unbound": [p for p, digest in (redactions or {}).items() if digest is None],
            "reason": event["decision_reason"],
            "approvers": [],
            "two_person": False,
            "votes": 0,
            "status": "pending",
            "requested_at": requested,
            "escalates_at": _written(self._now + timedelta(hours=hours / 2)),
            "expires_at": _written(self._now + timedelta(hours=hours)),
            "escalated_at": None,
            "decided_at": None,
            "comment": None,
            "decision_notes": None,
            "denied_by": None,
            "reviewer": None,
            "fallback_approvers": [],  # only an organization's own
            "voters": [],
        }
        return approval_id

    def decide_approval(self, approval_id: str, status: str, comment: str | None) -> None:
        approval = self.approvals[approval_id]
        if approval["status"] not in ("pending", "escalated"):
            return
        approval.update(
            status=status, comment=comment, decision_notes=comment, decided_at=self._time()
        )
        if status in ("approved", "denied"):
            approval["reviewer"] = _REVIEWER
        if status == "approved":
            event = next(e for e in self.events if e["id"] == approval["event_id"])
            count(self.chains[approval["chain_id"]]["cumulative_metrics"], event)
        self.decided[approval_id].set_result(None)


def _matched(decision: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the list of matched rules with the one that a decision names, if it names one."""
    if decision.get("policy_name") is None:
        return []
    return [
        {
            "decision": decision["policy_decision"],
            "name": decision["policy_name"],
            "reason": decision["decision_reason"],
            "shadow": False,
        }
    ]


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _digest(record: Any) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
