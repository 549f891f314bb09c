"""The arguments of a call by what is in them, and not by their type.

An approval is for what a reviewer saw. Objects are recorded by their attributes. What has no
content that could be read, such as a connection, is recorded under a mark of its own, which
matches no other value and no other call.
"""

from __future__ import annotations

import enum
import hashlib
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from countersign._convert import convert
from countersign._words import words_of

__all__ = ["Content", "default_of", "prompt_payload"]

_MOST = 5000  # values of one call
_DEEPEST = 40
_PLAIN_FACTORIES = (list, dict, set, tuple)
_SECRETS = frozenset(("credential", "credentials", "passphrase", "password", "secret"))
"""Words in the names of classes whose objects keep a secret."""


class Content:
    """One reading of a call's arguments, which can be read again to find what has changed.

    >>> class Order:
    ...     def __init__(self, amount):
    ...         self.amount = amount
    >>> Content({"order": Order(5)}).value
    {'order': {'__class__': 'Order', 'amount': 5}}
    """

    def __init__(self, given: Any) -> None:
        self._given = given
        self._marks: dict[int, tuple[Any, str]] = {}  # holds the objects: an id is used again
        self._remaining = _MOST
        self.value: Any = self._of(given, 0, ())

    def read_again(self) -> Any:
        """The arguments as they are now."""
        self._remaining = _MOST
        return self._of(self._given, 0, ())

    def _of(self, value: Any, depth: int, above: tuple[int, ...]) -> Any:
        kind = type(value)
        if kind is str or value is None:
            return value
        if _wraps_secret(kind):
            return self._mark(value)
        if isinstance(value, (str, int, float)):
            return value
        self._remaining -= 1
        if depth > _DEEPEST or self._remaining < 0 or id(value) in above:
            return self._mark(value)
        above = (*above, id(value))
        if kind is list or kind is tuple:
            return [self._of(item, depth + 1, above) for item in tuple(value)]
        # Most are plain dictionaries, and asking an abstract class takes longer than reading one.
        if kind is dict or isinstance(value, Mapping):
            try:
                members = list(value.items())
            except Exception:
                return self._mark(value)
            return {self._name(k): self._of(v, depth + 1, above) for k, v in members}
        if isinstance(value, (bytes, bytearray, memoryview)):
            raw = bytes(value)
            text = convert(raw)
            digest = hashlib.sha256(raw).hexdigest()
            is_text = not (text.startswith("<") and text.endswith(">"))
            return text if is_text else f"<{len(raw)} bytes, sha256:{digest}>"
        fields = _fields(value)
        if fields is not None:
            return {self._name(k): self._of(v, depth + 1, above) for k, v in fields.items()}
        converted = convert(value)
        if isinstance(converted, list):
            return [self._of(item, depth + 1, above) for item in converted]
        if isinstance(converted, dict):
            return {self._name(k): self._of(v, depth + 1, above) for k, v in converted.items()}
        if isinstance(converted, str) and converted[:1] == "<" and converted[-1:] == ">":
            return self._object(value, depth, above)
        return converted if converted is not value else self._mark(value)

    def _object(self, value: Any, depth: int, above: tuple[int, ...]) -> Any:
        if isinstance(value, type):
            return f"<class {value.__module__}.{value.__qualname__}>"
        attributes = _attributes(value)
        if not attributes or callable(value) or hasattr(value, "get_secret_value"):
            return self._mark(value)
        read = {self._name(k): self._of(v, depth + 1, above) for k, v in attributes.items()}
        return {"__class__": type(value).__qualname__, **read}

    def _name(self, key: Any) -> Any:
        return key if key is None or isinstance(key, (str, int, float)) else str(self._key(key))

    def _key(self, key: Any) -> Any:
        read = convert(key)
        return read if isinstance(read, (str, int, float)) else self._mark(key)

    def _mark(self, value: Any) -> str:
        known = self._marks.get(id(value))
        if known is None:
            text = f"<{type(value).__qualname__} {os.urandom(8).hex()}>"
            known = self._marks[id(value)] = (value, text)
        return known[1]


def default_of(field: Any) -> Any:
    """The default of a pydantic field. A factory stands for what it makes: to call it here would
    make another value than the one that is used."""
    if field.default_factory is None or field.default_factory in _PLAIN_FACTORIES:
        return field.get_default(call_default_factory=True)
    return field.default_factory


def prompt_payload(text: str, messages: int) -> dict[str, Any]:
    """The payload of a model call. The prompt itself stays out: its words would be classified as
    if the agent did what they say. Its digest is evidence enough."""
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return {"messages": messages, "prompt_sha256": digest}


def _wraps_secret(kind: type[Any]) -> bool:
    """Whether the objects of a class are there to keep a secret. What holds it can have any name,
    so it would not be redacted. Classes themselves keep none, and neither do members of an enum."""
    if issubclass(kind, (type, enum.Enum)):
        return False
    named = any(_names_secret(base.__name__) for base in kind.__mro__)
    return named or hasattr(kind, "get_secret_value")


@lru_cache(maxsize=2048)
def _names_secret(name: str) -> bool:
    return not _SECRETS.isdisjoint(words_of(name))


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of a pydantic model, those that it leaves out when it is dumped among them."""
    if isinstance(value, type) or not hasattr(type(value), "model_dump"):
        return None
    try:
        return {**vars(value), **(getattr(value, "__pydantic_extra__", None) or {})}
    except Exception:
        return None


def _attributes(value: Any) -> dict[str, Any]:
    """What an object holds, in its dictionary and in its slots."""
    held: dict[str, Any] = {}
    try:
        for kind in type(value).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    held[name] = getattr(value, name)
        held.update(getattr(value, "__dict__", None) or {})
    except Exception:
        return {}
    return held
