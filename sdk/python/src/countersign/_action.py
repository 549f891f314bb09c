"""An action as it is sent: sanitized once, and the same from then on."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from countersign._classify import categories_of
from countersign._redact import Sanitizer

__all__ = ["Action", "name_of", "new_key", "now"]

_MAX_NAME = 200
_MAX_METADATA = 15 << 10  # the service takes 16 KiB
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class Action:
    """What the agent is about to do. A snapshot: changing the payload afterwards, during a
    wait for approval say, does not change what was recorded."""

    __slots__ = ("categories", "wire")

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
    ) -> None:
        self.wire: dict[str, Any] = {
            "agent_name": name_of("agent_name", agent_name),
            "action_type": name_of("action_type", action_type),
            "action_name": name_of("action_name", action_name),
            "payload": sanitizer.clean_object(payload),
            "idempotency_key": _key_of(idempotency_key),
        }
        if parent_agent_name is not None:
            self.wire["parent_agent_name"] = name_of("parent_agent_name", parent_agent_name)
        if metadata is not None:
            self.wire["metadata"] = sanitizer.clean_object(metadata, _MAX_METADATA)
        self.categories = categories_of(
            self.wire["action_type"],
            self.wire["action_name"],
            self.wire["payload"],
            self.wire.get("metadata"),
        )

    def decided_here(self, source: str) -> dict[str, Any]:
        """The action as part of a batch of decisions that were made in this process."""
        return {
            **self.wire,
            "executed_at": now(),
            "decision_source": source,
            "policy_decision": "allow",
        }

    def __str__(self) -> str:
        wire = self.wire
        return f"{wire['action_type']} {wire['action_name']!r} by {wire['agent_name']!r}"


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
