"""Names, signatures and settings as the specification gives them: docs/conformance.md names the
test of each requirement. What these do is tested elsewhere."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import countersign
from conftest import configure
from countersign import ChainConfig, verify
from countersign.testing import FakeService, example_api_key

PROJECT = Path(__file__).parents[1]
ADAPTERS = PROJECT / "src" / "countersign" / "adapters"
POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def parameters(function: Any) -> dict[str, Any]:
    """A function's parameters by name, without ``self``, each with its kind and default."""
    found = inspect.signature(function).parameters
    return {name: (p.kind, p.default) for name, p in found.items() if name != "self"}


def test_init_takes_the_key_first_and_returns_the_configuration() -> None:
    names = list(parameters(countersign.init))
    assert names[0] == "api_key"
    assert parameters(countersign.init)["api_key"][0] is POSITIONAL
    assert type(countersign.init(example_api_key())) is ChainConfig


@pytest.mark.parametrize("mode", ["allow", "deny"])
def test_the_legacy_fail_mode_stands_for_a_default(mode: str) -> None:
    config = countersign.init(example_api_key(), fail_mode=mode)
    assert config.fail_modes == {"default": mode}


def test_a_chain_is_made_of_a_name_and_named_options() -> None:
    given = parameters(countersign.Chain.__init__)
    required = inspect.Parameter.empty
    assert given["name"] == (POSITIONAL, required)
    assert given["external_chain_id"] == given["metadata"] == (KEYWORD, None)
    assert [name for name, (_, default) in given.items() if default is required] == ["name"]


def test_recording_takes_what_the_specification_names() -> None:
    record = countersign.Chain.record_agent_action
    assert inspect.iscoroutinefunction(record)
    given = parameters(record)
    required = (POSITIONAL, inspect.Parameter.empty)
    first = dict(list(given.items())[:4])
    assert first == dict.fromkeys(("agent_name", "action_type", "action_name", "payload"), required)
    assert given["parent_agent_name"] == given["metadata"] == (KEYWORD, None)
    assert inspect.signature(record).return_annotation == "PolicyDecision"


def function_of(file: str, *path: str) -> Any:
    """A definition of an adapter, read from its source: no framework is needed."""
    found: Any = ast.parse((ADAPTERS / file).read_text("utf-8"))
    for name in path:
        (found,) = (node for node in found.body if getattr(node, "name", None) == name)
    return found


@pytest.mark.parametrize(
    ("framework", "wrapped"),
    [
        ("langgraph", "compiled_graph"),
        ("langchain", "agent_executor_or_chain"),
        ("crewai", "crew"),
    ],
)
def test_govern_takes_the_object_a_name_and_metadata(framework: str, wrapped: str) -> None:
    arguments = function_of(f"{framework}.py", "govern").args
    assert [a.arg for a in arguments.args[:3]] == [wrapped, "chain_name", "metadata"]
    given = len(arguments.args) - len(arguments.defaults)
    assert given == 1
    assert [d.value for d in arguments.defaults[:2]] == [f"{framework}_workflow", None]


def test_the_adapter_of_a_tool_server_takes_what_the_specification_names() -> None:
    made = function_of("mcp.py", "MCPAdapter", "__init__").args
    assert [a.arg for a in made.args] == ["self"]
    defaults = dict(zip((a.arg for a in made.kwonlyargs), made.kw_defaults, strict=True))
    assert {"chain", "agent_name", "parent_agent_name"} <= defaults.keys()
    assert defaults["agent_name"] is None  # no default at all
    assert defaults["parent_agent_name"].value is None
    calls = {
        "install": ("FunctionDef", ["server"]),
        "handle_tool_call": ("AsyncFunctionDef", ["tool_name", "arguments", "handler"]),
        "tool": ("FunctionDef", ["tool_name"]),
    }
    for name, (kind, arguments) in calls.items():
        method = function_of("mcp.py", "MCPAdapter", name)
        assert type(method).__name__ == kind
        assert [a.arg for a in method.args.args] == ["self", *arguments]
    (default,) = function_of("mcp.py", "MCPAdapter", "tool").args.defaults
    assert default.value is None


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("verify_receipt", "receipt_id"),
        ("verify_receipt_v2", "receipt_id"),
        ("verify_approval_v2", "approval_id"),
        ("verify_public_token", "opaque_token"),
    ],
)
def test_a_helper_takes_one_identifier(name: str, argument: str) -> None:
    helper = getattr(countersign, name)
    assert inspect.iscoroutinefunction(helper)
    first, *others = parameters(helper).items()
    assert first == (argument, (POSITIONAL, inspect.Parameter.empty))
    assert all(kind is KEYWORD for _, (kind, _) in others)


