"""Holds the client, and an independent JCS implementation, to the vectors that the Go code is
tested with.

Receipts are signed over canonical JSON. If two languages disagreed about one byte
of it, a genuine receipt would look forged; so both are held to one file.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from countersign._action import digest_of
from countersign._canonical import canonical
from countersign._classify import QUERY_WORDS, STATEMENT_WORDS, classify
from countersign._config import DEFAULT_FIELD_PATTERNS, DEFAULT_VALUE_PATTERNS
from countersign._domains import AMBIGUOUS_EXTENSIONS, FILE_EXTENSIONS, GENERIC_DOMAINS
from countersign._redact import CYCLE, OMITTED, REDACTED, TOO_DEEP, TRUNCATED, Sanitizer
from countersign._safe import (
    CONNECTIVES,
    SAFE_VERBS,
    UNSAFE_WORDS,
    is_obviously_safe,
)
from countersign._validate import addresses, domains
from countersign._words import fold_name
from countersign.exceptions import ConfigurationError

VECTORS = json.loads(
    (Path(__file__).parents[3] / "testdata" / "vectors" / "canonical.json").read_text("utf-8")
)


MARKERS = (REDACTED, CYCLE, TOO_DEEP, OMITTED, TRUNCATED)


def is_opaque(value: Any) -> bool:
    """Whether something was taken out of a sanitized value, as the service finds it."""
    if isinstance(value, str):
        return any(marker in value for marker in MARKERS)
    if isinstance(value, dict):
        return any(is_opaque(key) or is_opaque(item) for key, item in value.items())
    return isinstance(value, list) and any(map(is_opaque, value))


def number_from(text: str) -> int | float:
    # To JCS every number is a double. Python's int is not, and rfc8785 takes it
    # only as far as a double counts without gaps.
    number = int(text)
    return number if abs(number) < 2**53 else float(text)


@pytest.mark.parametrize(
    "vector", VECTORS["canonical"] + VECTORS["writer"], ids=lambda vector: vector["name"]
)
def test_canonical_form(vector: dict[str, str]) -> None:
    value = json.loads(vector["input"], parse_int=number_from)
    assert rfc8785.dumps(value).decode("utf-8") == vector["output"]
    assert canonical(value).decode("utf-8") == vector["output"]
    assert canonical(json.loads(vector["input"])).decode("utf-8") == vector["output"]


BINDING = json.loads(
    (Path(__file__).parents[3] / "testdata" / "vectors" / "binding.json").read_text("utf-8")
)


@pytest.mark.parametrize("vector", BINDING["digests"], ids=lambda vector: vector["raw"])
def test_digest_of_what_was_taken_out(vector: dict[str, str]) -> None:
    key = base64.b64decode(BINDING["binding_key"])
    assert digest_of(key, json.loads(vector["raw"])) == vector["digest"]
    assert digest_of(None, json.loads(vector["raw"])) is None


@pytest.mark.parametrize("marker", [REDACTED, TRUNCATED, CYCLE, TOO_DEEP, OMITTED])
def test_the_service_knows_every_marker(marker: str) -> None:
    assert BINDING["markers"][marker] is True


@pytest.mark.parametrize("vector", VECTORS["numbers"], ids=lambda vector: vector["ieee754"])
def test_number(vector: dict[str, Any]) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(vector["ieee754"]))
    if vector["text"] is None:
        with pytest.raises(rfc8785.FloatDomainError):
            rfc8785.dumps(number)
        with pytest.raises(ValueError, match="no such number"):
            canonical(number)
    else:
        assert rfc8785.dumps(number).decode("utf-8") == vector["text"]
        assert canonical(number).decode("utf-8") == vector["text"]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_is_written_as_the_independent_implementation_does(number: float) -> None:
    assert canonical(number) == rfc8785.dumps(number)


@pytest.mark.parametrize("group", ["canonical", "numbers"])
def test_vectors_are_there(group: str) -> None:
    # An empty list would make the tests above pass without looking at anything.
    assert VECTORS[group]


def vectors(name: str) -> Any:
    path = Path(__file__).parents[3] / "testdata" / "vectors" / name
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("name", ["receipts.json", "receipts-v2.json"])
def test_receipts_hold(name: str) -> None:
    """Receipts of both formats are canonical, signed and linked, by code that shares nothing with
    the service's."""
    ledger = vectors(name)
    key = bytes.fromhex(ledger["receipt_key_hex"])
    previous = None
    for receipt in ledger["receipts"]:
        fields = json.loads(receipt["signed"])
        assert canonical(fields).decode() == receipt["signed"]
        assert fields["previous_receipt_hash"] == previous
        signature = fields.pop("signature")
        unsigned = canonical(fields)
        assert unsigned.decode() == receipt["unsigned"]
        assert signature == "hmac-sha256:" + hmac.new(key, unsigned, "sha256").hexdigest()
        previous = "sha256:" + hashlib.sha256(receipt["signed"].encode()).hexdigest()
        assert receipt["hash"] == previous


