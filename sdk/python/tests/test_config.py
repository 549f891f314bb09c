"""``init`` and ``ChainConfig``: every row of the specification's table."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest

import countersign
from countersign import ChainConfig, ConfigurationError
from countersign._config import DEFAULT_FIELD_PATTERNS, DEFAULT_VALUE_PATTERNS
from countersign.testing import FakeService, example_api_key
from server import Server

KEY = example_api_key()

DEFAULTS: dict[str, Any] = {
    "environment": "production",
    "backend_timeout_seconds": 5.0,
    "fail_modes": None,
    "fail_mode": None,
    "offline_buffer_max_events": 100,
    "financial_approval_threshold_usd": 5000.0,
    "cumulative_financial_threshold_usd": 10000.0,
    "external_domains_allowlist": None,
    "high_risk_agents": None,
    "default_approval_timeout_hours": 24,
    "fallback_approvers": None,
    "sensitive_field_patterns": None,
    "sensitive_value_patterns": None,
    "max_payload_string_length": 1000,
    "enable_local_fast_path": True,
}


@pytest.mark.parametrize(("name", "default"), DEFAULTS.items(), ids=DEFAULTS.keys())
def test_default(name: str, default: Any) -> None:
    parameter = inspect.signature(countersign.init).parameters[name]
    assert parameter.default == default
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY


def test_the_defaults_of_the_patterns() -> None:
    config = countersign.init(KEY)
    assert config.sensitive_field_patterns == (
        "api_key",
        "password",
        "secret",
        "token",
        "credit_card",
        "ssn",
        "private_key",
    )
    assert config.sensitive_value_patterns == ("sk_", "pk_", "ghp_", "hf_", "eyJ", "AKIA", "csk_")


def test_given_patterns_are_appended() -> None:
    config = countersign.init(
        KEY, sensitive_field_patterns=["iban"], sensitive_value_patterns=["xoxb-"]
    )
    assert config.sensitive_field_patterns == (*DEFAULT_FIELD_PATTERNS, "iban")
    assert config.sensitive_value_patterns == (*DEFAULT_VALUE_PATTERNS, "xoxb-")
    again = dataclasses.replace(config, environment="staging")
    assert again.sensitive_field_patterns == config.sensitive_field_patterns


@pytest.mark.parametrize("setting", ["sensitive_field_patterns", "sensitive_value_patterns"])
def test_a_chain_with_limits_accepts_as_many_patterns_as_init(server: Server, setting: str) -> None:
    """A chain with limits of its own keeps all patterns that ``init`` accepted: the defaults do not
    count towards the caller's 1000."""
    own = [f"own-{n}" for n in range(1000)]
    config = server.config(**{setting: own})
    with countersign.Chain("many patterns", approval_timeout_hours=1) as chain:
        assert getattr(chain._config, setting) == getattr(config, setting)
    with pytest.raises(ConfigurationError, match="at most 1000"):
        server.config(**{setting: [*own, "one more"]})


def test_the_configuration_is_stored_for_the_process(fake: FakeService) -> None:
    config = countersign.init(**fake.settings())
    assert countersign.Chain("x")._config is config


def test_the_configuration_is_frozen() -> None:
    config = countersign.init(KEY)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.environment = "x"  # type: ignore[misc]


def test_before_init_a_chain_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"countersign\.init\(\)"):
        countersign.Chain("x")


def test_a_chain_takes_an_explicit_configuration() -> None:
    config = ChainConfig(KEY, environment="test")
    assert countersign.Chain("x", config=config)._opening["environment"] == "test"


def test_the_environment_is_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERSIGN_API_KEY", KEY)
    monkeypatch.setenv("COUNTERSIGN_BACKEND_URL", "https://countersign.example.com/")
    config = countersign.init()
    assert config.api_key.reveal() == KEY  # type: ignore[union-attr]
    assert config.backend_url == "https://countersign.example.com"
    assert countersign.init(backend_url="http://localhost:1").backend_url == "http://localhost:1"


