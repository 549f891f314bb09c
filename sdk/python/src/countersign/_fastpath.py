"""Local decisions: leases, and which actions they cover."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from countersign._action import Action
from countersign._buffer import Outbox
from countersign._clock import LEASE_SECONDS, Moment, is_fresh
from countersign._config import ChainConfig
from countersign._decision import stricter_than_allow
from countersign._transport import Transport
from countersign._words import first_word, fold_name

__all__ = ["Lease", "is_violation", "lease_for"]

_MOST_ACTIONS = 100


class Lease:
    """Permission of the service to decide a limited number of obviously safe actions locally, for
    at most one second."""

    def __init__(self, given: Mapping[str, Any], sent: Moment, act_number: int) -> None:
        """Raises ``KeyError``, ``TypeError`` or ``ValueError`` if the lease is malformed."""
        self.id = str(given["id"])
        self.sent = sent
        self.act_number = act_number
        self.actions = frozenset(map(str, given["actions"]))
        self.except_agents = frozenset(fold_name(str(name)) for name in given["except_agents"])
        # The protocol's limits hold, whatever the answer says.
        self._seconds = min(float(given["milliseconds"]) / 1000, LEASE_SECONDS)
        self._remaining = min(int(given["max_actions"]), _MOST_ACTIONS)
        self._lock = threading.Lock()

    @classmethod
    def read(cls, given: object, sent: Moment, act_number: int) -> Lease | None:
        """Read the lease of an answer; None if there is none or it is malformed."""
        if not isinstance(given, Mapping) or isinstance(given.get("actions"), str):
            return None
        try:
            return cls(given, sent, act_number)
        except (KeyError, TypeError, ValueError):
            return None

    def covers(self, action_name: str, agent: str) -> bool:
        return first_word(action_name) in self.actions and agent not in self.except_agents

    def reserve(self, count: int) -> None:
        """Use up actions that the service did not know about when it granted the lease."""
        with self._lock:
            self._remaining -= count

    def take(self, now: Moment) -> bool:
        """Use the lease for one action. Returns False if it has expired or is used up."""
        if not is_fresh(self.sent, now, self._seconds):
            return False
        with self._lock:
            self._remaining -= 1
            return self._remaining >= 0


class Decider(Protocol):
    """The parts of a chain that local decisions depend on."""

    config: ChainConfig
    transport: Transport
    lease: Lease | None
    paused: bool
    outbox: Outbox


def lease_for(session: Decider, action: Action) -> Lease | None:
    """Return the lease that covers an action, or None. The caller must then ``take`` it."""
    config, transport, lease = session.config, session.transport, session.lease
    if (
        lease is None
        or not action.safe
        or action.is_step  # its replay may have no lease, and would not find its record
        or not config.enable_local_fast_path
        or lease.act_number != transport.act_number
        or transport.offline
        or transport.kill_switch_active
        or session.paused
        or session.outbox.full
    ):
        return None
    agent = fold_name(action.wire["agent_name"])
    if agent in config._high_risk or not lease.covers(action.wire["action_name"], agent):
        return None
    return lease


def is_violation(result: Mapping[str, Any]) -> bool:
    """Whether the service would have decided a delivered event more strictly."""
    if isinstance(result.get("violation"), bool):
        return bool(result["violation"])
    if stricter_than_allow(result.get("policy_decision")):
        return True
    shadow = result.get("evaluation_mode") == "shadow"
    return not shadow and stricter_than_allow(result.get("shadow_decision"))