def test_the_second_format_says_more() -> None:
    """The members that the second format added, as Python reads them."""
    sealed = [json.loads(r["signed"]) for r in vectors("receipts-v2.json")["receipts"]]
    added = ("environment", "evaluation_mode", "external_chain_id")
    assert [tuple(r[name] for name in added) for r in sealed] == [
        ("staging", "enforce", ' run\t"7" \u2028,"format":"x"'),
        ("production", "shadow", None),
        ("production", None, None),
    ]
    assert [r["cumulative_metrics"]["unpriced_calls_count"] for r in sealed] == [1, 0, 0]
    assert [r["total_actions"] for r in sealed] == [2, 2, 0]
    assert {r["format"] for r in sealed} == {"countersign-receipt-v2"}


@pytest.mark.parametrize(
    "vector",
    vectors("imported-approvals.json")["imported"],
    ids=lambda vector: vector["approval_id"],
)
def test_record_of_an_imported_approval(vector: dict[str, str]) -> None:
    record = json.loads(vector["line"])["decision_record"]
    assert canonical(record).decode("utf-8") == vector["decision_record"]
    assert rfc8785.dumps(record) == canonical(record)
    assert "sha256:" + hashlib.sha256(canonical(record)).hexdigest() == vector["hash"]


CLASSIFICATION = vectors("classification.json")["cases"]
LIMITS = vectors("limits.json")


@pytest.mark.parametrize("address", LIMITS["addresses"]["accepted"])
def test_an_address_of_an_approver(address: str) -> None:
    """The client accepts the addresses that the service accepts."""
    assert addresses("fallback_approvers", [address]) == (address,)


@pytest.mark.parametrize("address", LIMITS["addresses"]["refused"])
def test_no_address_of_an_approver(address: str) -> None:
    """The client refuses what the service would refuse when the first chain is opened."""
    with pytest.raises(ConfigurationError, match=r"fallback_approvers\[0\]"):
        addresses("fallback_approvers", [address])


@pytest.mark.parametrize("case", LIMITS["domains"], ids=lambda case: ascii(case["given"]))
def test_a_domain_of_an_allowlist(case: dict[str, Any]) -> None:
    """The client sends a domain in the form that the service compares, or refuses it: another form
    would be another domain, and never match."""
    if case.get("may_be_refused"):
        with pytest.raises(ConfigurationError, match="in the form that is looked up"):
            domains("allowlist", [case["given"]])
    else:
        assert domains("allowlist", [case["given"]]) == (case["compared"],)


REDACTION = vectors("redaction.json")
SANITIZER = Sanitizer(DEFAULT_FIELD_PATTERNS, DEFAULT_VALUE_PATTERNS, 1000)


def test_a_hundred_cases_of_each_are_there() -> None:
    assert min(len(CLASSIFICATION), len(REDACTION["values"])) > 100
    assert REDACTION["texts"]


@pytest.mark.parametrize("case", CLASSIFICATION, ids=lambda case: case["name"])
def test_facts(case: dict[str, Any]) -> None:
    action = case["action"]
    arguments = (
        action["action_type"],
        action["action_name"],
        action["payload"],
        action.get("metadata"),
    )
    facts = classify(*arguments)
    found = facts._asdict()
    found["categories"] = sorted(facts.categories)
    found["external_domains"] = list(facts.external_domains)
    found["amount_usd"] = None if facts.amount_usd is None else plain(facts.amount_usd)
    found["has_amount"] = facts.amount_usd is not None
    assert not found.pop("unseen")
    found.pop("code")  # held to the cases of safe.json
    assert found == {name: case[name] for name in found}


