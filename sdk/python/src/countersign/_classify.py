"""Classification of actions: categories, amount, domains, records, model and tokens.

The rules are the service's (docs/classification.md) and are tested with the same vectors, because a
client that decides locally must find what the service will find. The values are classified before
anything is redacted or cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from countersign._convert import convert
from countersign._hosts import LINK, TARGET, URL, Hosts
from countersign._keys import Role, role_of
from countersign._money import (
    FOREIGN,
    NO_MONEY,
    UNSTATED,
    Money,
    larger,
    looks_like_money,
    plus,
    read_currency,
    read_money,
    stricter,
)
from countersign._words import first_word, snake_case, words_of

__all__ = ["Facts", "classify"]

FINANCIAL = "financial"
EXTERNAL = "external_communication"
DATA = "data_modification"
LLM = "llm"
_CATEGORIES = frozenset((DATA, EXTERNAL, FINANCIAL, LLM))


def _by_word(lists: Mapping[str, str]) -> dict[str, str]:
    return {word: category for category, text in lists.items() for word in text.split()}


# If a name begins with one of these words, the action only reads...
_READING = frozenset(
    """analyse analyze calculate can check compare count describe estimate explain fetch find get
    has inspect is list look lookup preview query read retrieve search show summarise summarize
    validate verify view""".split()
)
# ...unless a second verb follows: check_and_pay.
_CONNECTIVES = frozenset(("and", "or", "then"))
# Financial only as the last word: transfer_to_agent hands over a conversation.
_TRANSFERS = frozenset(("transfer", "transfers"))
# These verbs count anywhere in a name.
_VERBS = _by_word(
    {
        FINANCIAL: "buy disburse donate pay reimburse remit sell spend withdraw",
        EXTERNAL: "broadcast browse crawl notify publish reply scrape send tweet upload",
        DATA: """add alter append create deactivate delete destroy disable edit erase insert migrate
            modify overwrite purge remove rename replace restore revoke save truncate upsert wipe
            write""",
    }
)
# These nouns do not count in a name that only reads: get_payment, list_emails, check_update.
_NOUNS = _by_word(
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
_MAX_RECORDS = 1_000_000_000
_MAX_TOKENS = 1_000_000_000_000
_MAX_MODEL = 200  # bytes
_BLANKS = " \t\r\n"
# Larger payloads are not classified completely. The service accepts a depth of 64 and 1 MiB.
_MAX_DEPTH = 64
_MAX_VALUES = 200_000
_MAX_CHARACTERS = 4 << 20
# The words of SQL statements that change data, and the first words of other statements.
STATEMENT_WORDS = frozenset(
    """alter call create delete drop exec execute grant insert merge replace revoke set truncate
    update upsert""".split()
)
QUERY_WORDS = frozenset("begin explain select with".split())
_Tokens = tuple[int, int]  # a model's input and output tokens


class Facts(NamedTuple):
    """What was found in an action."""

    categories: frozenset[str] = frozenset()
    amount_usd: Decimal | None = None
    """The largest amount; None if there is none that can be compared with a threshold."""
    amount_unusable: bool = False
    """An amount was found that cannot be read or is in another currency."""
    external_domains: tuple[str, ...] = ()
    records_modified: int = 0
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    code: bool = False
    """The payload holds a program or a statement that changes data."""
    unseen: bool = False
    """Part of the payload was too deep or too large to be classified."""


class _Name(NamedTuple):
    categories: frozenset[str]
    reading: bool
    """The action only reads."""


class _Declared(NamedTuple):
    """What the action type and the metadata say about the action."""

    categories: frozenset[str]
    amount: Money = NO_MONEY
    currency: int = UNSTATED
    model: str = ""
    tokens: _Tokens = (0, 0)


class _Sums(NamedTuple):
    """The amount and tokens of a container: the maximum of an object's members, or the sum of a
    list's items."""

    amount: Money = NO_MONEY
    tokens: _Tokens = (0, 0)

    def larger(self, other: _Sums) -> _Sums:
        return _Sums(larger(self.amount, other.amount), _largest(self.tokens, other.tokens))

    def plus(self, other: _Sums) -> _Sums:
        tokens = (self.tokens[0] + other.tokens[0], self.tokens[1] + other.tokens[1])
        bounded = (min(tokens[0], _MAX_TOKENS), min(tokens[1], _MAX_TOKENS))
        return _Sums(plus(self.amount, other.amount), bounded)


