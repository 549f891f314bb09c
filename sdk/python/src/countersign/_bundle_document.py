"""Parsing evidence bundles: one JSON object in canonical form. See docs/bundles.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

from countersign._canonical import canonical

__all__ = [
    "MAX_BYTES",
    "Anchor",
    "Approval",
    "BundleError",
    "Document",
    "Entry",
    "read_document",
    "read_object",
]

MAX_BYTES = 64 << 20
_MAX_DEPTH = 64
_FORMAT = "countersign-bundle-v1"


class BundleError(ValueError):
    """The data is not an evidence bundle, so there is nothing to check. The message says why."""


@dataclass(frozen=True)
class Entry:
    body: str
    payload: str | None
    redactions: str | None


@dataclass(frozen=True)
class Approval:
    key_id: str | None
    record: str
    signature: str | None


@dataclass(frozen=True)
class Anchor:
    digest: str
    method: str
    proof: str
    subject: str


@dataclass(frozen=True)
class Document:
    """A parsed bundle. Nothing in it is verified."""

    anchors: list[Anchor]
    approvals: list[Approval] | None
    entries: list[Entry] | None
    log_proof: str
    receipt: str
    receipt_hash: str
    signing_keys: str | None


_MEMBERS = {
    "anchors": "array",
    "approvals": "array or null",
    "entries": "array or null",
    "format": "string",
    "generated_at": "string",
    "log_proof": "string",
    "receipt": "string",
    "receipt_hash": "string",
    "signing_keys": "string or null",
}
_ENTRY = {"body": "string", "payload": "string or null", "redactions": "string or null"}
_APPROVAL = {"key_id": "string or null", "record": "string", "signature": "string or null"}
_ANCHOR = dict.fromkeys(("digest", "method", "proof", "subject"), "string")
_MAY_BE_EMPTY = ("payload", "redactions")
_NAMES = {str: "string", list: "array", type(None): "null"}


def read_document(data: bytes) -> Document:
    """Parse a bundle. Raises ``BundleError`` for anything else."""
    if len(data) > MAX_BYTES:
        raise BundleError(f"a bundle has at most {MAX_BYTES >> 20} MiB, and this has more")
    text = data.removesuffix(b"\n")
    try:
        found = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_members,
            parse_int=_no_number,
            parse_float=_no_number,
            parse_constant=_no_number,
        )
    except UnicodeDecodeError:
        raise BundleError("not a bundle: it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BundleError(f"not a bundle: it is not JSON ({error})") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"not a bundle: {error}") from None
    members = _object(found, _MEMBERS, "the bundle")
    if members["format"] != _FORMAT:
        raise BundleError(f"not a bundle of the format {_FORMAT}, the only one that is supported")
    if (members["approvals"] is None) != (members["entries"] is None):
        raise BundleError("not a bundle: only one of approvals and entries is null")
    document = Document(
        anchors=[Anchor(**_object(a, _ANCHOR, "an anchor")) for a in members["anchors"]],
        approvals=_list(members["approvals"], Approval, _APPROVAL, "an approval"),
        entries=_list(members["entries"], Entry, _ENTRY, "an entry"),
        log_proof=members["log_proof"],
        receipt=members["receipt"],
        receipt_hash=members["receipt_hash"],
        signing_keys=members["signing_keys"],
    )
    try:
        same = canonical(found) == text
    except UnicodeEncodeError:
        raise BundleError("not a bundle: a string has half a surrogate pair") from None
    if not same:
        raise BundleError("not a bundle: it is not in canonical form")
    return document


def _list(found: Any, kind: Any, members: Mapping[str, str], what: str) -> Any:
    return None if found is None else [kind(**_object(item, members, what)) for item in found]


def _object(found: Any, members: Mapping[str, str], what: str) -> dict[str, Any]:
    """Return the object if it has exactly these members."""
    if not isinstance(found, dict):
        raise BundleError(f"not a bundle: {what} is not an object")
    if missing := members.keys() - found.keys():
        raise BundleError(f"not a bundle: {what} has no {min(missing)!r}")
    if unknown := found.keys() - members.keys():
        raise BundleError(f"not a bundle: {what} has an unknown member {min(unknown)[:100]!a}")
    for name, wanted in members.items():
        if _NAMES.get(type(found[name])) not in wanted.split(" or "):
            raise BundleError(f"not a bundle: {name!r} of {what} must be: {wanted}")
        if found[name] == "" and wanted == "string or null" and name not in _MAY_BE_EMPTY:
            raise BundleError(f"not a bundle: {name!r} of {what} is empty, not null")
    return found


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has a member twice")
    return members


def _no_number(text: str) -> NoReturn:
    raise ValueError("it holds a number, and a bundle has none")


def read_object(text: str) -> dict[str, Any] | None:
    """Parse an embedded JSON object; None if it is not one.

    Like the bundle it must be unambiguous: no duplicate members, and no strings or numbers that
    another parser could read differently.

    >>> read_object('{"a":1}'), read_object('{"a":1,"a":2}'), read_object('{"a":9007199254740993}')
    ({'a': 1}, None, None)
    """
    try:
        found = json.loads(
            text,
            object_pairs_hook=_members,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_no_number,
        )
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return found if isinstance(found, dict) and not _deeper(found, _MAX_DEPTH) else None


def _number(text: str) -> int | float:
    """Parse a number that survives the conversion to a double and back."""
    value = float(text)
    if value == 0:
        # Decimal refuses zeros with exponents that it cannot hold.
        exact = not text.lower().partition("e")[0].strip("-0.")
    else:
        exact = math.isfinite(value) and Decimal(text) == Decimal(repr(value))
    if not exact:
        raise ValueError("a number that no double holds")
    return int(value) if value.is_integer() and abs(value) <= 2**53 else value


def _deeper(value: Any, depth: int) -> bool:
    """Whether objects and lists are nested deeper than ``depth``."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_deeper(item, depth - 1) for item in inner)
