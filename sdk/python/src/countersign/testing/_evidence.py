"""Verification results of the fake service."""

from __future__ import annotations

from typing import Any

__all__ = ["Evidence"]


class Evidence:
    """Verifies receipts and approvals, and issues public tokens."""

    def __init__(self) -> None:
        self.approvals: dict[str, dict[str, Any]] = {}
        self.receipts: dict[str, dict[str, Any]] = {}
        self.tokens: dict[str, dict[str, Any]] = {}
        self._issued: dict[str, str] = {}  # token ids by idempotency key

    def _id(self) -> str:
        raise NotImplementedError

    def _time(self) -> str:
        raise NotImplementedError

    def verification(self, kind: str, artifact_id: str) -> dict[str, Any] | None:
        found = (self.receipts if kind == "receipt" else self.approvals).get(artifact_id)
        if found is None:
            return None
        undecided = found.get("status") in ("pending", "escalated")
        valid = {"status": "valid", "reason_code": "ok"}
        unanchored = {"status": "not_anchored", "reason_code": "anchoring_off"}
        signature = {"status": "not_applicable", "key_status": "not_applicable", "reason_code": ""}
        if kind == "approval":
            signature = {"status": "valid", "key_status": "trusted", "reason_code": "ok"}
        return {
            "verification_version": "2",
            "artifact": {"type": kind, "version": "1", "id": artifact_id},
            "verification": {
                "overall_status": "indeterminate" if undecided else "verified",
                "reason_code": "undecided" if undecided else "ok",
                "integrity": valid,
                "asymmetric_signature": signature,
                "timestamp_anchors": {"tsa": unanchored, "opentimestamps": unanchored},
                "evidence_chain": valid,
                "checks": [{"name": "signature", "status": "pass"}],
                "verified_at": self._time(),
            },
            "context": {},
            "capabilities": {
                "can_view_identity_context": False,
                "can_download_admin_evidence": False,
            },
        }

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

    def issue(self, request: dict[str, Any], key: str | None) -> dict[str, Any] | None:
        if self.verification(request["artifact_type"], request["artifact_id"]) is None:
            return None
        if key in self._issued:
            token = self.tokens[self._issued[key]]
            # The plaintext is shown once.
            return {name: token[name] for name in token if name not in ("token", "public_path")}
        token_id = self._id()
        if key is not None:
            self._issued[key] = token_id
        text = f"cvt_{int(token_id[-12:]):043d}"
        self.tokens[token_id] = token = {
            "token_id": token_id,
            "artifact_type": request["artifact_type"],
            "artifact_id": request["artifact_id"],
            "status": "active",
            "created_at": self._time(),
            "expires_at": request.get("expires_at"),
            "token": text,
            "public_path": f"/public/v2/verify/{text}",
        }
        return dict(token)

    def revoke(self, token_id: str, reason: str | None) -> dict[str, Any] | None:
        token = self.tokens.get(token_id)
        if token is not None and token["status"] == "active":
            token.update(status="revoked", revoked_at=self._time(), revocation_reason=reason)
        return token
