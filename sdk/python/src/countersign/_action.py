"""An action as it is sent: classified and sanitized once, and immutable afterwards."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from countersign._canonical import canonical
from countersign._classify import Facts, classify
from countersign._redact import Cleaned, Sanitizer
from countersign._safe import SAFE_VERBS, is_obviously_safe

__all__ = ["Action", "name_of", "new_key", "now"]

_MAX_NAME = 200
_MAX_METADATA = 15 << 10  # bytes; the service accepts 16 KiB
_MAX_USD = 10**15  # the service rejects larger amounts
_MAX_DOMAINS = 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class Action:
    """What the agent is about to do.

    It is a snapshot: changing the payload later, for example while the action waits for approval,
    does not change what was recorded.
    """

    __slots__ = ("_payload", "facts", "is_step", "safe", "wire")

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
            "idempotency_key": _idempotency_key(idempotency_key),
        }
        if parent_agent_name is not None:
            self.wire["parent_agent_name"] = name_of("parent_agent_name", parent_agent_name)
        extra: Cleaned | None = None
        if metadata is not None:
            extra = sanitizer.clean_object(metadata, _MAX_METADATA)
            self.wire["metadata"] = extra.value
        # Classify the raw values: redacting or cutting must not hide an amount or an address.
        self.facts: Facts = classify(
            self.wire["action_type"], action_name, cleaned.raw, extra.raw if extra else None
        )
        untouched = (
            cleaned.untouched
            and (extra is None or extra.untouched)
            and action_name == self.wire["action_name"]
        )
        self.safe = is_obviously_safe(action_name, SAFE_VERBS, self.facts, opaque=not untouched)
        """Whether the action may be decided locally: see :mod:`countersign._safe`."""
        self.is_step = idempotency_key is not None
        """Whether it has a key of its own, under which it may be replayed."""

    @property
    def categories(self) -> frozenset[str]:
        return self.facts.categories

    def as_sent(self, binding_key: bytes | None) -> dict[str, Any]:
        """Return the action as it is sent to the service.

        It includes the facts that were found in the raw values and a digest for each value that
        was redacted or cut. The digests are null without a binding key.
        """
        extra: dict[str, Any] = {}
        if found := _found(self.facts):
            extra["found"] = found
        if self._payload.redacted:
            # A value that was not read to its end cannot be bound.
            key = binding_key if self._payload.snapshot.whole else None
            extra["redactions"] = {
                pointer: digest_of(key, raw) for pointer, raw in self._payload.redacted.items()
            }
        return {**self.wire, **extra} if extra else self.wire

    def as_local_event(
        self, source: str, binding_key: bytes | None, lease_id: str | None = None
    ) -> dict[str, Any]:
        """Return the action as an event of a batch that was decided in this process."""
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
    """Return the facts in their JSON form. The service cannot find them in a redacted payload."""
    found: dict[str, Any] = {}
    if facts.categories:
        found["categories"] = sorted(facts.categories)
    if facts.amount_usd is not None and facts.amount_usd <= _MAX_USD:
        found["amount_usd"] = float(facts.amount_usd)
    if facts.external_domains:
        found["external_domains"] = list(facts.external_domains[:_MAX_DOMAINS])
    if facts.records_modified:
        found["records_modified"] = facts.records_modified
    return found


def digest_of(key: bytes | None, raw: Any) -> str | None:
    """Return the digest that binds a raw value to its action; None without a key."""
    if key is None:
        return None
    return "hmac-sha256:" + hmac.new(key, canonical(raw), hashlib.sha256).hexdigest()


def name_of(parameter: str, value: Any) -> str:
    """Return a name as the service accepts it: one line of at most 200 characters."""
    if not isinstance(value, str):
        raise TypeError(f"{parameter} must be a string, not {type(value).__name__}")
    name = str(value)
    if not (name.isascii() and name.isprintable()):
        name = _CONTROL.sub(" ", name).encode("utf-8", "replace").decode("utf-8")
    if not name.strip():
        raise ValueError(f"{parameter} must not be empty")
    return name[:_MAX_NAME]


def _idempotency_key(given: str | None) -> str:
    """Return the caller's key, or a new one.

    A key that is too long is hashed, not cut: two keys must never become one, or the second action
    would not be recorded.
    """
    if given is None:
        return new_key()
    name = name_of("idempotency_key", given)
    if name == given:
        return name
    return "sha256-" + hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()


def new_key() -> str:
    """Return a random idempotency key."""
    return os.urandom(16).hex()


def now() -> str:
    """Return the current time in the service's format (RFC 3339, milliseconds, UTC)."""
    seconds, milliseconds = divmod(time.time_ns() // 1_000_000, 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


@lru_cache(maxsize=1)  # many actions fall into the same second
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
