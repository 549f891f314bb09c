"""Conversion of Python objects to JSON types."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import numbers
import os
from collections import deque
from collections.abc import Mapping, Set
from typing import Any

__all__ = ["convert"]


def convert(value: Any) -> Any:
    """Convert one level: return a dict, list, string, number, boolean or None, whose members may
    still be any object. Never raises, although any method of an object can."""
    try:
        return _convert(value)
    except Exception:
        return f"<unreadable {type(value).__name__}>"


def _convert(value: Any) -> Any:
    for kinds, form in _FORMS:
        if isinstance(value, kinds):
            return form(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    dump = getattr(type(value), "model_dump", None)  # pydantic's models
    if callable(dump):
        dumped = dump(value)
        return dict(dumped) if isinstance(dumped, Mapping) else str(dumped)
    if any(c.__module__ == "uuid" for c in type(value).__mro__):  # without importing uuid
        return str(value)
    if isinstance(value, type) or callable(value):
        return f"<{getattr(value, '__qualname__', type(value).__name__)}>"
    return f"<{type(value).__name__}>"


def _exception(value: BaseException) -> dict[str, Any]:
    return {"type": type(value).__name__, "message": str(value)}


def _bytes(value: Any) -> str:
    raw = bytes(value)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return f"<{len(raw)} bytes>"
    return text if text.isprintable() else f"<{len(raw)} bytes>"


def _mapping(value: Any) -> dict[Any, Any]:
    return dict(value.items())


def _set(value: Any) -> list[Any]:
    # Sorted, so that the payload does not depend on the hash seed.
    return sorted(value, key=lambda item: (type(item).__name__, str(item)))


# The first match wins. Decimal becomes text, because a double could lose a cent.
_FORMS: tuple[tuple[Any, Any], ...] = (
    (enum.Enum, lambda v: v.value),
    (str, lambda v: str.__str__(v)),
    (bool, bool),
    (int, lambda v: int.__int__(v)),
    (float, lambda v: float.__float__(v)),
    ((datetime.datetime, datetime.date, datetime.time), lambda v: v.isoformat()),
    (datetime.timedelta, lambda v: v.total_seconds()),
    ((decimal.Decimal, numbers.Number), str),
    (os.PathLike, lambda v: str(os.fspath(v))),
    ((bytes, bytearray, memoryview), _bytes),
    (BaseException, _exception),
    (Mapping, _mapping),
    ((list, tuple, deque), list),
    (Set, _set),
)
