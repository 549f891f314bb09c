"""The meaning of a payload's keys."""

from __future__ import annotations

import enum
from functools import lru_cache

from countersign._words import words_of

__all__ = ["Role", "role_of"]


class Role(enum.Enum):
    """The meaning of a key's value."""

    NONE = enum.auto()
    DOLLARS = enum.auto()
    """An amount in US dollars."""
    AMOUNT = enum.auto()
    """An amount of money."""
    PLAIN = enum.auto()
    """An amount, or something else: a total of pages, a price that is only shown."""
    VALUE = enum.auto()
    """An amount, but only in an action whose name is financial."""
    CURRENCY = enum.auto()
    UNIT = enum.auto()
    """A currency if the value is text; it can also be another unit."""
    HOST = enum.auto()
    """A host or URL, even without a scheme."""
    LINK = enum.auto()
    """A host, or the name of a page."""
    TARGET = enum.auto()
    """A host, a file or a person."""
    COUNT = enum.auto()
    """A number of records, or a list of records."""
    IDS = enum.auto()
    """A list of record ids."""
    MODEL = enum.auto()
    """The name of a language model."""
    INPUT = enum.auto()
    """A number of input tokens."""
    OUTPUT = enum.auto()
    """A number of output tokens."""
    CODE = enum.auto()
    """A program or a command."""
    QUERY = enum.auto()
    """A search query or a statement."""
    USAGE = enum.auto()
    """An object of token counts, as providers return it."""


_BY_NAME = {
    name: role
    for role, names in {
        Role.DOLLARS: "amount_usd total_usd price_usd",
        Role.AMOUNT: "amount",
        Role.PLAIN: "total price",
        Role.VALUE: "value",
        Role.UNIT: "asset denom denomination unit",
        Role.COUNT: """affected_records affected_rows modified_records modified_rows num_records
            num_rows record_count records records_affected records_count records_modified row_count
            rows rows_affected rows_count rows_modified""",
        Role.HOST: "domain_name host_name",
        Role.MODEL: "model",
        Role.INPUT: "input_tokens input_token_count prompt_tokens prompt_token_count",
        Role.OUTPUT: """output_tokens output_token_count completion_tokens completion_token_count
            candidates_token_count""",
        Role.USAGE: "usage usage_metadata token_usage",
    }.items()
    for name in names.split()
}
_MAX_CACHED = 200  # characters; longer keys would waste memory
_CURRENCY_WORDS = frozenset(("currency", "ccy"))
_BY_LAST_WORD = {
    **dict.fromkeys(
        """domain domains endpoint endpoints host hostname hostnames hosts uri uris url urls webhook
        webhooks website websites""".split(),
        Role.HOST,
    ),
    **dict.fromkeys(
        "href hrefs homepage link links proxy redirect server servers site sites".split(), Role.LINK
    ),
    **dict.fromkeys(
        """bcc callback cc dest destination dst recipient recipients src target targets
        to""".split(),
        Role.TARGET,
    ),
    **dict.fromkeys("bash cmd command commands script shell sql".split(), Role.CODE),
    **dict.fromkeys("q query statement".split(), Role.QUERY),
    "ids": Role.IDS,
}


def role_of(key: str) -> Role:
    """Return the role of a key, in any spelling.

    >>> role_of("amountUsd"), role_of("payout-currency")
    (<Role.DOLLARS: 2>, <Role.CURRENCY: 6>)
    """
    return _role_of(key) if len(key) <= _MAX_CACHED else _role_of.__wrapped__(key)


@lru_cache(maxsize=8192)
def _role_of(key: str) -> Role:
    words = words_of(key)
    role = _BY_NAME.get("_".join(words))
    if role is not None or not words:
        return role or Role.NONE
    if _CURRENCY_WORDS.intersection(words):
        return Role.CURRENCY
    return _BY_LAST_WORD.get(words[-1], Role.NONE)
