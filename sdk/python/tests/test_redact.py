"""Sanitizing: whatever an agent passes, what leaves is JSON without secrets."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import re
import types
import uuid
from collections import OrderedDict, deque
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersign._classify import classify
from countersign._config import DEFAULT_FIELD_PATTERNS, DEFAULT_VALUE_PATTERNS
from countersign._plain import Snapshot
from countersign._redact import OMITTED, REDACTED, Sanitizer, encode
from countersign._secrets_in_text import TextRedactor
from countersign._words import first_word, fold_name, words_of

SANITIZER = Sanitizer(DEFAULT_FIELD_PATTERNS, DEFAULT_VALUE_PATTERNS, 1000)
clean = SANITIZER.clean


def cleaned_object(value: Any, *limit: int) -> dict[str, Any]:
    cleaned: dict[str, Any] = SANITIZER.clean_object(value, *limit).value
    return cleaned


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Login:
    user: str
    password: str


class Model:
    def model_dump(self) -> dict[str, Any]:
        return {"name": "n", "api_key": "k"}


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__

    def model_dump(self) -> dict[str, Any]:
        raise RuntimeError("no")


class HostileMapping(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (2**53, 2**53),
        (2**53 + 1, str(2**53 + 1)),
        (-(2**60), str(-(2**60))),
        (10**5000, "<integer of 16610 bits>"),
        (1.5, 1.5),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("\ud800x", "\ufffdx"),
        ("\U0001f600", "\U0001f600"),
        (decimal.Decimal("1200.50"), "1200.50"),
        (3 + 4j, "(3+4j)"),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc), "2026-01-02T00:00:00+00:00"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.timedelta(seconds=90), 90.0),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (b"text", "text"),
        (b"\xff\x00", "<2 bytes>"),
        (bytearray(b"ab"), "ab"),
        (Colour.RED, "red"),
        (Point(1, 2), [1, 2]),
        ((1, 2), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        (deque([1]), [1]),
        (OrderedDict(a=1), {"a": 1}),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (Login("u", "p"), {"user": "u", "password": REDACTED}),
        (Model(), {"name": "n", "api_key": REDACTED}),
        (ValueError("bad sk_aaaaaaaaaa"), {"type": "ValueError", "message": "bad [REDACTED]"}),
        ({1: 2, "1": 5, None: 3, 0.5: 4}, {"1": 2, "1_": 5, "null": 3, "0.5": 4}),
        ({(1, 2): 3}, {"<list>": 3}),
        (object(), "<object>"),
        (len, "<len>"),
        (Hostile(), "<unreadable Hostile>"),
        (HostileMapping(a=1), "<unreadable HostileMapping>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_becomes_json(value: Any, expected: Any) -> None:
    assert clean(value) == expected
    encode(clean(value))


def test_cycles_end() -> None:
    ring: dict[str, Any] = {"a": [1]}
    ring["a"].append(ring)
    assert clean(ring) == {"a": [1, "[CYCLE]"]}
    shared = [1]
    assert clean([shared, shared]) == [[1], [1]]


def test_depth_is_bounded() -> None:
    value: Any = "bottom"
    for _ in range(10_000):
        value = [value]
    text = json.dumps(clean(value))
    assert text.count("[") < 40
    assert "TOO DEEP" in text


def test_size_is_bounded() -> None:
    for value in (
        {"many": ["x" * 1000] * 5000},
        {"escaped": ["\x00" * 1000] * 5000},
        {"wide": ["\U0001f600" * 1000] * 5000},
        {str(n): n for n in range(200_000)},
        {"k" * 10**7: 1},
    ):
        cleaned = cleaned_object(value)
        assert len(encode(cleaned)) <= 512 << 10
        assert isinstance(cleaned, dict)
    assert OMITTED in json.dumps(cleaned_object({"many": ["x" * 1000] * 5000}))


def test_keys_that_look_alike_count_for_the_size() -> None:
    """The names of keys that JSON does not tell apart are bounded like everything else. They grew
    with every key, uncounted, and 4,000 tuples as keys took nine seconds."""
    value = Snapshot({(n, n): n for n in range(5000)}).value
    assert sum(map(len, value)) <= 8 << 20
    assert OMITTED in value
    assert list(value)[:3] == ["<list>", "<list>_", "<list>__"]


def test_an_object_is_made_of_anything() -> None:
    assert cleaned_object(None) == {}
    assert cleaned_object([1]) == {"value": [1]}


@pytest.mark.parametrize("length", [1, 5, 20, 1000])
def test_long_strings_are_truncated_to_the_limit(length: int) -> None:
    sanitizer = Sanitizer([], [], length)
    assert sanitizer.text("x" * length) == "x" * length
    cut = sanitizer.text("x" * (length + 1))
    assert cut.endswith("...[truncated]")
    assert len(cut) == max(length, len("...[truncated]"))
    if length >= 20:
        assert sanitizer.text("x" * 2000).endswith("...[truncated]")


def test_a_secret_across_the_cut_is_not_saved_by_it() -> None:
    sanitizer = Sanitizer([], ["sk_"], 20)
    assert "sk_" not in sanitizer.text("fifteen letters " + "sk_" + "a" * 40)


def test_credentials_far_behind_their_header_are_found() -> None:
    """As in the service, any number of blanks may come between a header and its credentials."""
    text = "authorization:" + " " * 1500 + "Basic "
    assert Sanitizer((), (), 5000).clean(text + "dXNlcg") == text + REDACTED


def test_the_caller_s_patterns_count() -> None:
    sanitizer = Sanitizer([*DEFAULT_FIELD_PATTERNS, "IBAN", "bank_account"], ["xoxb-"], 1000)
    assert sanitizer.clean({"my_iban": 1, "bankAccount": "x", "kept": "xoxb-1", "b": "banker"}) == {
        "my_iban": REDACTED,
        "bankAccount": REDACTED,
        "kept": REDACTED,
        "b": "banker",
    }
    assert sanitizer.text("see xoxb-123456789 there") == "see [REDACTED] there"
    assert sanitizer.text("iban=DE00 1") == "iban=[REDACTED] 1"


def test_nothing_of_the_callers_is_changed() -> None:
    value = {"a": [{"password": "p"}, {1, 2}], "t": (1, [2]), "s": "sk_aaaaaaaaaaa"}
    before = copy.deepcopy(value)
    clean(value)
    assert value == before


# -- properties -----------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4)
)
secrets = st.builds(
    lambda prefix, body: prefix + body,
    st.sampled_from(DEFAULT_VALUE_PATTERNS),
    st.text("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", min_size=12, max_size=24),
)
around = st.text(" .,;:()\n\té", max_size=6)


@given(values)
def test_everything_becomes_strict_json(value: Any) -> None:
    cleaned = clean(value)
    json.loads(encode(cleaned).decode("utf-8"))
    assert clean(cleaned) == cleaned


@given(values)
def test_the_structure_is_kept(value: Any) -> None:
    same_shape(value, clean(value))


def same_shape(before: Any, after: Any) -> None:
    if isinstance(before, dict):
        assert list(after) == list(before)
        for name, inner in before.items():
            if after[name] != REDACTED:
                same_shape(inner, after[name])
    elif isinstance(before, list):
        assert len(after) == len(before)
        for one, other in zip(before, after, strict=True):
            same_shape(one, other)
    elif isinstance(before, bool) or before is None:
        assert after is before


@given(values, secrets, around, around)
def test_no_planted_secret_survives(value: Any, secret: str, left: str, right: str) -> None:
    planted = {"outer": [value, {"inner": f"{left}{secret}{right}", "list": [secret]}]}
    assert secret not in encode(clean(planted)).decode("utf-8")
    assert secret not in SANITIZER.prose(f"{left}{secret}{right}")


@given(st.sampled_from(DEFAULT_FIELD_PATTERNS), values, names, names)
def test_no_value_under_a_sensitive_name_survives(
    pattern: str, value: Any, before: str, after: str
) -> None:
    name = f"{before}{pattern.upper()}{after}"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    cleaned = clean({name: value})[name]
    assert cleaned == REDACTED or (number and SANITIZER.is_counter(name))


@given(names, names, values)
def test_classifying_never_raises(kind: str, name: str, value: Any) -> None:
    payload = cleaned_object(value)
    assert classify(kind, name, payload, payload).categories <= {
        "financial",
        "external_communication",
        "data_modification",
        "llm",
    }


@given(names, st.sampled_from("\u200b\u00ad\u202e\ufe0f\u3164\U000e0041"), st.integers(0, 12))
def test_folding_a_name_twice_changes_nothing_more(name: str, hidden: str, at: int) -> None:
    folded = fold_name(name)
    assert fold_name(folded) == folded
    assert fold_name(name[:at] + hidden + name[at:]) == folded


class Thorough(TextRedactor):
    """Searches every text to its end, without asking first whether it can contain a secret."""

    def __init__(self) -> None:
        super().__init__(DEFAULT_VALUE_PATTERNS, SANITIZER.is_sensitive, SANITIZER.is_counter)
        self._trigger = re.compile("")


THOROUGH = Thorough()
SECRETS = [
    *(prefix + "abcdefgh12345678ABCD" for prefix in ("sk_", "AKIA", "sk-", "SG.", "Bearer ")),
    *("basic dXNlcjpwYXNz", "password=x", '"token": "x"', "api-key: abcd1234", "cookie: a=b"),
    *("https://u:p@h", "-----BEGIN PRIVATE KEY-----"),
]
EDGES = ["a", "_", "7", "-", ".", " ", "\n", "\u00e9"]


@given(
    st.lists(st.sampled_from(SECRETS) | st.sampled_from(EDGES) | st.text(max_size=3), max_size=3)
)
def test_a_text_that_is_not_searched_has_no_secret(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert SANITIZER._texts.inside(text) == THOROUGH.inside(text)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("before", ["", *EDGES])
def test_no_secret_hides_behind_what_is_before_it(secret: str, before: str) -> None:
    assert SANITIZER._texts.inside(before + secret) == THOROUGH.inside(before + secret)
    if not before or not (before.isascii() and (before.isalnum() or before == "_")):
        assert REDACTED in SANITIZER._texts.inside(before + secret)


@given(st.text(max_size=20))
def test_the_first_word_is_the_first_of_the_words(text: str) -> None:
    assert [first_word(text)] == (words_of(text)[:1] or [""])
