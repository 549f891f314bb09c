"""Single calls whose answers no fail mode can stand in for."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from countersign._client import Client, client_of
from countersign._clients import Unreachable
from countersign._config import ChainConfig
from countersign._steps import Steps
from countersign._transport import Transport
from countersign.exceptions import BackendUnavailableError

__all__ = ["ask", "ask_sync", "segment"]


async def ask(
    config: ChainConfig | Client | None, method: str, path: str, body: Any = None, **options: Any
) -> dict[str, Any]:
    """Make one call whose answer no fail mode can stand in for."""
    transport = client_of(config).transport
    return await transport.run_async(_asking(transport, method, path, body, **options))


def ask_sync(
    config: ChainConfig | Client | None, method: str, path: str, body: Any = None, **options: Any
) -> dict[str, Any]:
    """:func:`ask`, blocking."""
    transport = client_of(config).transport
    return transport.run(_asking(transport, method, path, body, **options))


def _asking(
    transport: Transport,
    method: str,
    path: str,
    body: Any,
    public: bool = False,
    headers: dict[str, str] | None = None,
) -> Steps[dict[str, Any]]:
    try:
        return (
            yield from transport.call(method, path, body, headers=headers, authenticated=not public)
        )
    except Unreachable as fault:
        reason = str(fault)
    # Outside the handler, so that the fault is no context of this: it holds the request, and
    # the request the token.
    raise BackendUnavailableError(f"the service is unreachable ({reason}); nothing was learned")


def segment(value: str) -> str:
    """An identifier or a token as a part of an address."""
    if not isinstance(value, str) or not value:
        raise ValueError("the identifier or token must be a non-empty string")
    return quote(value, safe="")
