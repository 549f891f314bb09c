"""Getting a chain's record to the service: in order, once, and however long it takes."""

from __future__ import annotations

import base64
import logging
import math
import os
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any
from urllib.parse import quote

from countersign import _fastpath
from countersign._action import new_key
from countersign._answers import may_pass
from countersign._buffer import Outbox
from countersign._client import transport_of
from countersign._clients import Unreachable
from countersign._clock import Moment
from countersign._config import ChainConfig
from countersign._decision import PolicyDecision
from countersign._enforce import denial_of, is_stop
from countersign._fastpath import Lease
from countersign._limits import looser_than
from countersign._steps import Steps, Until
from countersign.exceptions import APIError, PolicyViolationError

__all__ = ["Delivery"]

logger = logging.getLogger("countersign")

_MAX_KNOWN_EVENTS = 10_000
_ABOUT_CONTENT = frozenset((400, 409, 413, 422))


class Delivery:
    """A chain as the service knows it, and what it does not know yet. Safe to use from several
    threads and event loops: each delivers in its turn."""

    def __init__(self, config: ChainConfig, opening: dict[str, Any]) -> None:
        self.config = config
        self.transport = transport_of(config)
        self.chain: dict[str, Any] = {}
        """The chain as the service last described it; empty while it was opened offline."""
        self.paused = False
        self.pause_reason: str | None = None
        self.lease: Lease | None = None
        """Under which obviously safe actions are decided here; the lock guards it."""
        self.binding_key: bytes | None = None
        """Binds what is redacted to its action. A chain that was opened offline has none."""
        self.completion: dict[str, Any] | None = None
        """How the chain ended, once it was left."""
        self.receipt: dict[str, Any] | None = None
        self.outbox = Outbox(config.offline_buffer_max_events)
        self.events: dict[str, tuple[str, str]] = {}
        """Events decided here, by idempotency key, once the service has recorded them: the
        chain that each stands in, and its id."""
        self._opening = opening
        self._opening_key = new_key()
        self._bound = False  # whether the service binds what was redacted
        self._takes_found = False  # whether it takes what was found in an action
        self._paused_at = -math.inf  # when an answer last told of the pause
        self._latched: dict[type[Exception], Exception] = {}
        self._turn: Future[None] | None = None
        self._followed = False  # whether the log says that the chain was abandoned
        self._earlier: set[str] = set()  # ids of the chains that this one continues
        self._lock = threading.Lock()
        _every.add(self)
        self.transport.deliveries.add(self)

    def _begin_in_child(self) -> None:
        """After a fork. Other threads of the parent may have held the lock or had the turn; what
        was decided there, they deliver."""
        self._lock = threading.Lock()
        self._turn = None
        self.lease = None
        self.outbox = Outbox(self.config.offline_buffer_max_events)

    @property
    def name(self) -> str | None:
        """The chain's name, as it was opened."""
        return self._opening.get("name")

    @property
    def id(self) -> str | None:
        return self.chain.get("id")

    def open_now(self) -> Steps[None]:
        """Open the chain. Repeated under its key, it is opened once."""
        headers = {"idempotency-key": self._opening_key}
        chain, sent = yield from self.transport.ask(
            "POST", "/v1/chains", self._opening, headers=headers
        )
        self._learn_chain(chain, sent)

    def unsettled(self) -> bool:
        """Whether anything must be delivered before the service is asked about more."""
        return not self.chain or len(self.outbox) > 0

    def settle(self) -> Steps[None]:
        """Deliver everything, in order, one caller at a time."""
        while True:
            with self._lock:
                if self._turn is None:
                    self._turn = Future()
                    break
                others = self._turn
            yield Until(others)
        try:
            yield from self._deliver()
        finally:
            with self._lock:
                turn, self._turn = self._turn, None
            turn.set_result(None)

    def _deliver(self) -> Steps[None]:
        if not self.chain:
            yield from self.open_now()
        while batch := self.outbox.begin(self.unknown_members()):
            delivered, sent = False, True
            try:
                yield from self._send(batch)
                delivered = True
            except Unreachable as fault:
                sent = fault.sent
                raise
            except APIError as error:
                # Refused for good, sending it again would not help.
                delivered = not may_pass(error)
                raise
            finally:
                self.outbox.end(delivered=delivered, sent=sent)
        if self.completion is not None and self.receipt is None:
            yield from self._complete(self.completion)

    def _send(self, batch: list[tuple[str, bytes]]) -> Steps[None]:
        body = b'{"events":[' + b",".join(event for _, event in batch) + b"]}"
        try:
            answer, sent = yield from self.transport.ask("POST", self.path("/events/batch"), body)
        except APIError as error:
            if error.status not in _ABOUT_CONTENT or error.code == "chain_sealed":
                raise
            if len(batch) > 1:
                # One of them is at fault; that says nothing of the others.
                for one in batch:
                    yield from self._send([one])
            elif error.code != "idempotency_conflict":  # that one was recorded before
                self.fail(_refusal(error))
            return
        results = answer.get("results")
        self.learn(answer, sent)
        number = answer.get("act_number")
        for (key, _), result in zip(
            batch, results if isinstance(results, list) else (), strict=False
        ):
            if isinstance(result, dict):
                self._take(key, {"act_number": number, **result}, sent)

    def _take(self, key: str, result: dict[str, Any], sent: Moment) -> None:
        problem = result.get("error") or result.get("problem")
        if isinstance(problem, dict):
            if problem.get("code") != "idempotency_conflict":
                detail, status = problem.get("detail", ""), problem.get("status", 0)
                self.fail(_refusal(APIError(detail, status, problem.get("code", ""))))
            return
        self.learn(result, sent)
        decision = PolicyDecision.from_json(result, idempotency_key=key)
        if decision.event_id and len(self.events) < _MAX_KNOWN_EVENTS:
            self.events[key] = (decision.chain_id or str(self.id), decision.event_id)
        if _fastpath.is_violation(result):
            self.fail(_violation(decision))

    def _complete(self, completion: dict[str, Any]) -> Steps[None]:
        try:
            sealed = yield from self.transport.call("POST", self.path("/complete"), completion)
            self.follow(sealed.get("id"))
            self.chain = sealed
            receipt = sealed.get("receipt")
        except APIError as error:
            if error.code != "chain_sealed":
                raise
            logger.warning("the chain had been completed already, with another outcome")
            receipt = yield from self.transport.call("GET", self.path("/receipt"))
        self.receipt = receipt

    def check_latched(self) -> None:
        """Raise what the background has found, once: a stop before anything else."""
        if not self._latched:
            return
        with self._lock:
            kinds = sorted(self._latched, key=lambda kind: not is_stop(kind))
            latched = self._latched.pop(kinds[0]) if kinds else None
        if latched is not None:
            raise latched

    def fail(self, error: Exception) -> None:
        """Keep an error for the next call; the first of its kind counts."""
        logger.warning("countersign: %s", error)
        with self._lock:
            self._latched.setdefault(type(error), error)

    def undelivered(self) -> int:
        return len(self.outbox)

    def learn(self, answer: dict[str, Any], sent: Moment) -> bool:
        """Take what any answer says about organization and chain. False when it is older than
        what is known of the organization: an allow in it is not to be relied on."""
        current = self.transport.learn(answer, sent)
        self.follow(answer.get("continued_by"))
        with self._lock:
            self._learn_pause(answer, sent)
            if not current:
                return False
            if "fast_path_lease" in answer:
                # The answer's own number: another thread may have learnt of a newer act since.
                number = answer.get("act_number")
                act = number if isinstance(number, int) else self.transport.act_number
                self._learn_lease(answer["fast_path_lease"], sent, act)
        return True

    def follow(self, successor: object) -> None:
        """Go on in the chain that the service has opened in place of an abandoned one. It
        belongs to the same run: the service holds it to the same limits."""
        with self._lock:
            if not isinstance(successor, str) or not self.chain or successor == self.id:
                return
            self._earlier.add(str(self.id))
            self.chain = {**self.chain, "id": successor}
            first, self._followed = not self._followed, True
        if first:
            logger.warning(
                "countersign: the chain was sealed as abandoned because nothing was sent for too"
                " long; the run continues in a new chain"
            )

    def _learn_pause(self, answer: dict[str, Any], sent: Moment) -> None:
        """The lock is held. As with the kill switch, what lifts a pause is the answer to a request
        that was sent when the pause was known. Of two that were under way together, the one that
        was sent later may have been decided before the pause."""
        paused = answer.get("auto_paused")
        if paused is None and "status" in answer and "policy_decision" not in answer:
            paused = answer["status"] == "auto_paused"
        if paused is True:
            self._pause(answer.get("pause_reason"))
        elif paused is False and sent.monotonic > self._paused_at:
            self.paused = False
            self.pause_reason = None

    def told_of_pause(self, chain: str, reason: str | None) -> None:
        """An answer that is about an approval says that a chain is paused: perhaps this one."""
        with self._lock:
            if chain == self.id or chain in self._earlier:
                self._pause(reason)

    def _pause(self, reason: str | None) -> None:
        """The lock is held."""
        self.paused = True
        self.pause_reason = reason or self.pause_reason
        self._paused_at = self.transport.clock.monotonic()

    def _learn_lease(self, given: object, sent: Moment, act_number: int) -> None:
        """The lock is held."""
        lease = Lease.read(given, sent, act_number)
        if lease is None:
            self.lease = None
        elif self.lease is None or lease.sent.monotonic >= self.lease.sent.monotonic:
            # The service counted what it knew of; the rest is counted here.
            lease.reserve(self.outbox.waiting)
            self.lease = lease

    def _learn_chain(self, chain: dict[str, Any], sent: Moment) -> None:
        self._bound, self._takes_found = "binding_key" in chain, "act_number" in chain
        self.binding_key = _binding_key(chain.pop("binding_key", None))
        self.chain = chain
        self.learn(chain, sent)
        self._tell_of_looser_limits(chain)

    def _tell_of_looser_limits(self, chain: Mapping[str, Any]) -> None:
        """Logs, once for each limit and client, that the service holds actions to a tighter one."""
        looser = looser_than(chain.get("effective_limits"), self.config.policy_config())
        new = self.transport.first_told(looser)
        if new:
            logger.warning(
                "the organization's limits are tighter than those of this client, and apply: %s",
                "; ".join(looser[name] for name in new),
            )

    def unknown_members(self) -> tuple[str, ...]:
        """Members of an event that a service which does not know them would refuse."""
        if self._bound:
            return ()
        return ("redactions",) if self._takes_found else ("found", "redactions")

    def path(self, rest: str, chain: str | None = None) -> str:
        """The address of something of this chain, or of one that it continues."""
        return f"/v1/chains/{quote(chain or str(self.id), safe='')}{rest}"


_every: weakref.WeakSet[Delivery] = weakref.WeakSet()


def _after_fork() -> None:
    for delivery in tuple(_every):
        delivery._begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _binding_key(given: object) -> bytes | None:
    try:
        key = base64.b64decode(given, validate=True) if isinstance(given, str) else b""
    except ValueError:
        return None
    return key if len(key) == 32 else None


def _refusal(error: APIError) -> APIError:
    """The same error with a message that can be raised by a later call, which it is not about."""
    text = f"an earlier action, decided in this process, was not recorded: {error.message}"
    return APIError(text, error.status, error.code, error.request_id, error.errors)


def _violation(decision: PolicyDecision) -> Exception:
    """What to raise for an action that was decided here without cover: the stop that stood
    against it, else that the policies were violated."""
    stop = denial_of(decision, "an earlier action, decided in this process")
    if is_stop(type(stop)):
        return stop
    stricter = decision.shadow_decision or decision.policy_decision
    text = f"an earlier action, decided in this process, should have been {stricter!r}"
    reason = f": {decision.decision_reason}" if decision.decision_reason else ""
    return PolicyViolationError(text + reason, decision)
