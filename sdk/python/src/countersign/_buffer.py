"""The queue of events that were decided in this process and not yet delivered."""

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
_BATCH_BYTES = 700 << 10  # the service accepts 1 MiB in a request


@dataclass
class _Entry:
    event: dict[str, Any]
    gap: bool = False
    frozen: bool = False
    """The service may have it already, so it must not change under its idempotency key."""


class Outbox:
    """A chain's undelivered events in the order in which they were decided.

    An event stays in the queue, under one idempotency key, until the service has acknowledged it,
    so it can be sent again after a lost answer. When the queue is full, the oldest event is
    dropped and a gap event takes its place, so that the record shows the loss.

    Safe to use from several threads.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: list[_Entry] = []
        self._sending = 0  # length of the batch that is being sent: the first entries
        self._again: list[_Entry] = []  # what takes the batch's place once it is delivered
        self._repeated = False
        self._events = 0
        self._lock = threading.Lock()  # guards everything above

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def waiting(self) -> int:
        """The number of entries that are not being sent."""
        return len(self._entries) - self._sending

    @property
    def full(self) -> bool:
        """Whether adding an event would drop another."""
        return self._events >= self._capacity

    def put(self, event: dict[str, Any]) -> None:
        """Add an event, which must have an ``idempotency_key`` and ``executed_at``."""
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
        """Return the next batch: the idempotency key and the JSON of each event. None of them is
        dropped until :meth:`end`.

        Events that an earlier attempt may have delivered form a batch of their own. Until they are
        acknowledged, the gap after them stays open and grows.
        """
        with self._lock:
            batch: list[tuple[str, bytes]] = []
            size = 0
            repeated = list(takewhile(lambda e: e.frozen, self._entries))
            for entry in repeated or self._entries[:_BATCH_EVENTS]:
                encoded = encode({k: v for k, v in entry.event.items() if k not in without})
                size += len(encoded) + 1
                if batch and size > _BATCH_BYTES:
                    break
                entry.frozen = True
                batch.append((entry.event["idempotency_key"], encoded))
            self._sending = len(batch)
            self._repeated = bool(repeated)
            return batch

    def send_again(self, event: dict[str, Any]) -> None:
        """Keep an event of the batch in the queue, under another idempotency key, if the batch is
        delivered."""
        with self._lock:
            self._again.append(_Entry(event))

    def end(self, *, delivered: bool, sent: bool = True) -> None:
        """End the batch. Delivered events leave the queue; events that were never sent may change
        and be dropped again."""
        with self._lock:
            batch, again = self._entries[: self._sending], self._again
            self._again = []
            if delivered:
                self._events += len(again) - sum(not e.gap for e in batch)
                self._entries[: self._sending] = again
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
