"""Public verification tokens: links that show one verification result to anyone. For admins.

Every function is async and has a sync variant whose name ends in ``_sync``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal
from urllib.parse import quote, urlencode

from countersign._client import Client
from countersign._config import ChainConfig
from countersign._request import request, request_sync
from countersign._secret import SecretStr

__all__ = [
    "PublicToken",
    "TokenPage",
    "create_public_token",
    "create_public_token_sync",
    "list_public_tokens",
    "list_public_tokens_sync",
    "revoke_public_token",
    "revoke_public_token_sync",
]

_PATH = "/v1/public-verification-tokens"
ArtifactType = Literal["approval", "receipt"]


@dataclass(frozen=True)
class PublicToken:
    """A token's record. Only the answer that created it has the plaintext."""

    token_id: str
    artifact_type: str
    artifact_id: str
    status: str
    """``active``, ``revoked`` or ``expired``."""
    created_at: str
    expires_at: str | None = None
    revoked_at: str | None = None
    revocation_reason: str | None = None
    last_used_at: str | None = None
    token: SecretStr | None = None
    """Call ``.reveal()`` for the text."""
    public_path: SecretStr | None = None
    """``/public/v2/verify/...``, which contains the token."""


@dataclass(frozen=True)
class TokenPage:
    """A page of tokens. Pass ``next_cursor`` as ``cursor`` for the next page."""

    data: tuple[PublicToken, ...]
    next_cursor: str | None


async def create_public_token(
    artifact_type: ArtifactType,
    artifact_id: str,
    *,
    expires_at: datetime | None = None,
    idempotency_key: str | None = None,
    config: ChainConfig | Client | None = None,
) -> PublicToken:
    """Issue a token for one approval or receipt. The plaintext is returned only this once."""
    body, headers = _creation(artifact_type, artifact_id, expires_at, idempotency_key)
    return _token(await request(config, "POST", _PATH, body, headers=headers))


def create_public_token_sync(
    artifact_type: ArtifactType,
    artifact_id: str,
    *,
    expires_at: datetime | None = None,
    idempotency_key: str | None = None,
    config: ChainConfig | Client | None = None,
) -> PublicToken:
    """:func:`create_public_token` for code without an event loop."""
    body, headers = _creation(artifact_type, artifact_id, expires_at, idempotency_key)
    return _token(request_sync(config, "POST", _PATH, body, headers=headers))


async def list_public_tokens(
    *, limit: int = 50, cursor: str | None = None, config: ChainConfig | Client | None = None
) -> TokenPage:
    """List tokens, without plaintexts."""
    return _page(await request(config, "GET", _listing(limit, cursor)))


def list_public_tokens_sync(
    *, limit: int = 50, cursor: str | None = None, config: ChainConfig | Client | None = None
) -> TokenPage:
    """:func:`list_public_tokens` for code without an event loop."""
    return _page(request_sync(config, "GET", _listing(limit, cursor)))


async def revoke_public_token(
    token_id: str, *, reason: str | None = None, config: ChainConfig | Client | None = None
) -> PublicToken:
    """Revoke a token. Safe to repeat."""
    return _token(await request(config, "POST", _revocation(token_id), _reason(reason)))


def revoke_public_token_sync(
    token_id: str, *, reason: str | None = None, config: ChainConfig | Client | None = None
) -> PublicToken:
    """:func:`revoke_public_token` for code without an event loop."""
    return _token(request_sync(config, "POST", _revocation(token_id), _reason(reason)))


def _creation(
    artifact_type: str, artifact_id: str, expires_at: datetime | None, key: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    if artifact_type not in ("approval", "receipt"):
        raise ValueError('artifact_type must be "approval" or "receipt"')
    body = {"artifact_type": artifact_type, "artifact_id": artifact_id}
    if expires_at is not None:
        if expires_at.tzinfo is None:
            raise ValueError("expires_at must have a time zone")
        utc = expires_at.astimezone(timezone.utc)
        body["expires_at"] = utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return body, {"idempotency-key": key or str(uuid.uuid4())}


def _listing(limit: int, cursor: str | None) -> str:
    query = {"limit": str(limit), **({"cursor": cursor} if cursor else {})}
    return f"{_PATH}?{urlencode(query)}"


def _revocation(token_id: str) -> str:
    return f"{_PATH}/{quote(token_id, safe='')}/revoke"


def _reason(reason: str | None) -> dict[str, str]:
    return {} if reason is None else {"reason": reason}


def _page(answer: Mapping[str, Any]) -> TokenPage:
    data = answer.get("data")
    tokens = tuple(_token(t) for t in data) if isinstance(data, list) else ()
    return TokenPage(tokens, answer.get("next_cursor"))


def _token(answer: Mapping[str, Any]) -> PublicToken:
    plain = {name: answer.get(name) for name in _PLAIN}
    secret = {n: SecretStr(answer[n]) for n in ("token", "public_path") if answer.get(n)}
    return PublicToken(**plain, **secret)  # type: ignore[arg-type]


_PLAIN = (
    "token_id",
    "artifact_type",
    "artifact_id",
    "status",
    "created_at",
    "expires_at",
    "revoked_at",
    "revocation_reason",
    "last_used_at",
)
