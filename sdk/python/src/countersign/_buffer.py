"""Events that were decided here and have not reached the service yet."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from countersign._action import new_key
from countersign._redact import encode

__all__ = ["Outbox"]

_BATCH_EVENTS = 100
_BATCH_BYTES = 700 << 10  # the service takes 1 MiB a request


@dataclass
class _Entry:
    event: dict[str, Any]
    gap: bool = False
    frozen: bool = False
    """It is, or may be, with the service: under its key it can only be sent as it is."""


class Outbox:
    """A chain's events in the order in which they were decided.

    Each stays until the service has acknowledged it, under one idempotency key, so sending
    it again settles what a lost answer left open. Beyond the capacity the oldest is dropped,
    and a gap takes its place: a hole in the record is never silent.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: list[_Entry] = []
        self._sending = 0  # how many of the first are on their way just now
        self._repeated = False
        self._events = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def waiting(self) -> int:
        """How many of them are not on their way to the service yet."""
        return len(self._entries) - self._sending

    @property
    def full(self) -> bool:
        """Whether one more event would push another out."""
        return self._events >= self._capacity

    def put(self, event: dict[str, Any]) -> None:
        """Add an event; its ``idempotency_key`` and ``executed_at`` are set."""
        with self._lock:
            self._entries.append(_Entry(event))
            self._events += 1
            while self._events > self._capacity and self._drop_oldest():
                pass

    def _drop_oldest(self) -> bool:
        for i in range(self._sending, len(self._entries)):
            entry = self._entries[i]
            if not entry.gap:
                del self._entries[i]
                self._events -= 1
                self._widen_gap(i, entry.event["executed_at"])
                return True
        return False

    def _widen_gap(self, position: int, at: str) -> None:
        before = self._entries[position - 1] if position > self._sending else None
        if before is not None and before.gap and not before.frozen:
            payload = before.event["payload"]
            payload["dropped"] += 1
            payload["to"] = at
            before.event["executed_at"] = at
        else:
            self._entries.insert(position, _Entry(_gap(at), gap=True))

    def begin(self, without: Collection[str] = ()) -> list[tuple[str, bytes]]:
        """The next batch: each event's idempotency key, and the event encoded. Until
        :meth:`end` none of them can be dropped.

        What an earlier attempt may have delivered goes first and alone: as long as it is not
        settled, the gap behind it stays open, and grows instead of being followed by more.
        """
        with self._lock:
            batch: list[tuple[str, bytes]] = []
            size = 0
            unsettled = list(takewhile(lambda e: e.frozen, self._entries))
            for entry in unsettled or self._entries[:_BATCH_EVENTS]:
                encoded = encode({k: v for k, v in entry.event.items() if k not in without})
                size += len(encoded) + 1
                if batch and size > _BATCH_BYTES:
                    break
                entry.frozen = True
                batch.append((entry.event["idempotency_key"], encoded))
            self._sending = len(batch)
            self._repeated = bool(unsettled)
            return batch

    def end(self, *, delivered: bool, sent: bool = True) -> None:
        """Close the batch: its events are gone if they were delivered, and as before if they
        were not even sent."""
        with self._lock:
            batch = self._entries[: self._sending]
            if delivered:
                self._events -= sum(not e.gap for e in batch)
                del self._entries[: self._sending]
            elif not sent and not self._repeated:
                for entry in batch:
                    entry.frozen = False
            self._sending = 0


def _gap(at: str) -> dict[str, Any]:
    return {
        "agent_name": "countersign",
        "action_type": "gap",
        "action_name": "dropped_events",
        "payload": {"dropped": 1, "from": at, "to": at},
        "idempotency_key": new_key(),
        "executed_at": at,
        "decision_source": "offline_stub",
        "policy_decision": "allow",
    }
