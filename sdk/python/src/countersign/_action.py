"""An action as it is sent: looked at and sanitized once, and the same from then on."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from typing import Any

from countersign._canonical import canonical
from countersign._classify import Facts, classify
from countersign._redact import Cleaned, Sanitizer
from countersign._safe import SAFE_VERBS, is_obviously_safe

__all__ = ["Action", "name_of", "new_key", "now"]

_MAX_NAME = 200
_MAX_METADATA = 15 << 10  # the service takes 16 KiB
_MOST_USD = 10**15  # more is no amount to the service
_MOST_DOMAINS = 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class Action:
    """What the agent is about to do. A snapshot: changing the payload afterwards, during a
    wait for approval say, does not change what was recorded."""

    __slots__ = ("_payload", "facts", "safe", "wire")

    def __init__(
        self,
        sanitizer: Sanitizer,
        agent_name: str,
        action_type: str,
        action_name: str,
        payload: Any,
        parent_agent_name: str | None,
        metadata: Mapping[str, Any] | None,
        idempotency_key: str | None,
        redact: Collection[str] = (),
    ) -> None:
        self._payload = cleaned = sanitizer.clean_object(payload, redact=redact)
        self.wire: dict[str, Any] = {
            "agent_name": name_of("agent_name", agent_name),
            "action_type": name_of("action_type", action_type),
            "action_name": name_of("action_name", action_name),
            "payload": cleaned.value,
            "idempotency_key": _key_of(idempotency_key),
        }
        if parent_agent_name is not None:
            self.wire["parent_agent_name"] = name_of("parent_agent_name", parent_agent_name)
        beside: Cleaned | None = None
        if metadata is not None:
            beside = sanitizer.clean_object(metadata, _MAX_METADATA)
            self.wire["metadata"] = beside.value
        # Of the raw values: what is redacted or cut must not hide an amount or an address.
        self.facts: Facts = classify(
            self.wire["action_type"], action_name, cleaned.raw, beside.raw if beside else None
        )
        untouched = (
            cleaned.untouched
            and (beside is None or beside.untouched)
            and action_name == self.wire["action_name"]
        )
        self.safe = is_obviously_safe(action_name, SAFE_VERBS, self.facts, opaque=not untouched)
        """Whether nothing speaks against deciding it here: see :mod:`countersign._safe`."""

    @property
    def categories(self) -> frozenset[str]:
        return self.facts.categories

    def as_sent(self, binding_key: bytes | None) -> dict[str, Any]:
        """The action as the service is asked about it, with what was found in the raw values,
        and with digests that bind what was taken out. Without a key they are null."""
        beside: dict[str, Any] = {}
        if found := _found(self.facts):
            beside["found"] = found
        if self._payload.redacted:
            # What was not read to its end cannot be bound.
            key = binding_key if self._payload.snapshot.whole else None
            beside["redactions"] = {
                pointer: digest_of(key, raw) for pointer, raw in self._payload.redacted.items()
            }
        return {**self.wire, **beside} if beside else self.wire

    def decided_here(
        self, source: str, binding_key: bytes | None, lease_id: str | None = None
    ) -> dict[str, Any]:
        """The action as part of a batch of decisions that were made in this process."""
        event = {
            **self.as_sent(binding_key),
            "executed_at": now(),
            "decision_source": source,
            "policy_decision": "allow",
        }
        if lease_id is not None:
            event["lease_id"] = lease_id
        return event

    def __str__(self) -> str:
        wire = self.wire
        return f"{wire['action_type']} {wire['action_name']!r} by {wire['agent_name']!r}"


def _found(facts: Facts) -> dict[str, Any]:
    """What the service may not see any more, as the wire names it."""
    found: dict[str, Any] = {}
    if facts.categories:
        found["categories"] = sorted(facts.categories)
    if facts.amount_usd is not None and facts.amount_usd <= _MOST_USD:
        found["amount_usd"] = float(facts.amount_usd)
    if facts.external_domains:
        found["external_domains"] = list(facts.external_domains[:_MOST_DOMAINS])
    if facts.records_modified:
        found["records_modified"] = facts.records_modified
    return found


def digest_of(key: bytes | None, raw: Any) -> str | None:
    """Binds a raw value to the action that it was taken out of; None without a key."""
    if key is None:
        return None
    return "hmac-sha256:" + hmac.new(key, canonical(raw), hashlib.sha256).hexdigest()


def name_of(parameter: str, value: Any) -> str:
    """A name as the service takes it: one line of at most 200 characters."""
    if not isinstance(value, str):
        raise TypeError(f"{parameter} must be a string, not {type(value).__name__}")
    name = str(value)
    if not (name.isascii() and name.isprintable()):
        name = _CONTROL.sub(" ", name).encode("utf-8", "replace").decode("utf-8")
    if not name.strip():
        raise ValueError(f"{parameter} must not be empty")
    return name[:_MAX_NAME]


def _key_of(given: str | None) -> str:
    """The caller's key, or a new one. A key that is too long is hashed and not cut: two keys
    must never become one, or the second action would go unrecorded."""
    if given is None:
        return new_key()
    name = name_of("idempotency_key", given)
    if name == given:
        return name
    return "sha256-" + hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()


def new_key() -> str:
    """An idempotency key that nobody else has."""
    return os.urandom(16).hex()


def now() -> str:
    """The present time as the service writes it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")[:-6] + "Z"
