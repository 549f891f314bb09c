"""Comparing the limits of this client with those in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["looser_than", "within"]

_NUMBERS = (
    "financial_approval_threshold_usd",
    "cumulative_financial_threshold_usd",
    "approval_timeout_hours",
)


def looser_than(in_force: object, asked: Mapping[str, Any]) -> dict[str, str]:
    """Return the requested limits that are looser than those in force, each with an explanation.
    Limits that were not requested are ignored.

    >>> looser_than({"approval_timeout_hours": 2}, {"approval_timeout_hours": 24})
    {'approval_timeout_hours': 'approval_timeout_hours is 24 here and 2 in force'}
    """
    if not isinstance(in_force, Mapping):
        return {}
    found = {}
    for name in _NUMBERS:
        own, other = asked.get(name), in_force.get(name)
        if isinstance(own, (int, float)) and isinstance(other, (int, float)) and own > other:
            found[name] = f"{name} is {own:g} here and {other:g} in force"
    name = "external_domains_allowlist"
    allowed = in_force.get(name)
    if isinstance(asked.get(name), Sequence) and isinstance(allowed, Sequence):
        beyond = [d for d in asked[name] if not any(within(d, wider) for wider in allowed)]
        if beyond:
            found[name] = f"{name} has {len(beyond)} domains here that are not allowed in force"
    return found


def within(domain: object, other: object) -> bool:
    """Whether a domain is the other one or a subdomain of it."""
    return domain == other or str(domain).endswith(f".{other}")
