"""Canonical JSON (RFC 8785), over which digests are computed."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

__all__ = ["canonical"]

_MAX_EXACT = 2**53

_text = json.encoder.encode_basestring  # escapes exactly what RFC 8785 requires


def canonical(value: Any) -> bytes:
    """Encode a value made of plain JSON types.

    >>> canonical({"b": 1e21, "a": [1.0, "é", None, True]})
    b'{"a":[1,"\\xc3\\xa9",null,true],"b":1e+21}'
    """
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts).encode("utf-8")


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, str):
        parts.append(_text(value))
    elif value is None or isinstance(value, bool):
        parts.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, int):
        # Every number is a double: beyond 2**53 an integer is written as the nearest double.
        parts.append(str(value) if abs(value) <= _MAX_EXACT else _number(float(value)))
    elif isinstance(value, float):
        parts.append(_number(value))
    elif isinstance(value, dict):
        _write_object(value, parts)
    else:
        parts.append("[")
        for i, item in enumerate(value):
            if i:
                parts.append(",")
            _write(item, parts)
        parts.append("]")


def _write_object(members: dict[str, Any], parts: list[str]) -> None:
    parts.append("{")
    # UTF-16 code units sort differently from code points beyond the basic plane.
    for i, name in enumerate(sorted(members, key=lambda name: name.encode("utf-16-be"))):
        if i:
            parts.append(",")
        parts.append(_text(name))
        parts.append(":")
        _write(members[name], parts)
    parts.append("}")


def _number(value: float) -> str:
    """Format a double as ECMAScript does. Python's repr has the same digits in another form."""
    if not math.isfinite(value):
        raise ValueError("JSON has no such number")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    _, places, exponent = Decimal(repr(abs(value))).as_tuple()
    assert isinstance(exponent, int)
    digits = "".join(map(str, places)).rstrip("0")
    point = len(places) + exponent  # position of the decimal point in the digits
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1:+d}"
