"""Reading chains, events and receipts from the service.

Every function is async and has a sync variant whose name ends in ``_sync``. Lists are iterators
that fetch further pages as needed. An agent's key reads the chains that it opened; events and
receipts need a member's key. A record that was changed outside the service has ``integrity``
``"failed"`` and no other content.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime, timezone
from typing import Any, TypeVar
from urllib.parse import urlencode

from countersign._canonical import canonical
from countersign._client import Client
from countersign._config import ChainConfig
from countersign._request import path_segment, request, request_sync
from countersign.exceptions import APIError

__all__ = [
    "ChainRecord",
    "EventRecord",
    "OutcomeRecord",
    "ReceiptRecord",
    "events_of",
    "events_of_sync",
    "get_chain",
    "get_chain_sync",
    "list_chains",
    "list_chains_sync",
    "receipts",
    "receipts_sync",
]

_PAGE = 200  # the largest page that the service returns


@dataclass(frozen=True)
class ChainRecord:
    """A chain as the service describes it."""

    id: str
    name: str | None = None
    status: str | None = None
    """``active``, ``auto_paused``, ``completed`` or ``failed``."""
    environment: str | None = None
    external_chain_id: str | None = None
    metadata: Mapping[str, Any] | None = field(default=None, hash=False)
    pause_reason: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    total_actions: int | None = None
    agents_involved: tuple[str, ...] = ()
    cumulative_metrics: Mapping[str, Any] | None = field(default=None, hash=False)
    policy_version: str | None = None
    effective_limits: Mapping[str, Any] | None = field(default=None, hash=False)
    """The limits in force: the tighter of the client's and the organization's."""
    receipt_id: str | None = None
    """``None`` until the chain is completed."""
    continues: str | None = None
    continued_by: str | None = None
    error: Mapping[str, Any] | None = field(default=None, hash=False)
    """Why a failed chain failed."""
    integrity: str | None = None
    """``"failed"`` for a record that was changed outside the service."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False, compare=False)
    """The complete answer, including members that this version does not know."""


@dataclass(frozen=True)
class OutcomeRecord:
    """The reported outcome of an allowed action."""

    outcome: str
    """``succeeded``, ``failed`` or ``unknown``."""
    detail: str | None = None
    recorded_at: str | None = None


@dataclass(frozen=True)
class EventRecord:
    """A recorded action with its decision."""

    chain_id: str
    sequence: int
    id: str | None = None
    agent_name: str | None = None
    parent_agent_name: str | None = None
    action_type: str | None = None
    action_name: str | None = None
    payload: Any = field(default=None, hash=False)
    metadata: Mapping[str, Any] | None = field(default=None, hash=False)
    status: str | None = None
    """``allowed``, ``flagged``, ``awaiting_approval`` or ``denied``."""
    policy_decision: str | None = None
    decision_reason: str | None = None
    decision_source: str | None = None
    policy_name: str | None = None
    categories: tuple[str, ...] = ()
    amount_usd: float | None = None
    recorded_at: str | None = None
    approval_id: str | None = None
    outcome: OutcomeRecord | None = None
    integrity: str | None = None
    """``"failed"`` for a record that was changed outside the service."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False, compare=False)
    """The complete answer, including members that this version does not know."""


@dataclass(frozen=True)
class ReceiptRecord:
    """A signed receipt. ``raw`` is the document that the signature covers."""

    receipt_id: str
    receipt_number: str | None = None
    chain_id: str | None = None
    environment: str | None = None
    external_chain_id: str | None = None
    metadata: Mapping[str, Any] | None = field(default=None, hash=False)
    evaluation_mode: str | None = None
    """``shadow`` if any action was decided in shadow mode."""
    summary: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    generated_at: str | None = None
    agents_involved: tuple[str, ...] = ()
    total_actions: int | None = None
    cumulative_metrics: Mapping[str, Any] | None = field(default=None, hash=False)
    policy_version: str | None = None
    signature: str | None = None
    integrity: str | None = None
    """``"failed"`` for a record that was changed outside the service."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False, compare=False)


