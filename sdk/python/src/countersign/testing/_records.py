"""The records of the fake service."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from concurrent.futures import Future
from datetime import datetime, timedelta, timezone
from typing import Any

from countersign._limits import within
from countersign._safe import SAFE_VERBS
from countersign.testing._evidence import Evidence

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
_METRICS = {
    "financial_exposure_usd": 0,
    "external_communications_count": 0,
    "records_modified_count": 0,
    "external_domains_contacted": [],
    "estimated_cost_usd": 0,
    "unpriced_calls_count": 0,
}
_SUMMARIZED = ("agent_name", "action_type", "action_name", "policy_decision")
_SEALED = ("agent_name", "action_name", "status", "requested_at", "decided_at")
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
    "decision_reason": "",
    "decision_source": "backend_evaluation",
    "policy_name": None,
    "pause_reason": None,
    "remediation": None,
    "docs_url": None,
    "evaluation_mode": "enforce",
    "shadow_decision": None,
    "estimated_cost_usd": None,
    "auto_paused": False,
    "policy_version": _POLICY_VERSION,
}


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
        return {"act_number": self.act_number, "fast_path_lease": lease}

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
        chain = {
            "id": self._id(),
            "name": request.get("name") or request["external_chain_id"],
            "external_chain_id": request.get("external_chain_id"),
            "metadata": request.get("metadata"),
            "environment": request.get("environment", "production"),
            "status": "active",
            "started_at": self._time(),
            "completed_at": None,
            "total_actions": 0,
            "agents_involved": [],
            "cumulative_metrics": _METRICS,
            "policy_version": _POLICY_VERSION,
            "receipt_id": None,
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
        approval = self.approvals.get(decision["approval_id"] or "")
        if approval is not None and approval["status"] not in ("pending", "escalated"):
            decision = {**decision, **self.release(approval)}
        if self.kill_switch is None or decision["policy_decision"] == "deny":
            return decision
        return {**decision, **self._stop_decision()}

    def _stop_decision(self) -> dict[str, Any]:
        return {
            "policy_decision": "deny",
            "kill_switch_active": True,
            "pause_reason": self.kill_switch,
            "status": "denied",
        }

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
        decision = {
            "policy_decision": "allow" if allowed else "deny",
            "decision_reason": reason,
            "decision_source": "human_approval",
            "policy_name": approval["policy_name"],
            "kill_switch_active": False,
            "pause_reason": None,
            "remediation": remediation,
            "docs_url": None,
            "status": "allowed" if allowed else "denied",
        }
        return decision if self.kill_switch is None else {**decision, **self._stop_decision()}

    def _record(
        self, chain: dict[str, Any], action: dict[str, Any], script: dict[str, Any]
    ) -> dict[str, Any]:
        chain_id = chain["id"]
        if action["action_type"] != "gap":  # a gap is not an action and has no agent
            chain["total_actions"] += 1
            if action["agent_name"] not in chain["agents_involved"]:
                chain["agents_involved"].append(action["agent_name"])
        decision = {"policy_decision": "allow", "kill_switch_active": False, **_DECISION, **script}
        decided_by_client = action.get("decision_source") is not None
        if self.kill_switch is not None and not decided_by_client:
            decision.update(self._stop_decision())
        decision.update(
            event_id=self._id(),
            chain_id=chain_id,
            sequence=1 + sum(e["chain_id"] == chain_id for e in self.events),
            approval_id=None,
            status=_STATUS[decision["policy_decision"]],
            cumulative_metrics=_METRICS,
        )
        event = {**action, **decision, "id": decision["event_id"], "recorded_at": self._time()}
        if decision["policy_decision"] == "require_approval":
            decision["approval_id"] = event["approval_id"] = self._ask(event)
        self.events.append(event)
        return decision

    def record_decided(
        self, chain_id: str, event: dict[str, Any], script: dict[str, Any]
    ) -> dict[str, Any]:
        """Record an event that the client decided. A script says what the service would have
        decided; a decision under a lease is never a violation."""
        stricter = script.get("policy_decision", "allow")
        if self.kill_switch is not None:
            stricter = "deny"
        violated = stricter != "allow" and event.get("lease_id") is None
        found = {
            **script,
            "policy_decision": "allow_with_flag" if violated else event["policy_decision"],
            "decision_source": event["decision_source"],
            "shadow_decision": stricter if violated else None,
            "violation": violated,
        }
        key = (chain_id, event["idempotency_key"])
        if key not in self._answers:
            self._answers[key] = self._record(self.chains[chain_id], event, found)
        told: dict[str, Any] = {"kill_switch_active": self.kill_switch is not None}
        if self.kill_switch is not None:
            told["pause_reason"] = self.kill_switch
        return {**self._answers[key], **told}

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

    def complete(self, chain_id: str, completion: dict[str, Any]) -> dict[str, Any]:
        chain = self.chains[chain_id]
        if chain["receipt_id"] is None:
            for approval in self.approvals.values():
                if approval["chain_id"] == chain_id:
                    self.decide_approval(approval["id"], "cancelled", None)
            chain["status"] = completion.get("outcome", "completed")
            chain["error"] = completion.get("error")
            chain["completed_at"] = self._time()
            receipt = self._seal(chain)
            chain["receipt_id"] = receipt["receipt_id"]
            chain["effective_limits"] = None
            self.receipts[receipt["receipt_id"]] = receipt
        return {**chain, "receipt": self.receipts[chain["receipt_id"]]}

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
            "cumulative_metrics": _METRICS,
            "approvals": [
                {name: approval[name] for name in _SEALED}
                | {"approval_id": approval["id"], "approval_hash": "sha256:" + _digest(approval)}
                for approval in self.approvals.values()
                if approval["chain_id"] == chain["id"]
            ],
            "events_summary": self._summarize(chain),
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
        self.decided[approval_id] = Future()
        self.approvals[approval_id] = {
            "id": approval_id,
            "chain_id": event["chain_id"],
            "event_id": event["id"],
            "sequence": event["sequence"],
            "agent_name": event["agent_name"],
            "action_type": event["action_type"],
            "action_name": event["action_name"],
            "payload": event["payload"],
            "reason": event["decision_reason"],
            "policy_name": event["policy_name"],
            "status": "pending",
            "requested_at": requested,
            "escalates_at": _written(self._now + timedelta(hours=12)),
            "expires_at": _written(self._now + timedelta(hours=24)),
            "escalated_at": None,
            "decided_at": None,
            "comment": None,
        }
        return approval_id

    def decide_approval(self, approval_id: str, status: str, comment: str | None) -> None:
        approval = self.approvals[approval_id]
        if approval["status"] in ("pending", "escalated"):
            approval.update(status=status, comment=comment, decided_at=self._time())
            self.decided[approval_id].set_result(None)


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
