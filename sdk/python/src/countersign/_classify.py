"""Which categories an action belongs to.

The rules are the service's (docs/classification.md), held to the same vectors: a client that
decides locally must see what the service will see. Here they serve two questions alone: may an
action be decided in this process, and which fail mode counts while the service is unreachable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from countersign._hosts import holds_host, names_host
from countersign._words import normal, words_of

__all__ = ["categories_of"]

FINANCIAL = "financial"
EXTERNAL = "external_communication"
DATA = "data_modification"
LLM = "llm"
_CATEGORIES = frozenset((DATA, EXTERNAL, FINANCIAL, LLM))


def _by_word(lists: Mapping[str, str]) -> dict[str, str]:
    return {word: category for category, text in lists.items() for word in text.split()}


# As a name's first word, one of these says that the rest is only looked at...
_READING = frozenset(
    """analyse analyze calculate can check compare count describe estimate explain fetch find get
    has inspect is list look lookup preview query read retrieve search show summarise summarize
    validate verify view""".split()
)
# ...unless a second verb is joined to it: check_and_pay.
_CONNECTIVES = frozenset(("and", "or", "then"))
# Money's as the last word; transfer_to_agent hands a conversation over.
_TRANSFERS = frozenset(("transfer", "transfers"))
# Verbs count wherever they stand.
_ACTS = _by_word(
    {
        FINANCIAL: "buy disburse donate pay reimburse remit sell spend withdraw",
        EXTERNAL: "broadcast browse crawl notify publish reply scrape send tweet upload",
        DATA: """add alter append create deactivate delete destroy disable edit erase insert migrate
            modify overwrite purge remove rename replace restore revoke save truncate upsert wipe
            write""",
    }
)
# What get_payment, list_emails and check_update look at, they do not do.
_THINGS = _by_word(
    {
        FINANCIAL: """bill bills charge charges debit deposit deposits disbursement disbursements
            donation donations funds invoice invoices money payment payments payout payouts payroll
            purchase purchases refund refunds reimbursement reimbursements remittance remittances
            trade trades wire withdrawal withdrawals""",
        EXTERNAL: """curl discord email emails fax gmail http https invite mail mails message
            messages mms newsletter newsletters notification notifications share slack smtp sms
            telegram twitter webhook webhooks whatsapp""",
        DATA: """archive deletion deletions drop grant import imports merge modification
            modifications move patch reset update updates""",
        LLM: "gpt llm llms",
    }
)
_MONEY_KEYS = frozenset(("amount_usd", "amount", "total_usd", "price_usd"))
# These can also be about something else: a total of pages, a price that is only shown.
_PLAIN_MONEY_KEYS = frozenset(("total", "price"))
_COUNT_KEYS = frozenset(
    """affected_records affected_rows modified_records modified_rows num_records num_rows
    record_count records records_affected records_count records_modified row_count rows
    rows_affected rows_count rows_modified""".split()
)
_HOST_KEYS = frozenset(("domain_name", "host_name"))
_HOST_ENDINGS = frozenset(
    """domain domains endpoint endpoints host hostname hostnames hosts uri uris url urls webhook
    webhooks website websites""".split()
)
_BLANKS = " \t\r\n"
_MARK = r"(?:us\$|usd|\$)"
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d+)?"
_DOLLARS = (
    rf"[+-]?{_MARK}?[ \t\r\n]*(?P<number>{_NUMBER})[ \t\r\n]*{_MARK}?"
    rf"|{_MARK}[ \t\r\n]*[+-]?(?P<signed>{_NUMBER})[ \t\r\n]*{_MARK}?"
)


class _Name(NamedTuple):
    categories: frozenset[str]
    reading: bool
    """It only looks at things."""


def categories_of(
    action_type: str,
    action_name: str,
    payload: Mapping[str, Any],
    metadata: Mapping[str, Any] | None,
) -> frozenset[str]:
    """The categories of an action whose payload and metadata are plain JSON.

    >>> sorted(categories_of("tool_call", "pay_invoice", {"payee": "a@example.com"}, None))
    ['external_communication', 'financial']
    """
    name = _read_name(action_name)
    declared = _declared(action_type, metadata)
    known = name.categories | declared
    search = _Search(
        counting=not name.reading or DATA in declared,
        listing=DATA in known,
    )
    search.object(payload, 0)
    return known | search.found if search.found else known


@lru_cache(maxsize=2048)
def _read_name(text: str) -> _Name:
    words = words_of(text)
    acts = frozenset(_ACTS[w] for w in words if w in _ACTS)
    things = frozenset(_THINGS[w] for w in words if w in _THINGS)
    if words and words[-1] in _TRANSFERS:
        things |= {FINANCIAL}
    if words and words[0] in _READING and not _CONNECTIVES.intersection(words):
        return _Name(acts, DATA not in acts)
    return _Name(acts | things, False)


def _declared(action_type: str, metadata: Mapping[str, Any] | None) -> frozenset[str]:
    found = _named(action_type)
    if action_type == "llm_call":
        found |= {LLM}
    if not metadata:
        return found
    for key in ("category", "categories"):
        value = metadata.get(key)
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, str):
                found |= _named(item)
    if metadata.get("amount_usd") is not None:
        found |= {FINANCIAL}
    model = metadata.get("model")
    named = isinstance(model, str) and len(model.encode()) <= 200 and model.strip(_BLANKS)
    if named or any(_count(metadata.get(k)) for k in ("input_tokens", "output_tokens")):
        found |= {LLM}
    return found


@lru_cache(maxsize=2048)
def _named(text: str) -> frozenset[str]:
    return _CATEGORIES.intersection((normal(text),))


@lru_cache(maxsize=8192)
def _role_of(key: str) -> str:
    """What a key of the payload means: money, plain, count, ids, host or nothing."""
    name = normal(key)
    if name in _MONEY_KEYS:
        return "money"
    if name in _PLAIN_MONEY_KEYS:
        return "plain"
    if name in _COUNT_KEYS:
        return "count"
    if name in ("currency", "currency_code"):
        return ""
    last = name.rpartition("_")[2]
    if name in _HOST_KEYS or last in _HOST_ENDINGS:
        return "host"
    return "ids" if last == "ids" else ""


class _Search:
    """One walk over a payload. Sanitizing has bounded its depth and size."""

    __slots__ = ("_counting", "_listing", "found")

    def __init__(self, counting: bool, listing: bool) -> None:
        self._counting = counting
        self._listing = listing
        self.found: set[str] = set()

    def object(self, members: Mapping[str, Any], depth: int) -> None:
        for key, value in members.items():
            role = _role_of(key)
            if role:
                self._member(role, value, depth)
            if EXTERNAL not in self.found and holds_host(key):
                self.found.add(EXTERNAL)
            self._value(role, value, depth)

    def _member(self, role: str, value: Any, depth: int) -> None:
        if (role == "money" and value is not None) or (
            role == "plain" and depth == 0 and _is_money(value)
        ):
            self.found.add(FINANCIAL)
        elif (role == "count" and self._counting and _count(value)) or (
            role in ("count", "ids") and self._listing and isinstance(value, list) and value
        ):
            self.found.add(DATA)

    def _value(self, role: str, value: Any, depth: int) -> None:
        if isinstance(value, str):
            if EXTERNAL not in self.found and (
                holds_host(value) or (role == "host" and names_host(value))
            ):
                self.found.add(EXTERNAL)
        elif isinstance(value, dict):
            self.object(value, depth + 1)
        elif isinstance(value, list):
            for item in value:
                self._value(role, item, depth)


def _count(value: Any) -> bool:
    """Whether a value is a whole number above zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value > 0 and value == int(value)


def _is_money(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, (int, float)):
        return True
    if not isinstance(value, str) or len(value.encode()) > 40:
        return False
    found = re.fullmatch(_DOLLARS, value.strip(_BLANKS), re.ASCII | re.IGNORECASE)
    return found is not None and bool(found["number"] or found["signed"])
