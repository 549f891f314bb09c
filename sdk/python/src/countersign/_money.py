"""Parsing amounts of money and currencies. The rules are the service's."""

from __future__ import annotations

import math
import re
from decimal import Context, Decimal
from typing import Any, NamedTuple

__all__ = [
    "DOLLARS",
    "FOREIGN",
    "NO_MONEY",
    "UNSTATED",
    "Money",
    "larger",
    "looks_like_money",
    "plus",
    "read_currency",
    "read_money",
    "stricter",
]

UNSTATED, DOLLARS, FOREIGN = 0, 1, 2

_BLANKS = " \t\r\n"
_MAX_TEXT = 40  # bytes
_MARK = r"(?:us\$|usd|\$)"
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d+)?"
_DOLLARS = re.compile(
    rf"[+-]?{_MARK}?[ \t\r\n]*(?P<number>{_NUMBER})[ \t\r\n]*{_MARK}?"
    rf"|{_MARK}[ \t\r\n]*[+-]?(?P<signed>{_NUMBER})[ \t\r\n]*{_MARK}?",
    re.ASCII | re.IGNORECASE,
)
# Enough digits for exact sums of doubles, from 1e308 to 1e-324.
_EXACT = Context(prec=1000)


class Money(NamedTuple):
    """The value of an amount's key: nothing, something unreadable, or an amount."""

    found: bool
    amount: Decimal | None
    """The absolute amount; None if it cannot be read."""


NO_MONEY = Money(False, None)
_UNREADABLE = Money(True, None)


def larger(one: Money, other: Money) -> Money:
    """Return the larger of two amounts that are readable or absent."""
    if other.amount is None:
        return one
    return other if one.amount is None or other.amount > one.amount else one


def plus(one: Money, other: Money) -> Money:
    """Return the sum of two amounts that are readable or absent."""
    if one.amount is None or other.amount is None:
        return larger(one, other)
    return Money(True, _EXACT.add(one.amount, other.amount))


def stricter(one: Money, other: Money) -> Money:
    """Return the stricter of two values of the same key, spelled differently."""
    if _UNREADABLE in (one, other):
        return _UNREADABLE
    return larger(one, other)


def read_money(value: Any) -> Money:
    """Read the amount of a plain JSON value.

    >>> read_money("$1,200.50").amount, read_money("lots")
    (Decimal('1200.50'), Money(found=True, amount=None))
    """
    if value is None:
        return NO_MONEY
    if isinstance(value, str):
        return _read_text(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _UNREADABLE
    if isinstance(value, float):
        if not math.isfinite(value):
            return _UNREADABLE
        return Money(True, Decimal(repr(value)).copy_abs())  # the digits that the sender wrote
    if value.bit_length() > 1024:  # no double holds it
        return _UNREADABLE
    return Money(True, Decimal(abs(value)))


def _read_text(text: str) -> Money:
    # No exponents: a short text must not stand for a huge number.
    if len(text) > _MAX_TEXT or len(text.encode("utf-8", "replace")) > _MAX_TEXT:
        return _UNREADABLE
    found = _DOLLARS.fullmatch(text.strip(_BLANKS))
    number = found and (found["number"] or found["signed"])
    return Money(True, Decimal(number.replace(",", ""))) if number else _UNREADABLE


def looks_like_money(value: Any) -> bool:
    """Whether another program might read an unreadable text as an amount: 9.000,00, 9e6, 9_000,
    EUR 500, digits of another script. Words, dates and identifiers do not look like money."""
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        return False
    if len(value.encode("utf-8", "replace")) > _MAX_TEXT or any(c in value for c in "/:@#"):
        return False
    letters = sum(c.isascii() and c.isalpha() for c in value)
    return letters <= 3 and value.count("-") <= 1 and any(c.isdecimal() for c in value)


def read_currency(value: Any, vague: bool) -> int:
    """Read a currency. Anything unknown is foreign. Under a ``vague`` key, such as unit or asset,
    a number is not a currency."""
    if value is None or (vague and isinstance(value, (bool, int, float))):
        return UNSTATED
    if not isinstance(value, str):
        return FOREIGN
    text = value.strip(_BLANKS)
    if not text:
        return UNSTATED
    return DOLLARS if text.isascii() and text.lower() in ("$", "usd", "us$") else FOREIGN
