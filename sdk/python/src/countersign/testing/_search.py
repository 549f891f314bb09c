"""The search conditions of the fake service's lists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from countersign._canonical import canonical

__all__ = ["Search"]

_DECISIONS = ("allow", "allow_with_flag", "require_approval", "deny")
_ASPECTS = ("agent_name", "action_type", "action_name")
_MARKERS = ("gap", "late_outcome")  # recorded among the actions, but no actions


class Search:
    """The conditions in a list's query. One that the service refuses is a ``ValueError``."""

    def __init__(self, query: Mapping[str, str]) -> None:
        self._words = _words(query.get("name", ""))
        self._since = _moment(query.get("since"))
        self._until = _moment(query.get("until"), end=True)
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
            raise ValueError("name must hold a letter or a digit")
        if decision not in (None, *_DECISIONS):
            raise ValueError(f"decision must be one of {', '.join(_DECISIONS)}")
        if self._since and self._until and self._since >= self._until:
            raise ValueError("until must be later than since")

    def matches(
        self, chain: Mapping[str, Any], events: Iterable[Mapping[str, Any]], moment: str
    ) -> bool:
        """Whether a chain with these events, listed under this time, meets all conditions."""
        at = _moment(moment)
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


def _moment(text: str | None, *, end: bool = False) -> datetime | None:
    """Parse a timestamp, or a date in UTC: its beginning, or its end."""
    if text is None:
        return None
    at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if len(text) == len("2026-11-01"):
        return at.replace(tzinfo=timezone.utc) + timedelta(days=end)
    if at.tzinfo is None:
        raise ValueError("a timestamp must have a time zone")
    return at