def _largest(one: _Tokens, other: _Tokens) -> _Tokens:
    return max(one[0], other[0]), max(one[1], other[1])


def _with_count(tokens: _Tokens, role: Role, value: Any) -> _Tokens:
    if role is Role.INPUT:
        return max(tokens[0], _count(value, _MAX_TOKENS)), tokens[1]
    if role is Role.OUTPUT:
        return tokens[0], max(tokens[1], _count(value, _MAX_TOKENS))
    return tokens


def classify(action_type: str, action_name: str, payload: Any, metadata: Any) -> Facts:
    """Classify an action.

    >>> facts = classify("tool_call", "pay", {"amount": "$5", "to": "a@example.com"}, None)
    >>> sorted(facts.categories), facts.amount_usd, facts.external_domains
    (['external_communication', 'financial'], Decimal('5'), ('example.com',))
    """
    name = _read_name(action_name)
    declared = _declare(action_type, metadata)
    known = name.categories | declared.categories
    search = _Search(
        by_name=FINANCIAL in name.categories,
        counting=not name.reading or DATA in declared.categories,
        listing=DATA in known,
    )
    found = search.payload(payload, declared.currency)
    categories = set(known)
    if declared.amount.found or search.explicit:
        categories.add(FINANCIAL)
    amount, unusable = None, False
    if FINANCIAL in categories:
        unusable = search.is_unusable() or (
            declared.amount.found and declared.amount.amount is None
        )
        amount = None if unusable else larger(declared.amount, found.amount).amount
    model = declared.model or search.model()
    tokens = (
        declared.tokens[0] or found.tokens[0],
        declared.tokens[1] or found.tokens[1],
    )
    if model or any(tokens):
        categories.add(LLM)
    domains = search.hosts.sorted()
    records = max(search.records.values(), default=0)
    if records:
        categories.add(DATA)
    if domains:
        categories.add(EXTERNAL)
    return Facts(
        frozenset(categories),
        amount,
        unusable,
        domains,
        records,
        model,
        *tokens,
        search.code,
        search.unseen,
    )


@lru_cache(maxsize=2048)
def _read_name(text: str) -> _Name:
    words = words_of(text)
    verbs = frozenset(_VERBS[w] for w in words if w in _VERBS)
    nouns = frozenset(_NOUNS[w] for w in words if w in _NOUNS)
    if words and words[-1] in _TRANSFERS:
        nouns |= {FINANCIAL}
    if words and words[0] in _READING and not _CONNECTIVES.intersection(words):
        return _Name(verbs, DATA not in verbs)
    return _Name(verbs | nouns, False)


def _declare(action_type: str, metadata: Any) -> _Declared:
    found = _named(action_type)
    if action_type == "llm_call":
        found |= {LLM}
    metadata = _plain(metadata)
    if not metadata or not isinstance(metadata, dict):
        return _Declared(found)
    amount, currency, model, tokens = NO_MONEY, UNSTATED, "", (0, 0)
    for key, raw in tuple(metadata.items()):
        name, value = snake_case(_name(key)), _plain(raw)
        role = role_of(name)
        if name in ("category", "categories"):
            found |= _declared_categories(value)
        elif name == "amount_usd":
            amount = stricter(amount, read_money(value))
        elif role is Role.MODEL:
            model = max(model, _read_model(value))
        elif role is Role.CURRENCY:
            currency = max(currency, read_currency(value, False))
        elif role is Role.USAGE and isinstance(value, dict):
            for counted, count in tuple(value.items()):
                tokens = _with_count(tokens, role_of(_name(counted)), _plain(count))
        else:
            tokens = _with_count(tokens, role, value)
    return _Declared(found, amount, currency, model, tokens)