async def get_chain(chain_id: str, *, config: ChainConfig | Client | None = None) -> ChainRecord:
    """Return one chain."""
    return _chain(await request(config, "GET", f"/v1/chains/{path_segment(chain_id)}"))


def get_chain_sync(chain_id: str, *, config: ChainConfig | Client | None = None) -> ChainRecord:
    """:func:`get_chain` for code without an event loop."""
    return _chain(request_sync(config, "GET", f"/v1/chains/{path_segment(chain_id)}"))


async def list_chains(
    *,
    status: str | None = None,
    environment: str | None = None,
    external_chain_id: str | None = None,
    name: str | None = None,
    agent_name: str | None = None,
    action_type: str | None = None,
    action_name: str | None = None,
    decision: str | None = None,
    since: datetime | date | str | None = None,
    until: datetime | date | str | None = None,
    metadata: Mapping[str, Any] | None = None,
    config: ChainConfig | Client | None = None,
) -> AsyncIterator[ChainRecord]:
    """Iterate over chains, newest first: those of the organization or, with an agent's key, its
    own.

    The parameters filter the list: by words of the chain's ``name``, by the agent, name, type or
    decision of one of its actions, by its start time, and by top-level members of its metadata. A
    date, or a text such as ``"2026-11-01"``, is a day in UTC; ``until`` includes it.
    """
    query = _filters(status, environment, external_chain_id)
    query |= _searched(name, agent_name, action_type, action_name, decision, since, until, metadata)
    async for record in _records(config, "/v1/chains", query):
        yield _chain(record)


def list_chains_sync(
    *,
    status: str | None = None,
    environment: str | None = None,
    external_chain_id: str | None = None,
    name: str | None = None,
    agent_name: str | None = None,
    action_type: str | None = None,
    action_name: str | None = None,
    decision: str | None = None,
    since: datetime | date | str | None = None,
    until: datetime | date | str | None = None,
    metadata: Mapping[str, Any] | None = None,
    config: ChainConfig | Client | None = None,
) -> Iterator[ChainRecord]:
    """:func:`list_chains` for code without an event loop."""
    query = _filters(status, environment, external_chain_id)
    query |= _searched(name, agent_name, action_type, action_name, decision, since, until, metadata)
    return map(_chain, _records_sync(config, "/v1/chains", query))


async def events_of(
    chain_id: str, *, config: ChainConfig | Client | None = None
) -> AsyncIterator[EventRecord]:
    """Iterate over a chain's events, in the order in which they were recorded."""
    async for record in _records(config, f"/v1/chains/{path_segment(chain_id)}/events", {}):
        yield _event(record)


def events_of_sync(
    chain_id: str, *, config: ChainConfig | Client | None = None
) -> Iterator[EventRecord]:
    """:func:`events_of` for code without an event loop."""
    return map(_event, _records_sync(config, f"/v1/chains/{path_segment(chain_id)}/events", {}))


async def receipts(
    *,
    name: str | None = None,
    agent_name: str | None = None,
    action_type: str | None = None,
    action_name: str | None = None,
    decision: str | None = None,
    since: datetime | date | str | None = None,
    until: datetime | date | str | None = None,
    metadata: Mapping[str, Any] | None = None,
    config: ChainConfig | Client | None = None,
) -> AsyncIterator[ReceiptRecord]:
    """Iterate over the organization's receipts, newest first.

    The parameters filter the list as in :func:`list_chains`; ``since`` and ``until`` apply to the
    time at which the receipt was generated.
    """
    query = _searched(name, agent_name, action_type, action_name, decision, since, until, metadata)
    async for record in _records(config, "/v1/receipts", query):
        yield _receipt(record)


def receipts_sync(
    *,
    name: str | None = None,
    agent_name: str | None = None,
    action_type: str | None = None,
    action_name: str | None = None,
    decision: str | None = None,
    since: datetime | date | str | None = None,
    until: datetime | date | str | None = None,
    metadata: Mapping[str, Any] | None = None,
    config: ChainConfig | Client | None = None,
) -> Iterator[ReceiptRecord]:
    """:func:`receipts` for code without an event loop."""
    query = _searched(name, agent_name, action_type, action_name, decision, since, until, metadata)
    return map(_receipt, _records_sync(config, "/v1/receipts", query))