def plain(amount: Decimal) -> str:
    """An amount as the vectors write it: without an exponent and trailing zeros."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def test_lists() -> None:
    lists = vectors("hosts.json")
    assert sorted(FILE_EXTENSIONS) == lists["file_extensions"]
    assert sorted(AMBIGUOUS_EXTENSIONS) == lists["ambiguous_extensions"]
    assert sorted(GENERIC_DOMAINS) == lists["generic_domains"]


SAFE = vectors("safe.json")


def test_the_words_of_safe_names() -> None:
    assert sorted(SAFE_VERBS) == SAFE["safe_verbs"]
    assert sorted(UNSAFE_WORDS) == SAFE["unsafe_words"]
    assert sorted(CONNECTIVES) == SAFE["connectives"]
    assert sorted(STATEMENT_WORDS) == SAFE["statement_words"]
    assert sorted(QUERY_WORDS) == SAFE["query_words"]
    assert len(SAFE["cases"]) >= 120


@pytest.mark.parametrize("case", SAFE["cases"], ids=lambda case: case["name"])
def test_obviously_safe(case: dict[str, Any]) -> None:
    action = case["action"]
    name, payload = action["action_name"], action["payload"]
    facts = classify(action["action_type"], name, payload, action.get("metadata"))
    opaque = case.get("opaque", False) or is_opaque(payload)
    allowed = case.get("allowed", SAFE["safe_verbs"])
    assert is_obviously_safe(name, allowed, facts, opaque) == case["safe"]


RISKS = vectors("risks.json")


@pytest.mark.parametrize("case", RISKS["cases"], ids=lambda case: case["name"])
def test_what_the_service_flags_is_left_to_it(case: dict[str, Any]) -> None:
    action = case["action"]
    name, payload = action["action_name"], action["payload"]
    facts = classify(action["action_type"], name, payload, None)
    assert not (case["risks"] and is_obviously_safe(name, SAFE_VERBS, facts, is_opaque(payload)))


DEPTH = vectors("depth.json")


@pytest.mark.parametrize("case", DEPTH["cases"], ids=lambda case: case["name"])
def test_depth(case: dict[str, Any]) -> None:
    value: Any = {"amount_usd": 5}
    for i in reversed(range(case["containers"])):
        nested = case["kind"] == "object" or (case["kind"] == "mixed" and i % 2 == 1)
        value = {"a": value} if nested else [value]
    facts = classify("tool_call", "get_it", {"x": value}, None)
    assert (facts.amount_usd is not None) == case["found"]
    assert facts.unseen == case["unseen"]
    assert not is_obviously_safe("get_it", SAFE_VERBS, facts, opaque=False)


def test_what_is_too_large_is_unseen() -> None:
    for value in (["x"] * 300_000, "x" * (5 << 20), {"k" * (5 << 20): 1}, [[0] * 1000] * 1000):
        facts = classify("tool_call", "get_it", {"x": value}, None)
        assert facts.unseen
    ring: list[Any] = []
    ring.append(ring)
    assert classify("tool_call", "get_it", {"x": ring}, None).unseen


NAMES = vectors("names.json")


@pytest.mark.parametrize("case", NAMES["same"], ids=lambda case: case["name"])
def test_folded_names(case: dict[str, Any]) -> None:
    assert case["spellings"]
    for spelling in (*case["spellings"], case["folded"]):
        assert fold_name(spelling) == case["folded"]


@pytest.mark.parametrize(
    "case", NAMES["different"] + NAMES["homoglyphs"], ids=lambda case: case["name"]
)
def test_names_that_stay_different(case: dict[str, str]) -> None:
    assert fold_name(case["one"]) != fold_name(case["other"])


@pytest.mark.parametrize("vector", REDACTION["values"], ids=lambda vector: vector["name"])
def test_redacted_value(vector: dict[str, Any]) -> None:
    redacted = SANITIZER.clean(vector["input"])
    assert redacted == vector["output"]
    assert SANITIZER.clean(redacted) == redacted


@pytest.mark.parametrize("vector", REDACTION["texts"], ids=lambda vector: vector["name"])
def test_redacted_text(vector: dict[str, str]) -> None:
    redacted = SANITIZER.prose(vector["input"])
    assert redacted == vector["output"]
    assert SANITIZER.prose(redacted) == redacted