def _declared_categories(value: Any) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(plain := _plain(item), str):
            found |= _named(plain)
    return found


@lru_cache(maxsize=2048)
def _named(text: str) -> frozenset[str]:
    return _CATEGORIES.intersection((snake_case(text),))


def _read_model(value: Any) -> str:
    if not isinstance(value, str) or len(value.encode("utf-8", "replace")) > _MAX_MODEL:
        return ""
    return value.strip(_BLANKS)


def _count(value: Any, limit: int) -> int:
    """Return a whole number, at most ``limit``. Negative numbers, fractions and other values count
    as 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0
    if value >= limit:
        return limit
    return int(value) if value > 0 and value == int(value) else 0


_JSON = (str, int, float, bool, type(None), dict, list, tuple)


def _plain(value: Any) -> Any:
    """Convert a value to JSON, one level deep."""
    return value if type(value) in _JSON else convert(value)


def _name(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else ""


class _Search:
    """One pass over a payload."""

    def __init__(self, by_name: bool, counting: bool, listing: bool) -> None:
        self._by_name = by_name
        self._counting = counting
        self._listing = listing
        self._amounts = 0  # number of amounts found, usable or not
        self._unusable = False
        self._unstated = False  # some amount has no currency next to it or above it
        self._foreign = False  # a currency other than the dollar is named somewhere
        self.explicit = False
        self.records: dict[int, int] = {}  # by depth
        self.hosts = Hosts()
        self.code = False
        self.unseen = False
        self._nesting = 0
        self._values = _MAX_VALUES
        self._characters = _MAX_CHARACTERS
        self._model = ""  # named at the top of the payload
        self._models: set[str] = set()  # named further down, next to token counts

    def payload(self, value: Any, currency: int) -> _Sums:
        plain = _plain(value)
        if plain is None:
            return _Sums()
        if not isinstance(plain, dict):
            plain = {"value": plain}
        return self._container(plain, -1, Role.NONE, currency)

    def model(self) -> str:
        """Return the model that the payload names; empty if several are named further down."""
        if self._model or len(self._models) != 1:
            return self._model
        return next(iter(self._models))

    def is_unusable(self) -> bool:
        return self._unusable or (self._unstated and self._foreign)

    def _object(self, value: Mapping[Any, Any], depth: int, inherited: int, under: Role) -> _Sums:
        """Classify an object's own members first: nested containers inherit its currency. Token
        counts matter at the top of the payload, next to a model and under a usage key."""
        largest, tokens, model = NO_MONEY, (0, 0), ""
        stated, records, bare = UNSTATED, 0, False
        below: list[tuple[Role, Any]] = []
        for key, raw in tuple(value.items()):
            name, member = _name(key), _plain(raw)
            role = role_of(name)
            self._scan(name)
            if isinstance(member, str):
                self._text(role, member)
            elif isinstance(member, (dict, list, tuple)):
                below.append((role, member))
            if role in _WITHOUT_FIGURES:
                continue
            records = max(records, self._records_in(role, member))
            if role is Role.CURRENCY or role is Role.UNIT:
                stated = max(stated, self._currency(role, member))
            elif role is Role.MODEL:
                model = max(model, _read_model(member))
            elif role is Role.INPUT or role is Role.OUTPUT:
                tokens = _with_count(tokens, role, member)
            elif role in _AMOUNTS and not isinstance(member, (dict, list, tuple)):
                amount = self._amount(role, member, depth)
                bare = bare or (amount.found and role is not Role.DOLLARS)
                largest = larger(largest, amount)
        stated = stated or inherited
        if bare:
            self._check_currency(stated)
        if records:
            self.records[depth] = min(self.records.get(depth, 0) + records, _MAX_RECORDS)
        counted = depth == 0 or under is Role.USAGE or model
        found = _Sums(largest, tokens if counted else (0, 0))
        for role, member in below:
            found = found.larger(self._below(role, member, depth, stated))
        if depth == 0:
            self._model = model
        elif model and any(found.tokens):  # cars have models too
            self._models.add(model)
        return found

    def _below(self, role: Role, value: Any, depth: int, currency: int) -> _Sums:
        """Classify a nested container. Under an amount's key it must hold an amount; otherwise the
        amount cannot be read."""
        before = self._amounts
        found = self._container(value, depth, role, currency)
        if role is Role.DOLLARS or role is Role.AMOUNT:
            self.explicit = True
            self._unusable = self._unusable or self._amounts == before
        return found

    def _container(self, value: Any, depth: int, role: Role, currency: int) -> _Sums:
        self._values -= len(value)
        if self._nesting == _MAX_DEPTH or self._values < 0:
            self.unseen = True
            return _Sums()
        self._nesting += 1
        try:
            if isinstance(value, dict):
                return self._object(value, depth + 1, currency, role)
            return self._list(value, depth, role, currency)
        finally:
            self._nesting -= 1

    def _list(self, items: Any, depth: int, role: Role, currency: int) -> _Sums:
        """Return the sum of the items, because the payments of a batch are made together."""
        total = _Sums()
        for raw in tuple(items):
            item = _plain(raw)
            if isinstance(item, (dict, list, tuple)):
                total = total.plus(self._container(item, depth, role, currency))
            else:
                if isinstance(item, str):
                    self._text(role, item)
                if role in _AMOUNTS:
                    amount = self._amount(role, item, depth)
                    if amount.found and role is not Role.DOLLARS:
                        self._check_currency(currency)
                    total = total.plus(_Sums(amount))
        return total

    def _amount(self, role: Role, value: Any, depth: int) -> Money:
        money = read_money(value)
        if not money.found or (role is Role.VALUE and not self._by_name):
            return NO_MONEY
        explicit = role is Role.DOLLARS or role is Role.AMOUNT
        if money.amount is None and not explicit:
            self._unusable = self._unusable or looks_like_money(value)
            return NO_MONEY
        self._amounts += 1
        self.explicit = self.explicit or explicit or (role is Role.PLAIN and depth == 0)
        if money.amount is None:
            self._unusable = True
            return NO_MONEY
        return money

    def _currency(self, role: Role, value: Any) -> int:
        currency = read_currency(value, role is Role.UNIT)
        if currency == FOREIGN and role is Role.CURRENCY:
            self._foreign = True
        return currency

    def _check_currency(self, currency: int) -> None:
        self._unusable = self._unusable or currency == FOREIGN
        self._unstated = self._unstated or currency == UNSTATED

    def _scan(self, text: str) -> bool:
        self._characters -= len(text)
        if self._characters < 0:
            self.unseen = True
            return False
        self.hosts.scan(text)
        return True

    def _text(self, role: Role, text: str) -> None:
        if not self._scan(text):
            return
        if role is Role.CODE or (role is Role.QUERY and _is_statement(text)):
            self.code = True
        reading = _BARE.get(role)
        if reading is not None:
            self.hosts.bare(text, reading)

    def _records_in(self, role: Role, value: Any) -> int:
        if role is Role.COUNT and self._counting and isinstance(value, (int, float)):
            return _count(value, _MAX_RECORDS)
        if role in (Role.COUNT, Role.IDS) and self._listing and isinstance(value, (list, tuple)):
            return len(value)
        return 0


def _is_statement(text: str) -> bool:
    """Whether a text is a statement that changes data. The words mean nothing in prose: one must
    begin the text, or the text must be a statement."""
    first = first_word(text)
    if first in QUERY_WORDS or ";" in text:
        return not STATEMENT_WORDS.isdisjoint(words_of(text))
    return first in STATEMENT_WORDS


# Keys of these roles hold no amount, currency, count, records or model.
_WITHOUT_FIGURES = frozenset(
    (Role.NONE, Role.HOST, Role.LINK, Role.TARGET, Role.CODE, Role.QUERY, Role.USAGE)
)
_AMOUNTS = frozenset((Role.DOLLARS, Role.AMOUNT, Role.PLAIN, Role.VALUE))
_BARE = {Role.HOST: URL, Role.LINK: LINK, Role.TARGET: TARGET}
