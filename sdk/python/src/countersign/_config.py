"""The library's settings: checked once, then never changed."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from countersign import _validate as check
from countersign._progress import ApprovalProgress
from countersign._redact import Sanitizer
from countersign._secret import API_KEY_PREFIX, SecretStr, parse_api_key
from countersign._words import fold_name
from countersign.exceptions import ConfigurationError

if TYPE_CHECKING:
    import httpx

    from countersign._transport import Transport

__all__ = ["ChainConfig", "current_config", "init"]

DEFAULT_BACKEND_URL = "http://127.0.0.1:8080"
"""Where ``countersign serve`` listens when it is told nothing else."""

DEFAULT_FIELD_PATTERNS = (
    "api_key",
    "password",
    "secret",
    "token",
    "credit_card",
    "ssn",
    "private_key",
)
DEFAULT_VALUE_PATTERNS = ("sk_", "pk_", "ghp_", "hf_", "eyJ", "AKIA", API_KEY_PREFIX)


class _Unset(float):
    """A default that can be told from the same number given by the caller: only what
    was given is sent, as the service takes it for a wish to tighten its own settings."""


@dataclass(frozen=True)
class ChainConfig:
    """What :func:`init` returns. Build one directly to use several side by side.

    >>> from countersign.testing import example_api_key
    >>> config = ChainConfig(example_api_key(), environment="staging")
    >>> config.api_key, config.environment, config.offline_buffer_max_events
    (<redacted>, 'staging', 100)
    """

    api_key: SecretStr | str
    environment: str = "production"
    backend_url: str = DEFAULT_BACKEND_URL
    backend_timeout_seconds: float = 5.0
    fail_modes: Mapping[str, str] | None = field(default=None, hash=False)
    offline_buffer_max_events: int = 100
    financial_approval_threshold_usd: float = _Unset(5000.0)
    cumulative_financial_threshold_usd: float = _Unset(10000.0)
    external_domains_allowlist: Sequence[str] | None = None
    high_risk_agents: Sequence[str] | None = None
    default_approval_timeout_hours: float = _Unset(24)
    fallback_approvers: Sequence[str] | None = None
    sensitive_field_patterns: Sequence[str] | None = None
    sensitive_value_patterns: Sequence[str] | None = None
    max_payload_string_length: int = 1000
    enable_local_fast_path: bool = True
    chain_timeout_seconds: float | None = None
    on_wait: Callable[[ApprovalProgress], object] | None = field(default=None, repr=False)
    transport: httpx.MockTransport | None = field(default=None, repr=False, compare=False)
    _sanitizer: Sanitizer = field(init=False, repr=False, compare=False)
    _high_risk: frozenset[str] = field(init=False, repr=False, compare=False)
    _transports: list[Transport] = field(init=False, repr=False, compare=False)
    _base: ChainConfig | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value in self._checked().items():
            object.__setattr__(self, name, value)
        sanitizer = Sanitizer(
            self.sensitive_field_patterns or (),
            self.sensitive_value_patterns or (),
            self.max_payload_string_length,
        )
        object.__setattr__(self, "_sanitizer", sanitizer)
        object.__setattr__(
            self, "_high_risk", frozenset(map(fold_name, self.high_risk_agents or ()))
        )
        object.__setattr__(self, "_transports", [])

    def _checked(self) -> dict[str, Any]:
        """Every parameter in its final form; the first that is wrong raises."""
        key = self.api_key
        return {
            "api_key": key
            if isinstance(key, SecretStr)
            else parse_api_key(check.text("api_key", key, 500)),
            "environment": check.text("environment", self.environment, 200),
            "backend_url": check.url("backend_url", self.backend_url),
            "backend_timeout_seconds": check.number(
                "backend_timeout_seconds", self.backend_timeout_seconds, 0.001, 3600
            ),
            "fail_modes": check.fail_modes("fail_modes", self.fail_modes),
            "offline_buffer_max_events": check.integer(
                "offline_buffer_max_events", self.offline_buffer_max_events, 0, 1_000_000
            ),
            "financial_approval_threshold_usd": check.number(
                "financial_approval_threshold_usd", self.financial_approval_threshold_usd, 0, 1e15
            ),
            "cumulative_financial_threshold_usd": check.number(
                "cumulative_financial_threshold_usd",
                self.cumulative_financial_threshold_usd,
                0,
                1e15,
            ),
            "external_domains_allowlist": check.texts(
                "external_domains_allowlist", self.external_domains_allowlist, 1000, 253
            ),
            "high_risk_agents": check.texts("high_risk_agents", self.high_risk_agents, 1000, 200),
            "default_approval_timeout_hours": check.number(
                "default_approval_timeout_hours",
                self.default_approval_timeout_hours,
                1 / 3600,
                8760,
            ),
            "fallback_approvers": check.addresses("fallback_approvers", self.fallback_approvers),
            "sensitive_field_patterns": check.patterns(
                "sensitive_field_patterns", DEFAULT_FIELD_PATTERNS, self.sensitive_field_patterns
            ),
            "sensitive_value_patterns": check.patterns(
                "sensitive_value_patterns", DEFAULT_VALUE_PATTERNS, self.sensitive_value_patterns
            ),
            "max_payload_string_length": check.integer(
                "max_payload_string_length", self.max_payload_string_length, 1, 500_000
            ),
            "enable_local_fast_path": check.boolean(
                "enable_local_fast_path", self.enable_local_fast_path
            ),
            "on_wait": check.function("on_wait", self.on_wait),
            "chain_timeout_seconds": None
            if self.chain_timeout_seconds is None
            else check.number(
                "chain_timeout_seconds", self.chain_timeout_seconds, 0.001, 315_360_000
            ),
        }

    def with_limits(self, **limits: Any) -> ChainConfig:
        """These settings with other limits, where any are given, over the same connections."""
        given = {name: value for name, value in limits.items() if value is not None}
        if not given:
            return self
        limited = replace(self, **given)
        object.__setattr__(limited, "_base", self._base or self)
        return limited

    def policy_config(self) -> dict[str, Any]:
        """What a chain is opened with: the limits that were given, and no defaults."""
        given = {
            "financial_approval_threshold_usd": self.financial_approval_threshold_usd,
            "cumulative_financial_threshold_usd": self.cumulative_financial_threshold_usd,
            "external_domains_allowlist": self.external_domains_allowlist,
            "high_risk_agents": self.high_risk_agents,
            "approval_timeout_hours": self.default_approval_timeout_hours,
            "chain_timeout_seconds": self.chain_timeout_seconds,
        }
        return {k: v for k, v in given.items() if v is not None and not isinstance(v, _Unset)}


_current: ChainConfig | None = None
_current_lock = threading.Lock()


def _after_fork() -> None:
    # Another thread of the parent may have held it.
    global _current_lock
    _current_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def init(
    api_key: str | None = None,
    *,
    environment: str = "production",
    backend_url: str | None = None,
    backend_timeout_seconds: float = 5.0,
    fail_modes: Mapping[str, str] | None = None,
    fail_mode: str | None = None,
    offline_buffer_max_events: int = 100,
    financial_approval_threshold_usd: float = _Unset(5000.0),
    cumulative_financial_threshold_usd: float = _Unset(10000.0),
    external_domains_allowlist: Sequence[str] | None = None,
    high_risk_agents: Sequence[str] | None = None,
    default_approval_timeout_hours: float = _Unset(24),
    fallback_approvers: Sequence[str] | None = None,
    sensitive_field_patterns: Sequence[str] | None = None,
    sensitive_value_patterns: Sequence[str] | None = None,
    max_payload_string_length: int = 1000,
    enable_local_fast_path: bool = True,
    chain_timeout_seconds: float | None = None,
    on_wait: Callable[[ApprovalProgress], object] | None = None,
    transport: httpx.MockTransport | None = None,
) -> ChainConfig:
    """Configure the library for this process. Call it once, before any chain is opened.

    Without ``api_key`` the environment's ``COUNTERSIGN_API_KEY`` is used, and without
    ``backend_url`` its ``COUNTERSIGN_BACKEND_URL``, else the ``COUNTERSIGN_URL`` that the
    command line reads too. ``fail_mode`` is the older form of
    ``fail_modes={"default": fail_mode}``. The guide, ``docs/python.md``, explains every
    parameter.

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
            raise ConfigurationError("fail_mode and fail_modes: give one of them, not both")
        fail_modes = {"default": check.fail_mode("fail_mode", fail_mode)}
    key = api_key if api_key is not None else os.environ.get("COUNTERSIGN_API_KEY")
    if not key:
        raise ConfigurationError("api_key: pass it, or set COUNTERSIGN_API_KEY")
    config = ChainConfig(
        api_key=key,
        environment=environment,
        backend_url=backend_url or _backend_url_of_the_environment(),
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
    global _current
    with _current_lock:
        _current = config
    return config


def _backend_url_of_the_environment() -> str:
    for name in ("COUNTERSIGN_BACKEND_URL", "COUNTERSIGN_URL"):
        if address := os.environ.get(name):
            return address
    return DEFAULT_BACKEND_URL


def current_config(given: ChainConfig | None = None) -> ChainConfig:
    """The given configuration, else the one that :func:`init` stored."""
    if given is not None:
        return given
    if _current is None:
        raise ConfigurationError("call countersign.init() first, or pass config=")
    return _current