@pytest.mark.parametrize(
    ("own", "shared", "used"),
    [
        (None, "https://shared.example.com", "https://shared.example.com"),
        ("", "https://shared.example.com", "https://shared.example.com"),
        ("https://own.example.com", "https://shared.example.com", "https://own.example.com"),
        (None, "", "http://127.0.0.1:8080"),
    ],
)
def test_the_address_of_the_command_line_serves_too(
    monkeypatch: pytest.MonkeyPatch, own: str | None, shared: str, used: str
) -> None:
    if own is not None:
        monkeypatch.setenv("COUNTERSIGN_BACKEND_URL", own)
    monkeypatch.setenv("COUNTERSIGN_URL", shared)
    assert countersign.init(KEY).backend_url == used


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"api_key": None}, "api_key: pass it"),
        ({"api_key": 5}, "api_key must be a string"),
        ({"api_key": "sk-something"}, "api_key: it must begin with csk_"),
        ({"api_key": KEY[:-1]}, "api_key: it must be 53 characters long"),
        ({"api_key": KEY + " "}, "api_key: it must be 53 characters long"),
        ({"api_key": KEY[:20] + "-" + KEY[21:]}, "api_key: after csk_"),
        ({"api_key": KEY[:20] + "1" + KEY[21:]}, "api_key: its last 6 characters do not match"),
        ({"environment": ""}, "environment must not be empty"),
        ({"environment": 1}, "environment must be a string"),
        ({"backend_url": "countersign.example.com"}, "backend_url must be a URL"),
        ({"backend_url": "ftp://x"}, "backend_url must be a URL"),
        ({"backend_url": "http://[::1"}, "backend_url must be a URL"),
        ({"backend_url": "http://127.0.0.1:8080\n"}, "backend_url must not contain spaces or line"),
        ({"backend_url": " http://127.0.0.1:8080"}, "backend_url must not contain spaces or line"),
        ({"backend_url": "https://u:p@x.example.com"}, "backend_url must not contain credentials"),
        ({"backend_timeout_seconds": 0}, "backend_timeout_seconds must be a number from"),
        ({"backend_timeout_seconds": float("nan")}, "backend_timeout_seconds must be a number"),
        ({"backend_timeout_seconds": "5"}, "backend_timeout_seconds must be a number, not str"),
        ({"fail_modes": {"financial": "maybe"}}, r"fail_modes\['financial'\] must be"),
        ({"fail_modes": "deny"}, "fail_modes must be a dict"),
        ({"fail_mode": "maybe"}, "fail_mode must be"),
        ({"fail_mode": "deny", "fail_modes": {}}, "fail_mode and fail_modes"),
        ({"offline_buffer_max_events": -1}, "offline_buffer_max_events must be a number from 0"),
        ({"offline_buffer_max_events": 1.5}, "offline_buffer_max_events must be an integer"),
        ({"offline_buffer_max_events": True}, "offline_buffer_max_events must be an integer"),
        ({"financial_approval_threshold_usd": -1}, "financial_approval_threshold_usd must be"),
        ({"cumulative_financial_threshold_usd": "x"}, "cumulative_financial_threshold_usd must"),
        ({"external_domains_allowlist": "a.com"}, "external_domains_allowlist must be a list"),
        ({"external_domains_allowlist": [""]}, r"external_domains_allowlist\[0\] must not be"),
        ({"external_domains_allowlist": ["https://a.com"]}, r"allowlist\[0\] must be a domain"),
        ({"external_domains_allowlist": ["a.com", "*.a.com"]}, r"allowlist\[1\] must be a domain"),
        ({"external_domains_allowlist": ["a..com"]}, r"allowlist\[0\] must be a domain"),
        ({"external_domains_allowlist": ["straße.de"]}, r"allowlist\[0\] must be in the form"),
        ({"external_domains_allowlist": ["a\u200cb.de"]}, r"allowlist\[0\] must be in the form"),
        ({"external_domains_allowlist": ["a\u2100.com"]}, r"allowlist\[0\] must be a domain"),
        ({"external_domains_allowlist": ["\u202ea.com"]}, r"allowlist\[0\] must be a domain"),
        ({"external_domains_allowlist": ["a.com\n"]}, r"allowlist\[0\] must be a domain"),
        ({"external_domains_allowlist": ["\u212a.com"]}, r"allowlist\[0\] must be a domain"),
        ({"high_risk_agents": "root"}, "high_risk_agents must be a list"),
        ({"high_risk_agents": ["a\x00b"]}, r"high_risk_agents\[0\] must not contain"),
        ({"high_risk_agents": ["\ud800"]}, r"high_risk_agents\[0\] must be valid Unicode"),
        ({"environment": "a\nb"}, "environment must not contain control characters"),
        ({"default_approval_timeout_hours": 0}, "default_approval_timeout_hours must be"),
        ({"fallback_approvers": ["nobody"]}, r"fallback_approvers\[0\] must be an e-mail"),
        ({"fallback_approvers": ["a@b@c.d"]}, r"fallback_approvers\[0\] must be an e-mail"),
        ({"fallback_approvers": ["a,b@c.d"]}, r"fallback_approvers\[0\] must be an e-mail"),
        ({"fallback_approvers": ["a@b..c"]}, r"fallback_approvers\[0\] must be an e-mail"),
        ({"sensitive_field_patterns": "x"}, "sensitive_field_patterns must be a list"),
        ({"sensitive_value_patterns": [1]}, r"sensitive_value_patterns\[0\] must be a string"),
        ({"max_payload_string_length": 0}, "max_payload_string_length must be"),
        ({"enable_local_fast_path": 1}, "enable_local_fast_path must be True or False"),
        ({"chain_timeout_seconds": 0}, "chain_timeout_seconds must be"),
    ],
)
def test_a_wrong_parameter_is_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        countersign.init(**{"api_key": KEY, **settings})
    assert isinstance(refused.value, ValueError)
    key = settings.get("api_key")
    if isinstance(key, str):
        assert key.strip() not in "".join(traceback.format_exception(refused.value)[-1])


