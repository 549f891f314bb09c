"""What is found in the raw values, and what binds them to the action once they are taken out."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import uuid
from typing import Any

import pytest
import rfc8785

import countersign
from conftest import configure
from countersign._action import Action
from countersign._classify import Facts
from countersign._config import DEFAULT_FIELD_PATTERNS, DEFAULT_VALUE_PATTERNS
from countersign._redact import Sanitizer
from countersign._safe import SAFE_VERBS, is_obviously_safe
from countersign.testing import FakeService
from countersign.testing._records import _BINDING_KEY
from test_decisions import eventually

SANITIZER = Sanitizer(DEFAULT_FIELD_PATTERNS, DEFAULT_VALUE_PATTERNS, 1000)
KEY = bytes(range(32))


def digest(raw: Any, key: bytes = KEY) -> str:
    return "hmac-sha256:" + hmac.new(key, rfc8785.dumps(raw), hashlib.sha256).hexdigest()


def sent(payload: Any, key: bytes | None = KEY, name: str = "look", **members: Any) -> Any:
    given = {"metadata": None, **members}
    action = Action(SANITIZER, "a", "tool_call", name, payload, None, given["metadata"], None)
    return action.as_sent(key)


def nested(depth: int, inmost: Any) -> Any:
    for _ in range(depth):
        inmost = [inmost]
    return inmost


@pytest.mark.parametrize(
    ("payload", "redactions"),
    [
        ({"password": "x"}, {"/password": "x"}),
        ({"password": None}, {"/password": None}),
        ({"a/b~c": [1, {"secret": {"iban": 7}}]}, {"/a~1b~0c/1/secret": {"iban": 7}}),
        ({"text": "y" * 1001}, {"/text": "y" * 1001}),
        ({"text": "see token=abc123 there"}, {"/text": "see token=abc123 there"}),
        ({"password": "[REDACTED]"}, {"/password": "[REDACTED]"}),
        ("sk_" + "x" * 20, {"/value": "sk_" + "x" * 20}),
        ({"deep": nested(40, 1)}, {"/deep" + "/0" * 31: nested(9, 1)}),
        ({"max_tokens": 5, "text": "plain"}, None),
    ],
    ids=["name", "null", "place", "cut", "inside", "marker", "no-object", "deep", "nothing"],
)
def test_a_digest_binds_what_was_taken_out(payload: Any, redactions: dict[str, Any] | None) -> None:
    wire = sent(payload)
    if redactions is None:
        assert "redactions" not in wire
        return
    assert wire["redactions"] == {p: digest(raw) for p, raw in redactions.items()}
    for pointer in wire["redactions"]:
        found = wire["payload"]
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found[int(step)] if isinstance(found, list) else found[step]
        assert "[REDACTED]" in found or "[TOO DEEP]" in found or found.endswith("...[truncated]")


def test_two_payloads_with_one_hash_have_two_digests() -> None:
    """Another amount, another account, another ending behind the cut."""
    for one, other in (
        ({"secret": {"amount": 1}}, {"secret": {"amount": 1_000_000}}),
        ({"text": "y" * 2000 + "1"}, {"text": "y" * 2000 + "2"}),
        ({"wide": ["z" * 900] * 1000 + [1]}, {"wide": ["z" * 900] * 1000 + [2]}),
    ):
        first, second = sent(one), sent(other)
        assert first["payload"] == second["payload"]
        assert first["redactions"].keys() == second["redactions"].keys()
        assert first["redactions"] != second["redactions"]


def test_what_is_left_out_for_its_size_is_bound() -> None:
    items = ["z" * 900] * 1000
    wire = sent({"wide": items, "after": 1})
    kept = len(wire["payload"]["wide"]) - 1
    assert wire["payload"]["wide"][kept] == "[OMITTED]"
    assert wire["redactions"][f"/wide/{kept}"] == digest(items[kept:])
    assert wire["redactions"]["/[OMITTED]"] == digest({"after": 1})


@pytest.mark.parametrize("own", ["pay Bob", {"password": "x"}], ids=["text", "secret"])
def test_a_member_that_is_called_like_the_marker_is_bound(own: Any) -> None:
    rest = {f"k{n}": "z" * 900 for n in range(1000)}
    wire = sent({"[OMITTED]": own, **rest})
    assert wire["payload"]["[OMITTED]"] == "[OMITTED]"
    left_out = {name: text for name, text in rest.items() if name not in wire["payload"]}
    assert wire["redactions"]["/[OMITTED]"] == digest({"[OMITTED]": own, **left_out})
    assert not [pointer for pointer in wire["redactions"] if pointer.startswith("/[OMITTED]/")]


def test_more_than_the_service_takes_is_bound_as_one() -> None:
    payload = {"users": [{"password": str(n)} for n in range(2001)]}
    wire = sent(payload)
    assert wire["payload"] == {"value": "[OMITTED]"}
    assert wire["redactions"] == {"/value": digest(payload)}
    payload["users"].pop()
    assert len(sent(payload)["redactions"]) == 2000


@pytest.mark.parametrize("longest", [1, 5, 13, 14, 15, 40])
def test_a_cut_text_always_says_so(longest: int) -> None:
    sanitizer = Sanitizer(DEFAULT_FIELD_PATTERNS, DEFAULT_VALUE_PATTERNS, longest)
    text = "see token=abc123 " + "y" * 50
    cleaned = sanitizer.clean_object({"text": text})
    assert cleaned.value["text"].endswith("...[truncated]")
    assert len(cleaned.value["text"]) == max(longest, len("...[truncated]"))
    assert cleaned.redacted == {"/text": text}


def test_without_a_key_the_digest_is_null() -> None:
    assert sent({"password": "x"}, None)["redactions"] == {"/password": None}


def test_what_was_not_read_to_its_end_is_not_bound() -> None:
    wire = sent({"password": nested(100, 1), "other_secret": 1})
    assert wire["redactions"] == {"/password": None, "/other_secret": None}


def test_a_snapshot_is_bound(fake: FakeService) -> None:
    configure(fake)
    payload = {"password": ["a"], "when": datetime.date(2026, 1, 2)}
    with countersign.Chain("bound") as chain:
        chain.record_agent_action_sync("a", "tool_call", "look", payload)
    (event,) = fake.events
    assert base64.b64decode(_BINDING_KEY) == KEY
    assert event["redactions"] == {"/password": digest(["a"])}
    assert "binding_key" not in repr(chain._session.chain)  # type: ignore[union-attr]


def test_a_chain_that_was_opened_offline_binds_nothing(fake: FakeService) -> None:
    configure(fake, fail_modes={"default": "allow"})
    fake.go_offline()
    with countersign.Chain("later") as chain:
        chain.record_agent_action_sync("a", "tool_call", "look", {"password": "x"})
        fake.come_back()
        chain.record_agent_action_sync("a", "tool_call", "look", {"password": "x"})
    assert [e["redactions"] for e in fake.events] == [
        {"/password": None},
        {"/password": digest("x")},
    ]


def test_a_service_of_before_leases_is_sent_nothing_that_it_would_refuse(
    fake: FakeService,
) -> None:
    config = configure(fake, fail_modes={"default": "allow"})
    transport: Any = config.transport
    receive = transport._handle

    def older(call: Any) -> Any:
        answer = receive(call)
        for name in ("binding_key", "act_number", "fast_path_lease"):
            answer.body.pop(name, None)
        return answer

    transport._handle = older
    payload = {"password": "x", "amount_usd": 5}
    with countersign.Chain("older") as chain:
        chain.record_agent_action_sync("a", "tool_call", "pay", payload)
        fake.go_offline()
        chain.record_agent_action_sync("a", "tool_call", "pay", payload)
        fake.come_back()
    eventually(lambda: len(fake.events) == 2)
    for event in fake.events:
        assert not event.keys() & {"found", "redactions", "lease_id"}


PAYMENT = {"categories": ["financial"], "amount_usd": 9000.0}
MESSAGE = {"categories": ["external_communication"], "external_domains": ["example.com"]}


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        ({"tokens_purchase": {"amount": 9000}}, PAYMENT),
        ({"secretary_bonus": {"amount_usd": 9000}}, PAYMENT),
        ({"text": "x" * 1500 + " https://example.com"}, MESSAGE),
        ({"deep": nested(40, {"amount_usd": 9000})}, PAYMENT),
        ({"password": {"to": "someone@example.com"}}, MESSAGE),
    ],
    ids=["tokens", "bonus", "behind-the-cut", "deep", "under-a-secret"],
)
def test_what_is_found_is_found_in_the_raw_value(payload: Any, found: dict[str, Any]) -> None:
    assert sent(payload)["found"] == found


def test_where_nothing_is_found_nothing_is_said() -> None:
    assert "found" not in sent({"n": 1})


# -- obviously safe -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("get", True),
        ("getUser", True),
        ("look_up", True),
        ("list-files", True),
        ("describe_instances", True),
        ("LOOKUP", True),
        ("execute_shell", False),
        ("run_sql", False),
        ("terminate_instances", False),
        ("place_order", False),
        ("book_flight", False),
        ("get_and_delete", False),
        ("list_then_send", False),
        ("find_exec", False),
        ("getter", False),
        ("budget", False),
        ("g\u0435t_user", False),
        ("", False),
        ("_", False),
    ],
)
def test_the_name_of_a_safe_action(name: str, safe: bool) -> None:
    assert is_obviously_safe(name, SAFE_VERBS, Facts(), opaque=False) is safe
    found = Facts(categories=frozenset(("financial",)))
    assert not is_obviously_safe(name, SAFE_VERBS, found, opaque=False)
    assert not is_obviously_safe(name, SAFE_VERBS, Facts(), opaque=True)
    assert not is_obviously_safe(name, (), Facts(), opaque=False)


@pytest.mark.parametrize(
    ("payload", "metadata"),
    [
        ({"password": "x"}, None),
        ({"text": "x" * 1001}, None),
        ({"deep": nested(33, 1)}, None),
        ({"lone": "\ud800"}, None),
        ({"raw": b"\xff"}, None),
        ({"big": 2**60}, None),
        ({"nan": float("nan")}, None),
        ({1: 2, "1": 3}, None),
        ({"x" * 1001: 1}, None),
        ({"object": object()}, None),
        ({}, {"password": "x"}),
        ({}, {"text": "x" * 1001}),
        ({}, {"category": "financial"}),
    ],
    ids=repr,
)
def test_what_was_not_seen_whole_is_not_safe(payload: Any, metadata: Any) -> None:
    assert not Action(SANITIZER, "a", "t", "look", payload, None, metadata, None).safe
    assert Action(SANITIZER, "a", "t", "look", {"n": [1, "x", None]}, None, {"k": 1}, None).safe


# -- metadata -------------------------------------------------------------------------

OPAQUE: dict[str, Any] = {
    "password": "hunter2",
    "text": "x" * 5000,
    "api_key": {"nested": ["sk_" + "x" * 20]},
    "n": 1.5,
    "none": None,
    "unicode": "\u00e9\U0001f600",
}


def test_metadata_arrives_as_it_was_given(
    fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """It is opaque, and stands in the receipt."""
    configure(fake)
    with countersign.Chain("opaque", metadata=OPAQUE, external_chain_id=" x\u00e9 ") as chain:
        pass
    assert fake.calls[0].body["metadata"] == OPAQUE
    assert fake.calls[0].body["external_chain_id"] == " x\u00e9 "
    assert chain.receipt is not None
    (warning,) = [r.getMessage() for r in caplog.records if "look like secrets" in r.getMessage()]
    assert "/password" in warning
    assert "hunter2" not in warning


def test_metadata_without_secrets_warns_of_nothing(
    fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    configure(fake)
    countersign.Chain("plain", metadata={"ticket": 7, "text": "x" * 5000, "id": uuid.uuid4()})
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"n": float("nan")}, "finite"),
        ({"n": 2**60}, "integers"),
        ({"lone": "\ud800"}, "Unicode"),
        ({"object": object()}, "JSON types"),
        ({("a", "tuple"): 1}, "JSON types"),
        ({object(): 1}, "JSON types"),
        ({"deep": nested(70, 1)}, "levels"),
        ([1], "mapping"),
    ],
    ids=["nan", "integer", "surrogate", "object", "tuple-key", "object-key", "depth", "list"],
)
def test_what_the_service_would_refuse_is_refused_here(
    fake: FakeService, metadata: Any, said: str
) -> None:
    configure(fake)
    with pytest.raises(countersign.ConfigurationError, match=said):
        countersign.Chain("refused", metadata=metadata)


def test_how_large_metadata_may_be_is_for_the_service_to_say(fake: FakeService) -> None:
    """Both are sent as they were given, neither cut nor redacted, and the service refuses what is
    too large. What it accepts is in the receipt."""
    configure(fake)
    metadata = {"big": "x" * (15 << 10), "password": "hunter2"}
    external = "x" * 180 + " password=hunter2 "
    with countersign.Chain("full", metadata=metadata, external_chain_id=external) as chain:
        pass
    assert fake.chains[0]["metadata"] == metadata
    assert fake.chains[0]["external_chain_id"] == external
    assert chain.receipt is not None
    assert chain.receipt["metadata"] == metadata
    assert chain.receipt["external_chain_id"] == external
    for larger in ({"metadata": metadata | {"more": "x" * 4000}}, {"external_chain_id": "x" * 201}):
        with pytest.raises(countersign.APIError, match="the service answered 422"):
            countersign.Chain("full", **larger).__enter__()
        assert fake.calls[-1].body.items() >= larger.items()
