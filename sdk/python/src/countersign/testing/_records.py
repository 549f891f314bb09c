"""What a fake service keeps."""

from __future__ import annotations

import hashlib
import itertools
import json
from concurrent.futures import Future
from datetime import datetime, timedelta, timezone
from typing import Any

from countersign.testing._evidence import Evidence

__all__ = ["RecordKeeper"]

_POLICY_VERSION = "v0+000000000000"
_FAIL_MODES = {
    "financial": "deny",
    "external_communication": "deny",
    "data_modification": "deny",
    "default": "allow",
}
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
    """Chains, events, approvals, receipts and tokens, with ids and times that repeat."""

    def __init__(self, fast_path: bool) -> None:
        super().__init__()
        self.fast_path = fast_path
        self.kill_switch: str | None = None
        self.chains: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.decided: dict[str, Future[None]] = {}
        self._answers: dict[tuple[str, str], dict[str, Any]] = {}
        self._count = itertools.count(1)
        self._now = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def _id(self) -> str:
        return f"00000000-0000-4000-8000-{next(self._count):012d}"

    def _time(self) -> str:
        self._now += timedelta(milliseconds=1)
        return _written(self._now)

    # -- chains ----------------------------------------------------------------------

    def open(self, request: dict[str, Any], key: str | None) -> dict[str, Any]:
        earlier = self._answers.get(("open", key or ""))
        if earlier is not None:
            return earlier
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
            "error": None,
        }
        self.chains[chain["id"]] = chain
        if key:
            self._answers["open", key] = chain
        return chain

    def record(
        self, chain_id: str, action: dict[str, Any], script: dict[str, Any]
    ) -> dict[str, Any]:
        key = (chain_id, action.get("idempotency_key") or "")
        if key[1] and key in self._answers:
            return self._answers[key]
        chain = self.chains[chain_id]
        chain["total_actions"] += 1
        if action["agent_name"] not in chain["agents_involved"]:
            chain["agents_involved"].append(action["agent_name"])
        decision = {"policy_decision": "allow", "kill_switch_active": False, **_DECISION, **script}
        if self.kill_switch is not None:
            decision.update(
                policy_decision="deny", kill_switch_active=True, pause_reason=self.kill_switch
            )
        decision.update(
            event_id=self._id(),
            chain_id=chain_id,
            sequence=chain["total_actions"],
            approval_id=None,
            status=_STATUS[decision["policy_decision"]],
            cumulative_metrics=_METRICS,
        )
        event = {**action, **decision, "id": decision["event_id"], "recorded_at": self._time()}
        if decision["policy_decision"] == "require_approval":
            decision["approval_id"] = event["approval_id"] = self._ask(event)
        self.events.append(event)
        self._answers[key] = decision
        return decision

    def record_decided(
        self, chain_id: str, event: dict[str, Any], script: dict[str, Any]
    ) -> dict[str, Any]:
        """Record what a client decided by itself; a script says what the service thinks."""
        stricter = script.get("policy_decision", "allow")
        if self.kill_switch is not None:
            stricter = "deny"
        found = {
            **script,
            "policy_decision": event["policy_decision"],
            "decision_source": event["decision_source"],
            "shadow_decision": None if stricter == "allow" else stricter,
            "violation": stricter != "allow",
        }
        switch, self.kill_switch = self.kill_switch, None
        decision = self.record(chain_id, event, found)
        self.kill_switch = switch
        decision["kill_switch_active"] = switch is not None
        return decision

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
            self.receipts[receipt["receipt_id"]] = receipt
        return {**chain, "receipt": self.receipts[chain["receipt_id"]]}

    def _seal(self, chain: dict[str, Any]) -> dict[str, Any]:
        last = next(reversed(self.receipts.values()), None)
        receipt = {
            "receipt_number": f"CSN-2026-{len(self.receipts) + 1:05d}",
            "receipt_id": self._id(),
            "chain_id": chain["id"],
            "organization": "default",
            "summary": f"Chain {chain['name']} {chain['status']}.",
            "started_at": chain["started_at"],
            "completed_at": chain["completed_at"],
            "generated_at": chain["completed_at"],
            "agents_involved": list(chain["agents_involved"]),
            "total_actions": chain["total_actions"],
            "cumulative_metrics": _METRICS,
            "approvals": [],
            "events_summary": [],
            "metadata": chain["metadata"],
            "policy_version": _POLICY_VERSION,
            "previous_receipt_hash": None if last is None else "sha256:" + _digest(last),
        }
        # Of the right form, and no signature: a fake has no key to keep.
        return {**receipt, "signature": "hmac-sha256:" + _digest(receipt)}

    # -- approvals -------------------------------------------------------------------

    def _ask(self, event: dict[str, Any]) -> str:
        approval_id = self._id()
        requested = self._time()
        self.decided[approval_id] = Future()
        self.approvals[approval_id] = {
            "id": approval_id,
            "chain_id": event["chain_id"],
            "event_id": event["id"],
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
