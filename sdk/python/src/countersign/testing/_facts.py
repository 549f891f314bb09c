"""What the fake service finds in actions, with the client's own classification."""

from __future__ import annotations

import hashlib
from typing import Any

from countersign._canonical import canonical
from countersign._classify import EXTERNAL, FINANCIAL, LLM, classify

__all__ = ["count", "facts_of", "no_metrics"]


def facts_of(action: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that an event records, with those that the client found in raw values."""
    facts = classify(
        action["action_type"], action["action_name"], action["payload"], action.get("metadata")
    )
    found = action.get("found") or {}
    amounts = [facts.amount_usd, found.get("amount_usd")]
    # A financial action without an amount has one that cannot be compared.
    unusable = facts.amount_unusable or (
        FINANCIAL in found.get("categories", ()) and amounts[1] is None
    )
    redactions = action.get("redactions")
    return {
        "categories": sorted(facts.categories.union(found.get("categories", ()))),
        "amount_usd": None
        if unusable
        else max((float(a) for a in amounts if a is not None), default=None),
        "external_domains": sorted({*facts.external_domains, *found.get("external_domains", ())}),
        "records_modified": max(facts.records_modified, found.get("records_modified", 0)),
        "payload_sha256": _sha256(action["payload"]),
        "redactions_sha256": _sha256(redactions) if redactions else None,
    }


def no_metrics() -> dict[str, Any]:
    """Return the metrics of a chain without actions."""
    return {
        "financial_exposure_usd": 0,
        "external_communications_count": 0,
        "records_modified_count": 0,
        "external_domains_contacted": [],
        "estimated_cost_usd": 0,
        "unpriced_calls_count": 0,
    }


def count(metrics: dict[str, Any], event: dict[str, Any]) -> None:
    """Add an action that was allowed or approved to the metrics of its chain."""
    metrics["financial_exposure_usd"] += event["amount_usd"] or 0
    metrics["external_communications_count"] += EXTERNAL in event["categories"]
    metrics["records_modified_count"] += event["records_modified"]
    domains = metrics["external_domains_contacted"]
    domains += [domain for domain in event["external_domains"] if domain not in domains]
    cost = event["estimated_cost_usd"]
    metrics["estimated_cost_usd"] += cost or 0
    metrics["unpriced_calls_count"] += cost is None and LLM in event["categories"]


def _sha256(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()