def test_domains_are_sent_as_the_service_spells_them() -> None:
    config = countersign.init(KEY, external_domains_allowlist=["Example.COM", "a_b.example.org."])
    assert config.external_domains_allowlist == ("example.com", "a_b.example.org")
    international = ["Bücher.example.", "shop.bu\u0308cher.example", "xn--bcher-kva.example"]
    config = countersign.init(KEY, external_domains_allowlist=international)
    assert config.external_domains_allowlist == (
        "xn--bcher-kva.example",
        "shop.xn--bcher-kva.example",
        "xn--bcher-kva.example",
    )


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:9", "127.8.8.8"])
def test_plain_http_to_loopback_is_no_cause_for_a_warning(host: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        countersign.init(KEY, backend_url=f"http://{host}")


def test_plain_http_to_another_machine_warns() -> None:
    with pytest.warns(UserWarning, match="plain HTTP") as warned:
        countersign.init(KEY, backend_url="http://countersign.example.com")
    assert Path(warned[0].filename) == Path(__file__)


def test_the_key_prints_itself_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    config = countersign.init(KEY)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("app").warning("%s %r", config, config.api_key)
    shown = (repr(config), str(config), f"{config.api_key}", repr(vars(config)), caplog.text)
    assert not any(KEY in text for text in shown)
    with pytest.raises(TypeError, match="cannot be pickled"):
        __import__("pickle").dumps(config.api_key)


def test_only_the_limits_that_were_given_are_sent() -> None:
    assert countersign.init(KEY).policy_config() == {}
    # The default's own number counts, when it was given: it may be tighter than the service's.
    config = countersign.init(KEY, financial_approval_threshold_usd=5000.0)
    assert config.policy_config() == {"financial_approval_threshold_usd": 5000.0}
