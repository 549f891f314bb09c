"""Verification results of the fake service."""

from __future__ import annotations

from typing import Any

__all__ = ["Evidence"]

_CHECKS = {
    "receipt": (
        "signature",
        "columns",
        "sequence",
        "previous_link",
        "head",
        "next_link",
        "chain",
        "events_digest",
        "approvals",
    ),
    "approval": ("record", "payload", "signature", "chain_entry", "receipt"),
}


class Evidence:
    """Verifies receipts and approvals, and issues public tokens."""

    def __init__(self) -> None:
        self.chains: dict[str, dict[str, Any]] = {}
        self.approvals: dict[str, dict[str, Any]] = {}
        self.receipts: dict[str, dict[str, Any]] = {}
        self.tokens: dict[str, dict[str, Any]] = {}
        self._issued: dict[str, str] = {}  # token ids by idempotency key

    def _id(self) -> str:
        raise NotImplementedError

    def _time(self) -> str:
        raise NotImplementedError

    def receipt(self, name: str) -> dict[str, Any] | None:
        """Return the receipt with this id or number."""
        return self.receipts.get(name) or next(
            (r for r in self.receipts.values() if r["receipt_number"] == name), None
        )

    def verification(self, kind: str, artifact_id: str) -> dict[str, Any] | None:
        found = self.receipt(artifact_id) if kind == "receipt" else self.approvals.get(artifact_id)
        if found is None:
            return None
        undecided = found.get("status") in ("pending", "escalated")
        signed = found.get("status") in ("approved", "denied")  # only people's decisions are
        valid = {"status": "valid", "reason_code": "ok"}
        unanchored = {"status": "not_anchored", "reason_code": None}
        signature = {
            "status": "valid" if signed else "not_applicable",
            "key_status": "trusted" if signed else "not_applicable",
            "reason_code": "ok" if signed else None,
        }
        return {
            "verification_version": "2",
            "artifact": self._artifact(kind, found),
            "verification": {
                "overall_status": "indeterminate" if undecided else "verified",
                "reason_code": "not_decided" if undecided else "ok",
                "integrity": valid,
                "asymmetric_signature": signature,
                "timestamp_anchors": {"tsa": unanchored, "opentimestamps": unanchored},
                "evidence_chain": {"status": "not_applicable", "reason_code": "not_decided"}
                if undecided
                else valid,
                "checks": self._checks(kind, found, undecided, signed),
                "verified_at": self._time(),
            },
            "context": _context(kind, found),
            "capabilities": {
                "can_view_identity_context": False,
                "can_download_admin_evidence": False,
            },
        }

    def _artifact(self, kind: str, found: dict[str, Any]) -> dict[str, Any]:
        chain = self.chains[found["chain_id"]]
        artifact = {
            "type": kind,
            "version": "1",
            "id": found["receipt_id" if kind == "receipt" else "id"],
            "created_at": found["generated_at" if kind == "receipt" else "requested_at"],
            "chain": {
                "id": chain["id"],
                "external_id": chain["external_chain_id"],
                "name": chain["name"],
            },
        }
        if kind == "receipt":
            artifact.update({name: found[name] for name in ("receipt_number", "generated_at")})
        return artifact

    def _checks(
        self, kind: str, found: dict[str, Any], undecided: bool, signed: bool
    ) -> list[dict[str, str]]:
        applicable = dict.fromkeys(_CHECKS[kind], True)
        if kind == "receipt":
            applicable["next_link"] = found is not next(reversed(self.receipts.values()))
        else:
            sealed = self.chains[found["chain_id"]]["receipt_id"] is not None
            applicable.update(
                signature=signed, chain_entry=not undecided, receipt=sealed and not undecided
            )
        return [
            {"name": name, "status": "pass" if applies else "not_applicable"}
            for name, applies in applicable.items()
        ]

    def public_verification(self, text: str) -> dict[str, Any] | None:
        token = next((t for t in self.tokens.values() if t["token"] == text), None)
        if token is None or token["status"] != "active":
            return None
        full = self.verification(token["artifact_type"], token["artifact_id"])
        assert full is not None
        verdict = full["verification"]
        signature = verdict["asymmetric_signature"]
        return {
            "verification_version": "2",
            "artifact_type": token["artifact_type"],
            "overall_status": verdict["overall_status"],
            "integrity": {"status": verdict["integrity"]["status"]},
            "asymmetric_signature": {k: signature[k] for k in ("status", "key_status")},
            "timestamp_anchors": {"status": "not_anchored"},
            "verified_at": verdict["verified_at"],
        }

    def issue(self, request: dict[str, Any], key: str | None) -> tuple[dict[str, Any] | None, bool]:
        """Return the token, and whether it is new: the plaintext is shown once."""
        if self.verification(request["artifact_type"], request["artifact_id"]) is None:
            return None, False
        if key in self._issued:
            return self.tokens[self._issued[key]], False
        token_id = self._id()
        if key is not None:
            self._issued[key] = token_id
        text = f"cvt_{int(token_id[-12:]):043d}"
        self.tokens[token_id] = token = {
            "token_id": token_id,
            "id": token_id,
            "organization_id": "default",
            "artifact_type": request["artifact_type"],
            "artifact_id": request["artifact_id"],
            "status": "active",
            "created_at": self._time(),
            "expires_at": request.get("expires_at"),
            "token": text,
            "public_path": f"/public/v2/verify/{text}",
        }
        return token, True

    def revoke(self, token_id: str, reason: str | None) -> dict[str, Any] | None:
        token = self.tokens.get(token_id)
        if token is not None and token["status"] == "active":
            token.update(status="revoked", revoked_at=self._time(), revocation_reason=reason)
        return token


def _context(kind: str, found: dict[str, Any]) -> dict[str, Any]:
    if kind == "receipt":
        return {"receipt_integrity_semantics": "server_attested"}
    undecided = found["status"] in ("pending", "escalated")
    return {
        "approval_decision": {
            "status": found["status"],
            "outcome": None if undecided else found["status"],
            **{name: found[name] for name in ("policy_name", "requested_at", "decided_at")},
        },
        "action": {name: found[name] for name in ("agent_name", "action_type", "action_name")},
    }