def test_the_answer_of_the_public_check_has_four_members() -> None:
    fields = [(f.name, f.type) for f in dataclasses.fields(verify.ReceiptVerifyResponse)]
    assert fields == [
        ("valid", "bool"),
        ("receipt_number", "str"),
        ("chain_id", "str"),
        ("generated_at", "str"),
    ]


def test_every_limit_is_sent_with_each_chain(fake: FakeService) -> None:
    configure(
        fake,
        environment="development",
        financial_approval_threshold_usd=10.5,
        cumulative_financial_threshold_usd=20,
        external_domains_allowlist=["example.com"],
        high_risk_agents=["root"],
        default_approval_timeout_hours=1,
        fallback_approvers=["a@example.com", "b@example.com"],
    )
    for name in ("first", "second"):
        with countersign.Chain(name):
            pass
    opened = [call.body for call in fake.calls if call.path == "/v1/chains"]
    assert opened == [
        {
            "name": name,
            "environment": "development",
            "fallback_approvers": ["a@example.com", "b@example.com"],
            "policy_config": {
                "financial_approval_threshold_usd": 10.5,
                "cumulative_financial_threshold_usd": 20,
                "external_domains_allowlist": ["example.com"],
                "high_risk_agents": ["root"],
                "approval_timeout_hours": 1,
            },
        }
        for name in ("first", "second")
    ]


def sent(fake: FakeService, payload: dict[str, Any], **settings: Any) -> Any:
    """What leaves the process of a payload."""
    configure(fake, **settings)
    with countersign.Chain("sanitized") as chain:
        chain.record_agent_action_sync("a", "tool_call", "note", payload)
    (call,) = (c for c in fake.calls if c.path.endswith("/events"))
    return call.body["payload"]


def test_strings_above_a_thousand_characters_are_cut_before_sending(fake: FakeService) -> None:
    payload = {"short": "x" * 1000, "long": "x" * 1001, "nested": [{"long": "y" * 5000}]}
    out = sent(fake, payload)
    assert out["short"] == payload["short"]
    for cut in (out["long"], out["nested"][0]["long"]):
        assert len(cut) == 1000
        assert cut.endswith("...[truncated]")


def test_the_length_of_strings_is_the_callers_to_set(fake: FakeService) -> None:
    out = sent(fake, {"a": "x" * 40, "b": "x" * 41}, max_payload_string_length=40)
    assert out == {"a": "x" * 40, "b": "x" * 26 + "...[truncated]"}


def test_given_patterns_redact_beside_the_defaults(fake: FakeService) -> None:
    payload = {
        "customer_IBAN": "1",
        "password": "2",
        "name": "kept",
        "list": ["zz_hidden", "sk_hidden", "kept"],
    }
    out = sent(fake, payload, sensitive_field_patterns=["iban"], sensitive_value_patterns=["zz_"])
    assert out == {
        "customer_IBAN": "[REDACTED]",
        "password": "[REDACTED]",
        "name": "kept",
        "list": ["[REDACTED]", "[REDACTED]", "kept"],
    }


def test_the_ranges_of_the_frameworks_are_pinned() -> None:
    text = (PROJECT / "pyproject.toml").read_text("utf-8")
    extras = text.partition("[project.optional-dependencies]")[2].partition("\ndev = [")[0]
    needed = [n for n in re.findall(r'"([^"]+)"', extras) if not n.startswith("countersign[")]
    assert {"langgraph", "langchain-core", "crewai", "mcp"} <= {
        re.split(r"[<>=;\[ ]", n)[0] for n in needed
    }
    for requirement in needed:
        bounds = requirement.partition(";")[0]
        assert ">=" in bounds, requirement
        assert re.search(r"<[0-9]", bounds), requirement