# -- pages ---------------------------------------------------------------------------------


async def _records(
    config: ChainConfig | Client | None, path: str, query: dict[str, str]
) -> AsyncIterator[Mapping[str, Any]]:
    pages = _Pages(path, query)
    while (address := pages.following()) is not None:
        for record in pages.take(await request(config, "GET", address)):
            yield record


def _records_sync(
    config: ChainConfig | Client | None, path: str, query: dict[str, str]
) -> Iterator[Mapping[str, Any]]:
    pages = _Pages(path, query)
    while (address := pages.following()) is not None:
        yield from pages.take(request_sync(config, "GET", address))


class _Pages:
    """Follows the cursors of one list."""

    def __init__(self, path: str, query: dict[str, str]) -> None:
        self._path = path
        self._query = {**query, "limit": str(_PAGE)}
        self._cursor: str | None = ""

    def following(self) -> str | None:
        """Return the path of the next page; None after the last."""
        if self._cursor is None:
            return None
        query = {**self._query, **({"cursor": self._cursor} if self._cursor else {})}
        return f"{self._path}?{urlencode(query)}"

    def take(self, page: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        data, cursor = page.get("data"), page.get("next_cursor")
        if not isinstance(data, list):
            raise APIError("the answer was not a list; is backend_url the service's?", 200)
        if cursor is not None and (not isinstance(cursor, str) or cursor == self._cursor):
            raise APIError("the list does not end: its next page is the same again", 200)
        self._cursor = cursor
        return [record for record in data if isinstance(record, Mapping)]


def _filters(
    status: str | None, environment: str | None, external_chain_id: str | None
) -> dict[str, str]:
    given = {
        "status": status,
        "environment": environment,
        "external_chain_id": external_chain_id,
    }
    return {name: value for name, value in given.items() if value is not None}


def _searched(
    name: str | None,
    agent_name: str | None,
    action_type: str | None,
    action_name: str | None,
    decision: str | None,
    since: datetime | date | str | None,
    until: datetime | date | str | None,
    metadata: Mapping[str, Any] | None,
) -> dict[str, str]:
    given = {
        "name": name,
        "agent_name": agent_name,
        "action_type": action_type,
        "action_name": action_name,
        "decision": decision,
        "since": _moment(since),
        "until": _moment(until),
        **{f"metadata[{key}]": _scalar(value) for key, value in (metadata or {}).items()},
    }
    return {name: value for name, value in given.items() if value is not None}


def _moment(at: datetime | date | str | None) -> str | None:
    if not isinstance(at, datetime):
        return at.isoformat() if isinstance(at, date) else at
    if at.tzinfo is None:
        raise ValueError("since and until must have a time zone")
    utc = at.astimezone(timezone.utc)
    return utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _scalar(value: Any) -> str:
    """Return a metadata value in the form in which the service compares it."""
    return value if isinstance(value, str) else canonical(value).decode()


# -- records -------------------------------------------------------------------------------

T = TypeVar("T", ChainRecord, EventRecord, ReceiptRecord)


def _chain(record: Mapping[str, Any]) -> ChainRecord:
    return _read(ChainRecord, record)


def _event(record: Mapping[str, Any]) -> EventRecord:
    return _read(EventRecord, record)


def _receipt(record: Mapping[str, Any]) -> ReceiptRecord:
    return _read(ReceiptRecord, record)


def _read(kind: type[T], record: Mapping[str, Any]) -> T:
    """Read the record's known members. Lists become tuples, so that the record is immutable."""
    known = {
        f.name: _member(record[f.name])
        for f in fields(kind)
        if f.name != "raw" and record.get(f.name) is not None
    }
    if isinstance(reported := record.get("outcome"), Mapping):
        names = ("outcome", "detail", "recorded_at")
        known["outcome"] = OutcomeRecord(**{n: reported.get(n) for n in names})  # type: ignore[arg-type]
    return kind(**known, raw=record)


def _member(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
