"""Single requests that no fail mode applies to: reading, verifying, issuing tokens."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from countersign._client import Client, client_of
from countersign._clients import Unreachable
from countersign._config import ChainConfig
from countersign._loops import refuse_in_loop
from countersign._steps import Steps
from countersign._transport import Transport
from countersign.exceptions import BackendUnavailableError

__all__ = ["path_segment", "request", "request_sync"]


async def request(
    config: ChainConfig | Client | None, method: str, path: str, body: Any = None, **options: Any
) -> dict[str, Any]:
    """Make one request. Raises ``BackendUnavailableError`` if the service is unreachable."""
    transport = client_of(config).transport
    return await transport.run_async(_request_steps(transport, method, path, body, **options))


def request_sync(
    config: ChainConfig | Client | None, method: str, path: str, body: Any = None, **options: Any
) -> dict[str, Any]:
    """:func:`request` for code without an event loop."""
    refuse_in_loop()
    transport = client_of(config).transport
    return transport.run(_request_steps(transport, method, path, body, **options))


def _request_steps(
    transport: Transport,
    method: str,
    path: str,
    body: Any,
    public: bool = False,
    headers: dict[str, str] | None = None,
) -> Steps[dict[str, Any]]:
    try:
        return (
            yield from transport.call(
                method, path, body, headers=headers, authenticated=not public, reading=True
            )
        )
    except Unreachable as fault:
        reason = str(fault)
    # Raised outside the handler, so that the fault is not chained: it holds the request, which
    # may hold a token.
    raise BackendUnavailableError(f"the service is unreachable ({reason}); try again later")


def path_segment(value: str) -> str:
    """Quote an identifier or a token as one segment of a path."""
    if not isinstance(value, str) or not value:
        raise ValueError("the identifier or token must be a non-empty string")
    return quote(value, safe="")
