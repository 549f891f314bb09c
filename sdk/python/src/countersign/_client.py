"""The client: settings together with their connections."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from countersign import _validate as check
from countersign._config import DEFAULT_BACKEND_URL, ChainConfig, Unset
from countersign._fork import in_child
from countersign._progress import ApprovalProgress
from countersign._secret import SecretStr
from countersign._transport import Transport
from countersign.exceptions import ConfigurationError

if TYPE_CHECKING:
    import httpx

__all__ = ["Client", "aclose", "client_of", "close", "flush", "init", "transport_of"]


class Client:
    """Settings, and the connections that use them.

    :func:`init` makes the default client. Make others to use several keys or services side by side,
    and pass them as ``config=``. Clients of the same configuration share its connections and what
    the service has reported, such as an active kill switch.

    >>> from countersign.testing import FakeService
    >>> import countersign
    >>> with FakeService() as service:
    ...     client = Client(ChainConfig(**service.settings()))
    ...     with countersign.Chain("invoices", config=client) as chain:
    ...         chain.record_agent_action_sync("clerk", "tool_call", "look", {}).allowed
    ...     client.flush()
    True
    True
    """

    def __init__(self, config: ChainConfig) -> None:
        self.config = config

    def __repr__(self) -> str:
        return f"Client({self.config.backend_url!r})"

    @property
    def transport(self) -> Transport:
        return transport_of(self.config)

    def flush(self, timeout: float = 5.0) -> bool:
        """Deliver the queued events of this process. Returns whether the queue is empty."""
        return self.transport.sender.flush(timeout)

    def close(self) -> None:
        """Flush, and close the connections of sync code. Called automatically at exit."""
        self.transport.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self.transport.clients.aclose()


_default: Client | None = None
_lock = threading.Lock()


@in_child
def _after_fork() -> None:
    # Another thread of the parent may have held the lock.
    global _lock
    _lock = threading.Lock()


def init(
    api_key: str | None = None,
    *,
    environment: str = "production",
    backend_url: str | None = None,
    backend_timeout_seconds: float = 5.0,
    fail_modes: Mapping[str, str] | None = None,
    fail_mode: str | None = None,
    offline_buffer_max_events: int = 100,
    financial_approval_threshold_usd: float = Unset(5000.0),
    cumulative_financial_threshold_usd: float = Unset(10000.0),
    external_domains_allowlist: Sequence[str] | None = None,
    high_risk_agents: Sequence[str] | None = None,
    default_approval_timeout_hours: float = Unset(24),
    fallback_approvers: Sequence[str] | None = None,
    sensitive_field_patterns: Sequence[str] | None = None,
    sensitive_value_patterns: Sequence[str] | None = None,
    max_payload_string_length: int = 1000,
    enable_local_fast_path: bool = True,
    chain_timeout_seconds: float | None = None,
    on_wait: Callable[[ApprovalProgress], object] | None = None,
    transport: httpx.MockTransport | None = None,
) -> ChainConfig:
    """Configure the library for this process. Call it once, before opening a chain.

    ``api_key`` defaults to the environment variable ``COUNTERSIGN_API_KEY``, and ``backend_url`` to
    ``COUNTERSIGN_BACKEND_URL`` or ``COUNTERSIGN_URL``, which the command line reads too.
    ``fail_mode`` is the older form of ``fail_modes={"default": fail_mode}``. The guide,
    ``docs/python.md``, explains every parameter.

    >>> import countersign
    >>> from countersign.testing import example_api_key
    >>> config = countersign.init(example_api_key(), fail_modes={"default": "deny"})
    >>> config.fail_modes["default"]
    'deny'
    >>> countersign.init(example_api_key(), fail_modes={"default": "perhaps"})
    Traceback (most recent call last):
        ...
    countersign.exceptions.ConfigurationError: fail_modes['default'] must be "allow" or "deny"
    """
    if fail_mode is not None:
        if fail_modes is not None:
            raise ConfigurationError("fail_mode and fail_modes: pass one of them, not both")
        fail_modes = {"default": check.fail_mode("fail_mode", fail_mode)}
    key = api_key if api_key is not None else os.environ.get("COUNTERSIGN_API_KEY")
    if not key:
        raise ConfigurationError("api_key: pass it, or set COUNTERSIGN_API_KEY")
    config = ChainConfig(
        api_key=key,
        environment=environment,
        backend_url=backend_url or _backend_url_from_environment(),
        backend_timeout_seconds=backend_timeout_seconds,
        fail_modes=fail_modes,
        offline_buffer_max_events=offline_buffer_max_events,
        financial_approval_threshold_usd=financial_approval_threshold_usd,
        cumulative_financial_threshold_usd=cumulative_financial_threshold_usd,
        external_domains_allowlist=external_domains_allowlist,
        high_risk_agents=high_risk_agents,
        default_approval_timeout_hours=default_approval_timeout_hours,
        fallback_approvers=fallback_approvers,
        sensitive_field_patterns=sensitive_field_patterns,
        sensitive_value_patterns=sensitive_value_patterns,
        max_payload_string_length=max_payload_string_length,
        enable_local_fast_path=enable_local_fast_path,
        chain_timeout_seconds=chain_timeout_seconds,
        on_wait=on_wait,
        transport=transport,
    )
    if check.sends_in_clear(config.backend_url):
        warnings.warn(
            "backend_url: plain HTTP shows the API key to the network; use https",
            UserWarning,
            stacklevel=2,
        )
    global _default
    with _lock:
        _default = Client(config)
    return config


def _backend_url_from_environment() -> str:
    for name in ("COUNTERSIGN_BACKEND_URL", "COUNTERSIGN_URL"):
        if address := os.environ.get(name):
            return address
    return DEFAULT_BACKEND_URL


def client_of(given: ChainConfig | Client | None = None) -> Client:
    """Return the given client, a client of the given configuration, or the default client."""
    if isinstance(given, Client):
        return given
    if given is not None:
        return Client(given)
    if _default is None:
        raise ConfigurationError("call countersign.init() first, or pass config=")
    return _default


def flush(timeout: float = 5.0, *, config: ChainConfig | Client | None = None) -> bool:
    """Deliver the queue of this process: events that were decided here, outcomes that could not be
    reported, and chains that were opened or completed offline. Returns whether the queue is empty.
    After ``timeout`` seconds no other chain is begun, but the requests for one that was begun are
    not cut short."""
    return client_of(config).flush(timeout)


def close(*, config: ChainConfig | Client | None = None) -> None:
    """Flush, and close the connections of sync code. Called automatically at exit."""
    client_of(config).close()


async def aclose(*, config: ChainConfig | Client | None = None) -> None:
    """Close the connections of the running event loop. ``asyncio.run`` does this automatically;
    call it before closing a loop yourself."""
    await client_of(config).aclose()


def transport_of(config: ChainConfig) -> Transport:
    """Return the configuration's transport. It is made on first use and closed with the
    configuration."""
    config = config._base or config
    if config._transports:
        return config._transports[0]
    with _lock:
        if not config._transports:
            transport = Transport(
                config.backend_url,
                cast("SecretStr", config.api_key),
                config.backend_timeout_seconds,
                config.transport,
            )
            # Runs when the configuration is collected, and when the interpreter exits.
            weakref.finalize(config, transport.close)
            config._transports.append(transport)
    return config._transports[0]
