"""Turns whatever an agent passes into JSON that is safe to send.

Nothing here raises into the agent, changes what it was given, or follows it without
bound. Secrets are taken out first; what leaves the process has none in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from countersign._convert import convert
from countersign._secrets_in_text import REDACTED, TextRedactor
from countersign._words import lower, words_of

__all__ = ["REDACTED", "Sanitizer", "encode"]

CYCLE = "[CYCLE]"
TOO_DEEP = "[TOO DEEP]"
OMITTED = "[OMITTED]"
TRUNCATED = "...[truncated]"

_MAX_DEPTH = 32  # the service takes 64, of which an action's own members need a few
_MAX_BYTES = 512 << 10  # the service takes 1 MiB a request
_MAX_EXACT = 2**53  # beyond it a double skips integers, and the service refuses them
_MAX_KEY = 1000
_LOOK_AHEAD = 4096  # characters behind the cut that are still searched for a secret's end
_SEPARATORS = re.compile("[_ -]")
# Words that make a name with "token" in it the name of a number: token_count, tokenLimit.
_COUNTERS = frozenset(["budget", "count", "counts", "limit", "number", "total", "usage", "used"])


class Sanitizer:
    """Holds the patterns, compiled once.

    >>> Sanitizer(["password"], ["sk_"], 20).clean({"password": "x", "note": "a" * 30})
    {'password': '[REDACTED]', 'note': 'aaaaaa...[truncated]'}
    """

    def __init__(self, fields: Sequence[str], values: Sequence[str], longest: int) -> None:
        folded = [lower(f) for f in fields]
        # Patterns of two words are also found without what parts them (apiKey); the others are
        # not, or business_name would have an ssn in it.
        plain = [f for f in folded if not _SEPARATORS.search(f)]
        parted = [_SEPARATORS.sub("", f) for f in folded if _SEPARATORS.search(f)]
        self._plain = re.compile("|".join(map(re.escape, plain)) or "(?!)")
        self._parted = re.compile("|".join(map(re.escape, filter(None, parted))) or "(?!)")
        self._longest = longest
        self.is_sensitive = lru_cache(maxsize=4096)(self._is_sensitive)
        self.is_counter = lru_cache(maxsize=1024)(self._is_counter)
        self._texts = TextRedactor(values, self.is_sensitive, self.is_counter)

    def clean(self, value: Any, max_bytes: int = _MAX_BYTES) -> Any:
        """A JSON value made of ``value``: a copy, however simple it was."""
        return _Walk(self, max_bytes).visit(value, 0)

    def clean_object(self, value: Any, max_bytes: int = _MAX_BYTES) -> dict[str, Any]:
        """The same as an object, of at most ``max_bytes`` of JSON."""
        budget = max_bytes
        for _ in range(8):
            walk = _Walk(self, budget)
            cleaned = walk.visit(value, 0)
            if not isinstance(cleaned, dict):
                cleaned = {} if cleaned is None else {"value": cleaned}
            # The walk estimates: escapes can make a text six times as long.
            if walk.spent * 6 <= max_bytes or len(encode(cleaned)) <= max_bytes:
                return cleaned
            budget //= 2
        return {"value": OMITTED}

    def text(self, value: str) -> str:
        """A string without secrets, lone surrogates or excess."""
        return self._cut(self._texts.value(self._readable(value)))

    def prose(self, value: str) -> str:
        """The same for a sentence, such as an error's message."""
        return self._cut(self._texts.prose(self._readable(value)))

    def _readable(self, value: str) -> str:
        # Cut before the search, so that its cost is bounded, and again after it, so that no
        # secret is saved by being cut in two.
        value = value[: self._longest + _LOOK_AHEAD]
        return value if value.isascii() else _without_surrogates(value)

    def _cut(self, value: str) -> str:
        if len(value) <= self._longest:
            return value
        return value[: max(self._longest - len(TRUNCATED), 0)] + TRUNCATED[: self._longest]

    def _is_sensitive(self, name: str) -> bool:
        folded = lower(name)
        if self._plain.search(folded):
            return True
        return self._parted.search(_SEPARATORS.sub("", folded)) is not None

    def _is_counter(self, name: str) -> bool:
        """Whether a name is that of a count of tokens, and has nothing else sensitive in it."""
        words = words_of(name)
        if "tokens" not in words and ("token" not in words or not _COUNTERS.intersection(words)):
            return False
        return not self._is_sensitive(lower(name).replace("token", ""))


