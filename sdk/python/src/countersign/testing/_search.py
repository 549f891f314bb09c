"""The search conditions of the fake service's lists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from countersign._canonical import canonical
from countersign.testing._wire import Invalid

__all__ = ["Search", "moment"]

_DECISIONS = ("allow", "allow_with_flag", "require_approval", "deny")
_ASPECTS = ("agent_name", "action_type", "action_name")
_MARKERS = ("gap", "late_outcome")  # recorded among the actions, but no actions


class Search:
    """The conditions in a list's query. One that the service refuses raises ``Invalid``."""

    def __init__(self, query: Mapping[str, str]) -> None:
        self._words = _words(query.get("name", ""))
        self._since = _limit("since", query)
        self._until = _limit("until", query, end=True)
        self._metadata = {
            name.removeprefix("metadata[").removesuffix("]"): value
            for name, value in query.items()
            if name.startswith("metadata[")
        }
        decision = query.get("decision")
        self._aspects = [{name: query[name]} for name in _ASPECTS if name in query]
        if decision is not None:
            self._aspects = [
                {**aspect, "policy_decision": decision} for aspect in self._aspects or [{}]
            ]
        if "name" in query and not self._words:
            raise Invalid("/name", "must hold a letter or a digit")
        if decision not in (None, *_DECISIONS):
            raise Invalid("/decision", f"must be one of {', '.join(_DECISIONS)}")
        if self._since and self._until and self._since >= self._until:
            raise Invalid("/until", "must be later than since")

    def matches(
        self, chain: Mapping[str, Any], events: Iterable[Mapping[str, Any]], listed_at: str
    ) -> bool:
        """Whether a chain with these events, listed under this time, meets all conditions."""
        at = moment(listed_at)
        actions = [e for e in events if e["action_type"] not in _MARKERS]
        return (
            self._words <= _words(chain["name"])
            and self._metadata.items() <= _scalars(chain["metadata"] or {}).items()
            and (self._since is None or at is None or at >= self._since)
            and (self._until is None or at is None or at < self._until)
            and all(
                any(aspect.items() <= _searched(action).items() for action in actions)
                for aspect in self._aspects
            )
        )


def _searched(action: Mapping[str, Any]) -> dict[str, Any]:
    return {name: action.get(name) for name in (*_ASPECTS, "policy_decision")}


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]+", text.lower()))


def _scalars(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the members that can be searched, in the form in which they are compared."""
    return {
        key: value if isinstance(value, str) else canonical(value).decode()
        for key, value in metadata.items()
        if not isinstance(value, (dict, list, tuple))
    }


def _limit(name: str, query: Mapping[str, str], *, end: bool = False) -> datetime | None:
    found = moment(query[name], end=end) if name in query else None
    if name in query and found is None:
        raise Invalid(f"/{name}", "must be a date like 2026-11-01, or an RFC 3339 timestamp")
    return found


def moment(text: str, *, end: bool = False) -> datetime | None:
    """Parse a timestamp, or a date in UTC: its beginning, or its end. Returns None for another
    text."""
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if len(text) == len("2026-11-01"):
        return at.replace(tzinfo=timezone.utc) + timedelta(days=end)
    return at if at.tzinfo else None
