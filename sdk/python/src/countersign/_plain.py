"""Snapshots of any value as plain JSON types, before anything is redacted.

Taking a snapshot never raises, never changes the value and is bounded in size. It notes if part of
the value was skipped, because such an action is never obviously safe.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from countersign._convert import convert

__all__ = ["CYCLE", "OMITTED", "TOO_DEEP", "Snapshot", "without_surrogates"]

CYCLE = "[CYCLE]"
TOO_DEEP = "[TOO DEEP]"
OMITTED = "[OMITTED]"

_MAX_DEPTH = 60
_MAX_CHARACTERS = 8 << 20
_MAX_EXACT = 2**53  # beyond it a double skips integers, and the service refuses them
_MAX_KEY = 1000


class Snapshot:
    """One pass over one value.

    >>> snapshot = Snapshot({"when": {1, 2}, "n": 2**60})
    >>> snapshot.value, snapshot.faithful, snapshot.whole
    ({'when': [1, 2], 'n': '1152921504606846976'}, False, True)
    """

    __slots__ = ("_above", "_remaining", "faithful", "value", "whole")

    def __init__(self, value: Any) -> None:
        self.whole = True
        """Nothing was skipped for its depth or size."""
        self.faithful = True
        """Nothing was skipped or replaced: no unreadable object, no cycle, no invalid Unicode and
        no number that JSON does not have."""
        self._remaining = _MAX_CHARACTERS
        self._above: set[int] = set()  # ids of the containers around the current one
        self.value: Any = self._visit(value, 0)

    def _visit(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return self._string(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            exact = -_MAX_EXACT <= value <= _MAX_EXACT
            return value if exact else self._replaced(_integer_text(value))
        if kind is float:
            return value if value - value == 0 else self._replaced(str(value))
        if kind is dict or kind is list or kind is tuple:
            return self._nested(value, depth)
        converted = convert(value)
        if type(converted) is kind:  # convert() could not simplify it
            return self._replaced(f"<{kind.__name__}>")
        if isinstance(converted, (dict, list)):
            return self._nested(converted, depth, id(value))
        if isinstance(converted, str) and _is_placeholder(converted):
            self.faithful = False
        return self._visit(converted, depth)

    def _string(self, value: str) -> str:
        self._remaining -= len(value)
        if self._remaining < 0:
            self.whole = self.faithful = False
            value = value[: max(self._remaining + len(value), 0)]
        if value.isascii():
            return value
        readable = without_surrogates(value)
        if readable is not value:
            self.faithful = False
        return readable

    def _replaced(self, text: str) -> str:
        self.faithful = False
        return text

    def _nested(self, value: Any, depth: int, identity: int = 0) -> Any:
        identity = identity or id(value)
        if identity in self._above:
            return self._replaced(CYCLE)
        if depth >= _MAX_DEPTH or self._remaining <= 0:
            self.whole = False
            return self._replaced(TOO_DEEP if self._remaining > 0 else OMITTED)
        self._above.add(identity)
        try:
            if isinstance(value, dict):
                return self._members(value, depth + 1)
            return self._items(value, depth + 1)
        finally:
            self._above.discard(identity)

    def _items(self, items: Any, depth: int) -> list[Any]:
        taken = []
        for item in tuple(items):  # a copy, because other threads may append
            self._remaining -= 2
            if self._remaining <= 0:
                self.whole = self.faithful = False
                taken.append(OMITTED)
                break
            taken.append(self._visit(item, depth))
        return taken

    def _members(self, members: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        taken: dict[str, Any] = {}
        repeats: dict[str, int] = {}
        for key, value in tuple(members.items()):
            name = self._name(key)
            if name in taken:  # 1 and "1" are two keys in Python and one in JSON
                self.faithful = False
                name = _distinct(name, taken, repeats)
            self._remaining -= len(name) + 4
            if self._remaining <= 0:
                self.whole = self.faithful = False
                taken[OMITTED] = OMITTED
                break
            taken[name] = self._visit(value, depth)
        return taken

    def _name(self, key: Any) -> str:
        name: str = key
        if type(key) is not str:
            name = _name_of_other(None if key is None else convert(key))
            self.faithful = self.faithful and not _is_placeholder(name)
        if not name.isascii():
            readable = without_surrogates(name)
            if readable is not name:
                self.faithful = False
            name = readable
        if len(name) <= _MAX_KEY:
            return name
        self.faithful = False
        return name[:_MAX_KEY]


def _distinct(name: str, taken: Collection[str], repeats: dict[str, int]) -> str:
    """Return the name with underscores that make it unique. ``repeats`` holds how many the last key
    of that name got: starting again at one would take too long for thousands of equal names."""
    count = repeats.get(name, 0) + 1
    while name + "_" * count in taken:
        count += 1
    repeats[name] = count
    return name + "_" * count


def without_surrogates(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _is_placeholder(text: str) -> bool:
    """Whether a text stands for an object that cannot be read."""
    return text[:1] == "<" and text[-1:] == ">"


def _integer_text(value: int) -> str:
    # Python refuses to format integers of more than 4300 digits.
    return str(value) if value.bit_length() < 4096 else f"<integer of {value.bit_length()} bits>"


def _name_of_other(key: Any) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool):
        return json.dumps(key)
    if isinstance(key, int):
        return _integer_text(key)
    return repr(key) if isinstance(key, float) else f"<{type(key).__name__}>"
