"""The results of verification. Unknown members of an answer are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "AnchorStatus",
    "CheckStatus",
    "PublicVerificationResult",
    "ReceiptVerifyResponse",
    "SignatureStatus",
    "VerificationCheck",
    "VerificationResult",
]


@dataclass(frozen=True)
class ReceiptVerifyResponse:
    """The result of the public check of a receipt."""

    valid: bool
    """False when the receipt was changed after it was signed."""
    receipt_number: str
    chain_id: str
    generated_at: str


@dataclass(frozen=True)
class CheckStatus:
    """The status of one aspect: ``valid``, ``invalid``, ``missing`` or ``not_applicable``."""

    status: str
    reason_code: str | None = None


@dataclass(frozen=True)
class SignatureStatus:
    """The status of an Ed25519 signature and of its key."""

    status: str
    key_status: str
    """``trusted``, ``retired``, ``revoked``, ``not_evaluated`` or ``not_applicable``."""
    reason_code: str | None = None


@dataclass(frozen=True)
class AnchorStatus:
    """A timestamp anchor: ``verified``, ``pending``, ``failed`` or ``not_anchored``."""

    status: str
    reason_code: str | None = None


@dataclass(frozen=True)
class VerificationCheck:
    """One check: ``pass``, ``fail``, ``not_applicable`` or ``not_checked``."""

    name: str
    status: str


@dataclass(frozen=True)
class VerificationResult:
    """The authenticated verification of an approval or a receipt."""

    overall_status: str
    """``verified``, ``failed`` or ``indeterminate``."""
    reason_code: str | None
    integrity: CheckStatus
    asymmetric_signature: SignatureStatus
    tsa: AnchorStatus
    """The anchor of a timestamp authority; it never changes the signature's status."""
    opentimestamps: AnchorStatus
    evidence_chain: CheckStatus
    checks: tuple[VerificationCheck, ...]
    verified_at: str
    artifact: Mapping[str, Any] = field(hash=False)
    context: Mapping[str, Any] = field(hash=False)
    capabilities: Mapping[str, Any] = field(hash=False)
    admin_context: Mapping[str, Any] | None = field(default=None, hash=False)
    """Only for admins; ``None`` for members."""
    verification_version: str = "2"

    @property
    def verified(self) -> bool:
        """Whether everything that was checked is authentic."""
        return self.overall_status == "verified"


@dataclass(frozen=True)
class PublicVerificationResult:
    """The minimized result that a public token shows."""

    artifact_type: str
    overall_status: str
    integrity: CheckStatus
    asymmetric_signature: SignatureStatus
    timestamp_anchors: AnchorStatus
    verified_at: str
    verification_version: str = "2"

    @property
    def verified(self) -> bool:
        """Whether everything that was checked is authentic."""
        return self.overall_status == "verified"


def read_receipt_check(answer: Mapping[str, Any]) -> ReceiptVerifyResponse:
    return ReceiptVerifyResponse(
        # Fail closed: anything but true is not valid.
        valid=answer.get("valid") is True,
        receipt_number=_text(answer, "receipt_number"),
        chain_id=_text(answer, "chain_id"),
        generated_at=_text(answer, "generated_at"),
    )


def read_result(answer: Mapping[str, Any]) -> VerificationResult:
    verdict = _part(answer, "verification")
    anchors = _part(verdict, "timestamp_anchors")
    checks = verdict.get("checks")
    return VerificationResult(
        overall_status=_text(verdict, "overall_status", "indeterminate"),
        reason_code=verdict.get("reason_code"),
        integrity=_check(_part(verdict, "integrity")),
        asymmetric_signature=_signature(_part(verdict, "asymmetric_signature")),
        tsa=_anchor(_part(anchors, "tsa")),
        opentimestamps=_anchor(_part(anchors, "opentimestamps")),
        evidence_chain=_check(_part(verdict, "evidence_chain")),
        checks=tuple(
            VerificationCheck(_text(c, "name"), _text(c, "status", "not_checked"))
            for c in (checks if isinstance(checks, list) else ())
            if isinstance(c, Mapping)
        ),
        verified_at=_text(verdict, "verified_at"),
        artifact=_part(answer, "artifact"),
        context=_part(answer, "context"),
        capabilities=_part(answer, "capabilities"),
        admin_context=answer.get("admin_context"),
        verification_version=_text(answer, "verification_version"),
    )


def read_public(answer: Mapping[str, Any]) -> PublicVerificationResult:
    return PublicVerificationResult(
        artifact_type=_text(answer, "artifact_type"),
        overall_status=_text(answer, "overall_status", "indeterminate"),
        integrity=_check(_part(answer, "integrity")),
        asymmetric_signature=_signature(_part(answer, "asymmetric_signature")),
        timestamp_anchors=_anchor(_part(answer, "timestamp_anchors")),
        verified_at=_text(answer, "verified_at"),
        verification_version=_text(answer, "verification_version"),
    )


def _text(record: Mapping[str, Any], name: str, otherwise: str = "") -> str:
    value = record.get(name)
    return value if isinstance(value, str) else otherwise


def _part(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = record.get(name)
    return value if isinstance(value, Mapping) else {}


def _check(part: Mapping[str, Any]) -> CheckStatus:
    return CheckStatus(_text(part, "status", "missing"), part.get("reason_code"))


def _anchor(part: Mapping[str, Any]) -> AnchorStatus:
    return AnchorStatus(_text(part, "status", "not_anchored"), part.get("reason_code"))


def _signature(part: Mapping[str, Any]) -> SignatureStatus:
    return SignatureStatus(
        _text(part, "status", "missing"),
        _text(part, "key_status", "not_evaluated"),
        part.get("reason_code"),
    )
