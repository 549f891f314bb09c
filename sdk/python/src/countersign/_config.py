"""The library's settings: validated once, then immutable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from countersign import _validate as check
from countersign._progress import ApprovalProgress
from countersign._redact import Sanitizer
from countersign._secret import API_KEY_PREFIX, SecretStr, parse_api_key
from countersign._transport import Transport
from countersign._words import fold_name

if TYPE_CHECKING:
    import httpx

__all__ = ["DEFAULT_BACKEND_URL", "ChainConfig", "Unset"]

DEFAULT_BACKEND_URL = "http://127.0.0.1:8080"
"""The default address of ``countersign serve``."""

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


class Unset(float):
    """A default that differs from the same number passed by the caller. Only limits that the caller
    passed are sent, because the service tightens its own settings to them."""


@dataclass(frozen=True)
class ChainConfig:
    """The settings that :func:`init` returns. Create one directly to use several side by side.

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
    financial_approval_threshold_usd: float = Unset(5000.0)
    cumulative_financial_threshold_usd: float = Unset(10000.0)
    external_domains_allowlist: Sequence[str] | None = None
    high_risk_agents: Sequence[str] | None = None
    default_approval_timeout_hours: float = Unset(24)
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
        """Return every parameter in its final form. Raises for the first invalid one."""
        key = self.api_key
        return {
            "api_key": key
            if isinstance(key, SecretStr)
            else parse_api_key(check.text("api_key", key, 500)),
            "environment": check.label("environment", self.environment, 200),
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
            "external_domains_allowlist": check.domains(
                "external_domains_allowlist", self.external_domains_allowlist
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
        """Return these settings with other limits. They share the connections."""
        given = {name: value for name, value in limits.items() if value is not None}
        if not given:
            return self
        limited = replace(self, **given)
        object.__setattr__(limited, "_base", self._base or self)
        return limited

    def policy_config(self) -> dict[str, Any]:
        """Return the limits that the caller passed, without defaults, to open a chain with."""
        given = {
            "financial_approval_threshold_usd": self.financial_approval_threshold_usd,
            "cumulative_financial_threshold_usd": self.cumulative_financial_threshold_usd,
            "external_domains_allowlist": self.external_domains_allowlist,
            "high_risk_agents": self.high_risk_agents,
            "approval_timeout_hours": self.default_approval_timeout_hours,
            "chain_timeout_seconds": self.chain_timeout_seconds,
        }
        return {k: v for k, v in given.items() if v is not None and not isinstance(v, Unset)}
