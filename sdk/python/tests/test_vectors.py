"""Holds the client, and an independent JCS implementation, to the vectors that the Go code is
tested with.

Receipts are signed over canonical JSON. If two languages disagreed about one byte
of it, a genuine receipt would look forged; so both are held to one file.
"""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from countersign._canonical import canonical
from countersign._classify import categories_of, classify
from countersign._config import DEFAULT_FIELD_PATTERNS, DEFAULT_VALUE_PATTERNS
from countersign._domains import AMBIGUOUS_EXTENSIONS, FILE_EXTENSIONS, GENERIC_DOMAINS
from countersign._redact import Sanitizer
from countersign._words import fold_name

VECTORS = json.loads(
    (Path(__file__).parents[3] / "testdata" / "vectors" / "canonical.json").read_text("utf-8")
)


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


CLASSIFICATION = vectors("classification.json")["cases"]
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
    assert found == {name: case[name] for name in found}
    assert categories_of(*arguments) == facts.categories


def plain(amount: Decimal) -> str:
    """An amount as the vectors write it: without an exponent and trailing zeros."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def test_lists() -> None:
    lists = vectors("hosts.json")
    assert sorted(FILE_EXTENSIONS) == lists["file_extensions"]
    assert sorted(AMBIGUOUS_EXTENSIONS) == lists["ambiguous_extensions"]
    assert sorted(GENERIC_DOMAINS) == lists["generic_domains"]


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
