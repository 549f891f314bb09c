"""Holds an independent JCS implementation to the vectors that the Go code is tested with.

Receipts are signed over canonical JSON. If two languages disagreed about one byte
of it, a genuine receipt would look forged; so both are held to one file.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import rfc8785

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


@pytest.mark.parametrize("vector", VECTORS["numbers"], ids=lambda vector: vector["ieee754"])
def test_number(vector: dict[str, str | None]) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(vector["ieee754"]))
    if vector["text"] is None:
        with pytest.raises(rfc8785.FloatDomainError):
            rfc8785.dumps(number)
    else:
        assert rfc8785.dumps(number).decode("utf-8") == vector["text"]


@pytest.mark.parametrize("group", ["canonical", "numbers"])
def test_vectors_are_there(group: str) -> None:
    # An empty list would make the tests above pass without looking at anything.
    assert VECTORS[group]
