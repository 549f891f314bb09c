"""Verification of receipts and approvals, and the tokens that share it.

Every helper is async and has a twin for sync code whose name ends in ``_sync``. Each uses the
configuration of :func:`countersign.init` unless it is given one. What cannot be asked raises
``BackendUnavailableError``; what the service does not know, or will not show, ``APIError``.
No exception repeats a token.
"""

from __future__ import annotations

import warnings

from countersign._asking import ask, ask_sync, segment
from countersign._client import Client
from countersign._config import ChainConfig
from countersign._results import (
    AnchorStatus,
    CheckStatus,
    PublicVerificationResult,
    ReceiptVerifyResponse,
    SignatureStatus,
    VerificationCheck,
    VerificationResult,
    read_public,
    read_receipt_check,
    read_result,
)

__all__ = [
    "AnchorStatus",
    "CheckStatus",
    "PublicVerificationResult",
    "ReceiptVerifyResponse",
    "SignatureStatus",
    "VerificationCheck",
    "VerificationResult",
    "verify_approval_v2",
    "verify_approval_v2_sync",
    "verify_public_token",
    "verify_public_token_sync",
    "verify_receipt",
    "verify_receipt_sync",
    "verify_receipt_v2",
    "verify_receipt_v2_sync",
]


async def verify_receipt(
    receipt_id: str, *, config: ChainConfig | Client | None = None
) -> ReceiptVerifyResponse:
    """Check a receipt's signature by the public route. Deprecated: use
    :func:`verify_receipt_v2`, which says what was looked at."""
    _deprecate("verify_receipt")
    return read_receipt_check(
        await ask(config, "GET", f"/v1/receipts/{segment(receipt_id)}/verify", public=True)
    )


def verify_receipt_sync(
    receipt_id: str, *, config: ChainConfig | Client | None = None
) -> ReceiptVerifyResponse:
    """:func:`verify_receipt` for code without an event loop."""
    _deprecate("verify_receipt_sync")
    return read_receipt_check(
        ask_sync(config, "GET", f"/v1/receipts/{segment(receipt_id)}/verify", public=True)
    )


async def verify_approval_v2(
    approval_id: str, *, config: ChainConfig | Client | None = None
) -> VerificationResult:
    """Verify an approval: its integrity, its signature, the key's standing, its anchors."""
    path = f"/v1/verification/v2/approvals/{segment(approval_id)}"
    return read_result(await ask(config, "GET", path))


def verify_approval_v2_sync(
    approval_id: str, *, config: ChainConfig | Client | None = None
) -> VerificationResult:
    """:func:`verify_approval_v2` for code without an event loop."""
    path = f"/v1/verification/v2/approvals/{segment(approval_id)}"
    return read_result(ask_sync(config, "GET", path))


async def verify_receipt_v2(
    receipt_id: str, *, config: ChainConfig | Client | None = None
) -> VerificationResult:
    """Verify a receipt: its signature and its place in the organization's hash chain."""
    path = f"/v1/verification/v2/receipts/{segment(receipt_id)}"
    return read_result(await ask(config, "GET", path))


def verify_receipt_v2_sync(
    receipt_id: str, *, config: ChainConfig | Client | None = None
) -> VerificationResult:
    """:func:`verify_receipt_v2` for code without an event loop."""
    path = f"/v1/verification/v2/receipts/{segment(receipt_id)}"
    return read_result(ask_sync(config, "GET", path))


async def verify_public_token(
    opaque_token: str, *, config: ChainConfig | Client | None = None
) -> PublicVerificationResult:
    """The result that a public token unlocks. The API key is not sent."""
    path = f"/public/v2/verify/{segment(opaque_token)}"
    return read_public(await ask(config, "GET", path, public=True))


def verify_public_token_sync(
    opaque_token: str, *, config: ChainConfig | Client | None = None
) -> PublicVerificationResult:
    """:func:`verify_public_token` for code without an event loop."""
    path = f"/public/v2/verify/{segment(opaque_token)}"
    return read_public(ask_sync(config, "GET", path, public=True))


def _deprecate(name: str) -> None:
    warnings.warn(
        f"{name} is deprecated: use verify_receipt_v2, or verify_public_token to share a result",
        DeprecationWarning,
        stacklevel=3,
    )
