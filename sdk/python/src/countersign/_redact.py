"""Sanitizing: turning any value into JSON that is safe to send.

Secrets are redacted and long texts are cut. The raw values are kept by their JSON pointers, so that
digests can bind them to the action.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from countersign._plain import CYCLE, OMITTED, TOO_DEEP, Snapshot, without_surrogates
from countersign._secrets_in_text import REDACTED, TextRedactor, is_cookie, without_credentials
from countersign._words import lower, words_of

__all__ = [
    "CYCLE",
    "OMITTED",
    "REDACTED",
    "TOO_DEEP",
    "TRUNCATED",
    "Cleaned",
    "Sanitizer",
    "encode",
    "pointer_to",
]

TRUNCATED = "...[truncated]"

_MAX_DEPTH = 32  # the service accepts 64, and the action around the payload needs a few
_MAX_BYTES = 512 << 10  # the service accepts 1 MiB in a request
_MAX_REDACTIONS = 2000  # digests that the service accepts for one action
_LOOK_AHEAD = 4096  # characters after the cut that are searched for the end of a secret
_SEPARATORS = re.compile("[_ -]")
_HEADERS = re.compile("cookie|authorization", re.IGNORECASE)
# Sensitive names in addition to the configurable patterns. Those of two words have no separator.
_MORE_NAMES = ("passwd", "pwd", "passphrase")
_MORE_PHRASES = ("accountkey", "sharedaccesskey")
# With one of these words a name that contains "token" is a counter: token_count, tokenLimit.
_COUNTERS = frozenset(["budget", "count", "counts", "limit", "number", "total", "usage", "used"])


class Sanitizer:
    """Sanitizes values by compiled patterns.

    >>> Sanitizer(["password"], ["sk_"], 20).clean({"password": "x", "note": "a" * 30})
    {'password': '[REDACTED]', 'note': 'aaaaaa...[truncated]'}
    """

    def __init__(self, fields: Sequence[str], values: Sequence[str], longest: int) -> None:
        folded = [lower(f) for f in fields]
        # Patterns of two words also match without the separator (apiKey). Single words do not, or
        # business_name would contain ssn.
        plain = [*(f for f in folded if not _SEPARATORS.search(f)), *_MORE_NAMES]
        parted = [_SEPARATORS.sub("", f) for f in folded if _SEPARATORS.search(f)]
        self._plain = re.compile("|".join(map(re.escape, plain)))
        self._parted = re.compile("|".join(map(re.escape, (*filter(None, parted), *_MORE_PHRASES))))
        self._longest = longest
        self.is_sensitive = lru_cache(maxsize=4096)(self._is_sensitive)
        self.is_counter = lru_cache(maxsize=1024)(self._is_counter)
        self._texts = TextRedactor(values, self.is_sensitive, self.is_counter)

    def clean(self, value: Any, max_bytes: int = _MAX_BYTES) -> Any:
        """Return a sanitized copy of ``value`` as JSON types."""
        return _Walk(self, max_bytes).visit(Snapshot(value).value, 0)

    def clean_object(
        self, value: Any, max_bytes: int = _MAX_BYTES, *, redact: Collection[str] = ()
    ) -> Cleaned:
        """Sanitize ``value`` as an object of at most ``max_bytes`` of JSON, and keep what was
        removed. The members at the JSON pointers of ``redact`` are always removed.

        If more values are removed than the service accepts digests for, the whole value is removed
        and bound by a single digest.
        """
        snapshot = Snapshot(value)
        raw = snapshot.value
        if not isinstance(raw, dict):
            raw = snapshot.value = {} if raw is None else {"value": raw}
        budget = max_bytes
        for _ in range(8):
            walk = _Walk(self, budget, redact)
            cleaned = walk.visit(raw, 0)
            if len(walk.redacted) > _MAX_REDACTIONS:
                break
            # The walk only estimates the size: escapes can make a text six times as long.
            if walk.spent * 6 <= max_bytes or len(encode(cleaned)) <= max_bytes:
                return Cleaned(cleaned, walk, snapshot)
            budget //= 2
        walk.redacted = {"/value": raw}
        return Cleaned({"value": OMITTED}, walk, snapshot)

    def secrets_in(self, value: Any) -> list[str]:
        """Return the JSON pointers of the secrets in a value, without texts that were only cut."""
        walk = _Walk(self, _MAX_BYTES)
        walk.visit(value, 0)
        return [pointer for pointer, raw in walk.redacted.items() if self._is_secret(pointer, raw)]

    def _is_secret(self, pointer: str, raw: Any) -> bool:
        if isinstance(raw, str) and REDACTED in self._texts.value(raw):
            return True
        name = pointer.rpartition("/")[2].replace("~1", "/").replace("~0", "~")
        return self.is_sensitive(name)

    def text(self, value: str) -> str:
        """Sanitize a string: redact secrets, replace lone surrogates, cut it to size."""
        return self._cut(self._texts.value(self._readable(value)))

    def prose(self, value: str) -> str:
        """Sanitize free text, such as an error message. The service refuses U+0000 in it."""
        return self._cut(self._texts.prose(self._readable(value)).replace("\x00", "\ufffd"))

    def _readable(self, value: str) -> str:
        # Cut before the search to bound its cost. The look-ahead ensures that a secret is found
        # before the final cut divides it.
        value = value[: self._longest + _LOOK_AHEAD]
        return value if value.isascii() else without_surrogates(value)

    def _cut(self, value: str) -> str:
        if len(value) <= self._longest:
            return value
        # The marker stays whole even if it exceeds the limit: the service recognizes it.
        return value[: max(self._longest - len(TRUNCATED), 0)] + TRUNCATED

    def _is_sensitive(self, name: str) -> bool:
        folded = lower(name)
        if self._plain.search(folded):
            return True
        return self._parted.search(_SEPARATORS.sub("", folded)) is not None

    def _is_counter(self, name: str) -> bool:
        """Whether a name is a count of tokens and contains nothing else that is sensitive."""
        words = words_of(name)
        if "tokens" not in words and ("token" not in words or not _COUNTERS.intersection(words)):
            return False
        return not self._is_sensitive(lower(name).replace("token", ""))


class Cleaned:
    """A sanitized value, and what was removed from it."""

    __slots__ = ("raw", "redacted", "snapshot", "value")

    def __init__(self, value: Any, walk: _Walk, snapshot: Snapshot) -> None:
        self.value = value
        self.redacted: Mapping[str, Any] = walk.redacted
        """The raw values that were redacted or cut, by JSON pointer."""
        self.raw = snapshot.value
        self.snapshot = snapshot

    @property
    def untouched(self) -> bool:
        """Whether the whole value was read and is sent unchanged."""
        return not self.redacted and self.snapshot.faithful


class _Walk:
    """One pass over one snapshot."""

    __slots__ = ("_limit", "_named", "_path", "_remaining", "_sanitizer", "redacted")

    def __init__(self, sanitizer: Sanitizer, max_bytes: int, named: Collection[str] = ()) -> None:
        self._sanitizer = sanitizer
        self._named = named  # JSON pointers of members that are always redacted
        self._remaining = self._limit = max_bytes
        self._path: list[str | int] = []
        self.redacted: dict[str, Any] = {}

    @property
    def spent(self) -> int:
        """The approximate length of the result in JSON."""
        return self._limit - self._remaining

    def visit(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            text = self._sanitizer.text(value)
            self._remaining -= len(text) + 3
            if self._remaining <= 0:
                return self._replace(value, OMITTED)
            return text if text == value else self._replace(value, text)
        if kind is int or kind is float:
            self._remaining -= 17
            return value
        if kind is dict or kind is list:
            if self._remaining <= 0:
                return self._replace(value, OMITTED)
            if depth >= _MAX_DEPTH:
                return self._replace(value, TOO_DEEP)
            if kind is dict:
                return self._members(value, depth + 1)
            return self._items(value, depth + 1)
        self._remaining -= 5
        return value

    def _replace(self, raw: Any, marker: str) -> str:
        """Keep the raw value and return the marker that replaces it."""
        self.redacted[pointer_to(self._path)] = raw
        return marker

    def _items(self, items: list[Any], depth: int) -> list[Any]:
        cleaned = []
        self._path.append(0)
        for i, item in enumerate(items):
            self._path[-1] = i
            if self._remaining <= 0:
                cleaned.append(self._replace(items[i:], OMITTED))
                break
            cleaned.append(self.visit(item, depth))
        self._path.pop()
        return cleaned

    def _members(self, members: Mapping[str, Any], depth: int) -> dict[str, Any]:
        cleaned: dict[str, Any] = {}
        self._path.append("")
        for name, value in members.items():
            if self._remaining <= 0:
                self._path[-1] = OMITTED
                # A member with the marker's own name is replaced by it, and bound with the rest.
                rest = {n: v for n, v in members.items() if n not in cleaned or n == OMITTED}
                if OMITTED in cleaned:
                    inside = pointer_to(self._path) + "/"
                    for pointer in [p for p in self.redacted if p.startswith(inside)]:
                        del self.redacted[pointer]
                cleaned[OMITTED] = self._replace(rest, OMITTED)
                break
            self._path[-1] = name
            self._remaining -= len(name) + 4
            cleaned[name] = self._member(name, value, depth)
        self._path.pop()
        return cleaned

    def _member(self, name: str, value: Any, depth: int) -> Any:
        sanitizer = self._sanitizer
        if self._named and pointer_to(self._path) in self._named:
            return self._replace(value, REDACTED)
        if not sanitizer.is_sensitive(name):
            return self._header(name, value, depth)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and sanitizer.is_counter(name):
            return self.visit(value, depth)
        return self._replace(value, REDACTED)

    def _header(self, name: str, value: Any, depth: int) -> Any:
        """Redact cookies and the credentials of authorization headers."""
        if _HEADERS.search(name):
            if isinstance(value, (str, dict, list)) and is_cookie(name):
                return self._replace(value, REDACTED)
            if isinstance(value, str):
                clean = without_credentials(name, value)
                if clean is not None:
                    self._remaining -= len(clean) + 3
                    return self._replace(value, clean)
        return self.visit(value, depth)


def pointer_to(path: Sequence[str | int]) -> str:
    """Return the JSON pointer (RFC 6901) of a path."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def encode(value: Any) -> bytes:
    """Encode a value as compact JSON in UTF-8."""
    return _ENCODER.encode(value).encode("utf-8")


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
)
