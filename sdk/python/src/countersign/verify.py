"""Verification of receipts and approvals.

Every function is async and has a sync variant whose name ends in ``_sync``. Each uses the
configuration of :func:`countersign.init` unless ``config`` is passed. They raise
``BackendUnavailableError`` if the service is unreachable, and ``APIError`` if it does not know the
artifact or does not show it. No exception contains a token.
"""

from __future__ import annotations

import warnings

from countersign._client import Client
from countersign._config import ChainConfig
from countersign._request import path_segment, request, request_sync
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
    """Check a receipt without authentication. Deprecated: use :func:`verify_receipt_v2`, which
    reports each check."""
    _deprecate("verify_receipt")
    return read_receipt_check(
        await request(config, "GET", f"/v1/receipts/{path_segment(receipt_id)}/verify", public=True)
    )


def verify_receipt_sync(
    receipt_id: str, *, config: ChainConfig | Client | None = None
) -> ReceiptVerifyResponse:
    """:func:`verify_receipt` for code without an event loop."""
    _deprecate("verify_receipt_sync")
    return read_receipt_check(
        request_sync(config, "GET", f"/v1/receipts/{path_segment(receipt_id)}/verify", public=True)
    )


async def verify_approval_v2(
    approval_id: str, *, config: ChainConfig | Client | None = None
) -> VerificationResult:
    """Verify an approval: its integrity, signature, key and anchors."""
    path = f"/v1/verification/v2/approvals/{path_segment(approval_id)}"
    return read_result(await request(config, "GET", path))


def verify_approval_v2_sync(
    approval_id: str, *, config: ChainConfig | Client | None = None
) -> VerificationResult:
    """:func:`verify_approval_v2` for code without an event loop."""
    path = f"/v1/verification/v2/approvals/{path_segment(approval_id)}"
    return read_result(request_sync(config, "GET", path))


async def verify_receipt_v2(
    receipt_id: str, *, config: ChainConfig | Client | None = None
) -> VerificationResult:
    """Verify a receipt: its signature, its place in the ledger, its events and approvals."""
    path = f"/v1/verification/v2/receipts/{path_segment(receipt_id)}"
    return read_result(await request(config, "GET", path))


def verify_receipt_v2_sync(
    receipt_id: str, *, config: ChainConfig | Client | None = None
) -> VerificationResult:
    """:func:`verify_receipt_v2` for code without an event loop."""
    path = f"/v1/verification/v2/receipts/{path_segment(receipt_id)}"
    return read_result(request_sync(config, "GET", path))


async def verify_public_token(
    opaque_token: str, *, config: ChainConfig | Client | None = None
) -> PublicVerificationResult:
    """Return the result that a public token shows. The API key is not sent."""
    path = f"/public/v2/verify/{path_segment(opaque_token)}"
    return read_public(await request(config, "GET", path, public=True))


def verify_public_token_sync(
    opaque_token: str, *, config: ChainConfig | Client | None = None
) -> PublicVerificationResult:
    """:func:`verify_public_token` for code without an event loop."""
    path = f"/public/v2/verify/{path_segment(opaque_token)}"
    return read_public(request_sync(config, "GET", path, public=True))


def _deprecate(name: str) -> None:
    warnings.warn(
        f"{name} is deprecated: use verify_receipt_v2, or verify_public_token to share a result",
        DeprecationWarning,
        stacklevel=3,
    )