class _Walk:
    """One pass over one value."""

    __slots__ = ("_above", "_left", "_limit", "_sanitizer")

    def __init__(self, sanitizer: Sanitizer, max_bytes: int) -> None:
        self._sanitizer = sanitizer
        self._left = self._limit = max_bytes
        self._above: set[int] = set()  # the containers that hold the present one

    @property
    def spent(self) -> int:
        """About how long the result is in JSON."""
        return self._limit - self._left

    def visit(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            text = self._sanitizer.text(value)
            self._left -= len(text) + 3
            return text if self._left > 0 else OMITTED
        if value is None or kind is bool:
            self._left -= 5
            return value
        if kind is int:
            self._left -= 17
            return value if -_MAX_EXACT <= value <= _MAX_EXACT else _big(value)
        if kind is float:
            self._left -= 17
            return value if value - value == 0 else str(value)
        if self._left <= 0:
            return OMITTED
        if kind is dict or kind is list or kind is tuple:
            return self._nested(value, depth)
        converted = convert(value)
        if type(converted) is kind:  # a subclass that convert() could not simplify
            return f"<{kind.__name__}>"
        if isinstance(converted, (dict, list)):
            return self._nested(converted, depth, id(value))
        return self.visit(converted, depth)

    def _nested(self, value: Any, depth: int, identity: int = 0) -> Any:
        identity = identity or id(value)
        if identity in self._above:
            return CYCLE
        if depth >= _MAX_DEPTH:
            return TOO_DEEP
        self._above.add(identity)
        try:
            if isinstance(value, dict):
                return self._members(value, depth + 1)
            return self._items(value, depth + 1)
        finally:
            self._above.discard(identity)

    def _items(self, items: Any, depth: int) -> list[Any]:
        cleaned = []
        for item in tuple(items):  # a snapshot: other threads may append
            if self._left <= 0:
                cleaned.append(OMITTED)
                break
            cleaned.append(self.visit(item, depth))
        return cleaned

    def _members(self, members: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        cleaned: dict[str, Any] = {}
        for key, value in tuple(members.items()):
            if self._left <= 0:
                cleaned[OMITTED] = OMITTED
                break
            name = _name_of(key)
            self._left -= len(name) + 4
            while name in cleaned:  # 1 and "1" are two keys here and one in JSON
                name += "_"
            cleaned[name] = self._member(name, value, depth)
        return cleaned

    def _member(self, name: str, value: Any, depth: int) -> Any:
        sanitizer = self._sanitizer
        if not sanitizer.is_sensitive(name):
            return self.visit(value, depth)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and sanitizer.is_counter(name):
            return self.visit(value, depth)
        return REDACTED


def _without_surrogates(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _big(value: int) -> str:
    # Python refuses to write integers of more than 4300 digits.
    return str(value) if value.bit_length() < 4096 else f"<integer of {value.bit_length()} bits>"


def _name_of(key: Any) -> str:
    name = key if type(key) is str else _name_of_other(None if key is None else convert(key))
    if not name.isascii():
        name = _without_surrogates(name)
    return name if len(name) <= _MAX_KEY else name[:_MAX_KEY]


def _name_of_other(key: Any) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool):
        return json.dumps(key)
    if isinstance(key, int):
        return _big(key)
    return repr(key) if isinstance(key, float) else f"<{type(key).__name__}>"


def encode(value: Any) -> bytes:
    """The value's JSON as it is sent: compact, UTF-8."""
    return _ENCODER.encode(value).encode("utf-8")


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
)
