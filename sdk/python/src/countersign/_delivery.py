"""Delivery of a chain's record to the service: in order, exactly once, with retries."""

from __future__ import annotations

import base64
import json
import logging
import math
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any
from urllib.parse import quote

from countersign import _fastpath
from countersign._action import new_key
from countersign._answers import is_retryable
from countersign._buffer import Outbox
from countersign._client import transport_of
from countersign._clients import Unreachable
from countersign._clock import Moment
from countersign._config import ChainConfig
from countersign._decision import PolicyDecision
from countersign._enforce import denial_of, is_stop
from countersign._fastpath import Lease
from countersign._fork import reset_in_child
from countersign._limits import looser_than
from countersign._steps import Steps, Until
from countersign.exceptions import APIError, PolicyViolationError

__all__ = ["Delivery"]

logger = logging.getLogger("countersign")

_MAX_KNOWN_EVENTS = 10_000
_PATIENCE = 2.0  # timeouts of a request for which nothing may be answered to another delivery
_ABOUT_CONTENT = frozenset((400, 409, 413, 422))
_OF_REPORTS = frozenset(("executed_at", "decision_source", "policy_decision", "lease_id"))
"""Members of an event that was decided here, which the service is not asked with."""
_CARRIED_OUT = "the action was carried out while the service could not be reached"


class Delivery:
    """A chain as the service knows it, and the queue of what it does not know yet.

    Safe to use from several threads and event loops; one at a time delivers.
    """

    def __init__(self, config: ChainConfig, opening: dict[str, Any]) -> None:
        self.config = config
        self.transport = transport_of(config)
        self.chain: dict[str, Any] = {}
        """The chain's record, as the service last sent it. Empty until it is opened."""
        self.paused = False
        self.pause_reason: str | None = None
        self.lease: Lease | None = None
        """Permission to decide obviously safe actions locally. Written with the lock held."""
        self.binding_key: bytes | None = None
        """The key of the digests that bind redacted values. None for a chain opened offline."""
        self.completion: dict[str, Any] | None = None
        """How the chain ended; set on leaving."""
        self.receipt: dict[str, Any] | None = None
        self.outbox = Outbox(config.offline_buffer_max_events)
        self.events: dict[str, tuple[str, str]] = {}
        """The latest locally decided events that the service has recorded, by idempotency key: the
        chain's id and the event's id. Only the caller that delivers changes it."""
        self.begun: set[str] = set()
        """The ids of those among them whose outcome was reported as unknown on delivery."""
        self._renamed: dict[str, str] = {}
        """The first idempotency keys of events that were given another one, by that one."""
        self._opening = opening
        self._opening_key = new_key()
        self._bound = False  # whether the service accepts digests of redacted values
        self._takes_found = False  # whether it accepts the facts found in an action
        self._paused_at = -math.inf  # monotonic seconds; when an answer last reported the pause
        self._latched: dict[type[Exception], Exception] = {}
        self._flushing: Future[None] | None = None
        self._answered = 0  # answers to the requests of deliveries; only who delivers changes it
        self._is_parents = False  # whether the process that opened the chain was forked since
        self._logged_abandonment = False
        self._earlier_ids: set[str] = set()  # ids of the chains that this one continues
        # Guards the lease, the pause, the chain's id, the latched errors and _flushing.
        self._lock = threading.Lock()
        reset_in_child(self)
        self.transport.add_chain(self)

    def reset_after_fork(self) -> None:
        """Start with an empty queue: the parent delivers what was decided there, and completes the
        chain."""
        self._is_parents = True
        self._lock = threading.Lock()
        self._flushing = None
        self.lease = None
        self.outbox = Outbox(self.config.offline_buffer_max_events)

    @property
    def name(self) -> str | None:
        """The chain's name."""
        return self._opening.get("name")

    @property
    def id(self) -> str | None:
        return self.chain.get("id")

    def open_now(self) -> Steps[None]:
        """Open the chain. It has one idempotency key, so repeating this opens it once."""
        headers = {"idempotency-key": self._opening_key}
        chain, sent = yield from self._exchange("/v1/chains", self._opening, headers)
        self._learn_chain(chain, sent)

    def _exchange(
        self, path: str, body: Any, headers: dict[str, str] | None = None
    ) -> Steps[tuple[dict[str, Any], Moment]]:
        """Send one request of a delivery, and count its answer, a refusal too."""
        try:
            answer = yield from self.transport.ask("POST", path, body, headers=headers)
        except APIError:
            self._answered += 1
            raise
        self._answered += 1
        return answer

    def has_undelivered(self) -> bool:
        """Whether something must be delivered before the next action can be decided."""
        return not self.chain or len(self.outbox) > 0

    def deliver(self, patience: float | None = None, *, complete: bool = False) -> Steps[None]:
        """Deliver the queue, in order, and then complete the chain if ``complete`` is set. One
        caller at a time does; others wait for it, at most ``patience`` seconds. Then they raise
        ``Unreachable``. Without a ``patience`` they wait for as long as it advances, and no longer:
        who delivers may be a task of an event loop that stands still until they return."""
        limit = _PATIENCE * self.transport.timeout if patience is None else patience
        while True:
            with self._lock:
                if self._flushing is None:
                    self._flushing = Future()
                    break
                theirs, answered = self._flushing, self._answered
            is_done = yield Until(theirs, limit)
            if not is_done and (patience is not None or self._answered == answered):
                raise Unreachable("another delivery is still in progress", sent=False)
        try:
            yield from self._deliver()
            if complete and self.completion is not None and self.receipt is None:
                yield from self._complete(self.completion)
        finally:
            with self._lock:
                ours, self._flushing = self._flushing, None
            ours.set_result(None)

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
                if is_retryable(error):
                    raise
                delivered = True  # do not send the batch again
                raise _refusal(error) from error
            finally:
                self.outbox.end(delivered=delivered, sent=sent)

    def _send(self, batch: list[tuple[str, bytes]]) -> Steps[None]:
        body = b'{"events":[' + b",".join(event for _, event in batch) + b"]}"
        try:
            answer, sent = yield from self._exchange(self.path("/events/batch"), body)
        except APIError as error:
            if error.status not in _ABOUT_CONTENT or error.code == "chain_sealed":
                raise
            if len(batch) > 1:
                # One event is at fault: send each alone, so that the others are recorded.
                for one in batch:
                    yield from self._send([one])
            elif error.code == "idempotency_conflict":
                yield from self._settle_conflict(*batch[0])
            else:
                self.fail(_refusal(error))
            return
        results = answer.get("results")
        self.learn(answer, sent)
        number = answer.get("act_number")
        for one, result in zip(batch, results if isinstance(results, list) else (), strict=False):
            if not isinstance(result, dict):
                continue
            problem = result.get("error") or result.get("problem")
            if not isinstance(problem, dict):
                self._handle_result(one[0], {"act_number": number, **result}, sent)
            elif problem.get("code") == "idempotency_conflict":
                yield from self._settle_conflict(*one)
            else:
                detail, status = problem.get("detail", ""), problem.get("status", 0)
                self.fail(_refusal(APIError(detail, status, problem.get("code", ""))))

    def _handle_result(self, key: str, result: dict[str, Any], sent: Moment) -> None:
        self.learn(result, sent)
        decision = PolicyDecision.from_json(result, idempotency_key=key)
        self._note_event(self._renamed.pop(key, key), decision)
        if _fastpath.is_violation(result):
            self.fail(_violation(decision))

    def _note_event(self, key: str, decision: PolicyDecision) -> None:
        if decision.event_id:
            if len(self.events) >= _MAX_KNOWN_EVENTS:
                # The oldest: an outcome is reported soon after its action, or never.
                _, forgotten = self.events.pop(next(iter(self.events)))
                self.begun.discard(forgotten)
            self.events[key] = (decision.chain_id or str(self.id), decision.event_id)

    def _settle_conflict(self, key: str, encoded: bytes) -> Steps[None]:
        """Handle an event whose key the service knows, but not as decided here: it was asked about
        the action, and its answer was lost. Asked once more, it repeats the decision.

        An action that it had not allowed has been carried out all the same. The record must show
        that too, so the event is sent again under another key.
        """
        event = json.loads(encoded)
        asked = {name: value for name, value in event.items() if name not in _OF_REPORTS}
        try:
            answer, sent = yield from self._exchange(self.path("/events"), asked)
        except APIError as error:
            if is_retryable(error):
                raise
            return  # it was reported before, or the key is another action's
        self.learn(answer, sent)
        decision = PolicyDecision.from_json(answer)
        if decision.allowed or (yield from self._was_allowed(decision)):
            self._note_event(key, decision)
            return
        again = new_key()
        self._renamed[again] = key
        self.outbox.send_again({**event, "idempotency_key": again})
        if decision.approval_id:
            path = f"/v1/approvals/{quote(decision.approval_id, safe='')}/cancel"
            try:
                yield from self._exchange(path, {"comment": _CARRIED_OUT})
            except (APIError, Unreachable):
                pass  # it has ended, or is cancelled with the chain

    def _was_allowed(self, decision: PolicyDecision) -> Steps[bool]:
        """Whether an action was allowed when it was recorded, though the repeated answer does not
        allow it. That says what may happen now: after a kill switch, a pause or under new rules.

        An agent may not read events, but the service takes an outcome only of what was allowed. An
        unknown one is true until the program reports another, which replaces it.
        """
        if decision.policy_decision != "deny" or not decision.event_id:
            return False
        unknown = {"outcome": "unknown", "detail": _CARRIED_OUT}
        path = self.path(f"/events/{quote(decision.event_id, safe='')}/outcome", decision.chain_id)
        try:
            answer, _ = yield from self._exchange(path, unknown)
        except APIError as error:
            if is_retryable(error):
                raise
            return False
        self.follow(answer.get("continued_by"))
        self.begun.add(decision.event_id)
        return True

    def _complete(self, completion: dict[str, Any]) -> Steps[None]:
        try:
            sealed, _ = yield from self._exchange(self.path("/complete"), completion)
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
        """Raise an error that was found in the background, once. Stops come first."""
        if not self._latched:
            return
        with self._lock:
            kinds = sorted(self._latched, key=lambda kind: not is_stop(kind))
            latched = self._latched.pop(kinds[0]) if kinds else None
        if latched is not None:
            raise latched

    def fail(self, error: Exception) -> None:
        """Latch an error for the next call. Only the first of each type is kept."""
        with self._lock:
            self._latched.setdefault(type(error), error)
        logger.warning("countersign: %s", error)  # last: a filter of the program may raise

    def undelivered(self) -> int:
        return len(self.outbox)

    def learn(self, answer: dict[str, Any], sent: Moment) -> bool:
        """Update the state of the organization and the chain from an answer. Returns False if the
        answer is older than what is known: an allow in it must not be used."""
        current = self.transport.learn(answer, sent)
        self.follow(answer.get("continued_by"))
        with self._lock:
            self._learn_pause(answer, sent)
            if not current:
                return False
            if "fast_path_lease" in answer:
                # The answer's own number: another thread may have seen a newer one since.
                number = answer.get("act_number")
                act = number if isinstance(number, int) else self.transport.act_number
                self._learn_lease(answer["fast_path_lease"], sent, act)
        return True

    def follow(self, successor: object) -> None:
        """Continue in the chain that the service opened in place of an abandoned one. The same
        limits apply to it."""
        with self._lock:
            if not isinstance(successor, str) or not self.chain or successor == self.id:
                return
            self._earlier_ids.add(str(self.id))
            self.chain = {**self.chain, "id": successor}
            first, self._logged_abandonment = not self._logged_abandonment, True
        if first:
            logger.warning(
                "countersign: the chain was sealed as abandoned because nothing was sent for too"
                " long; the run continues in a new chain"
            )

    def _learn_pause(self, answer: dict[str, Any], sent: Moment) -> None:
        """Update the pause. The lock is held.

        As with the kill switch, only the answer to a request that was sent after the pause was
        known lifts it. Of two concurrent requests, the later one may have been decided before the
        pause.
        """
        paused = answer.get("auto_paused")
        if paused is None and "status" in answer and "policy_decision" not in answer:
            paused = answer["status"] == "auto_paused"
        if paused is True:
            self._pause(answer.get("pause_reason"))
        elif paused is False and sent.monotonic > self._paused_at:
            self.paused = False
            self.pause_reason = None

    def note_pause(self, chain: str, reason: str | None) -> None:
        """Pause if the chain is this one. Called for answers about approvals."""
        with self._lock:
            if chain == self.id or chain in self._earlier_ids:
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
            # The service could not count the events that are still in the queue.
            lease.reserve(self.outbox.waiting)
            self.lease = lease

    def _learn_chain(self, chain: dict[str, Any], sent: Moment) -> None:
        self._bound, self._takes_found = "binding_key" in chain, "act_number" in chain
        self.binding_key = _binding_key(chain.pop("binding_key", None))
        self.chain = chain
        self.learn(chain, sent)
        self._warn_of_looser_limits(chain)

    def _warn_of_looser_limits(self, chain: Mapping[str, Any]) -> None:
        """Log, once for each limit and client, that the organization's limit is tighter."""
        looser = looser_than(chain.get("effective_limits"), self.config.policy_config())
        new = self.transport.not_yet_reported(looser)
        if new:
            logger.warning(
                "the organization's limits are tighter than those of this client, and apply: %s",
                "; ".join(looser[name] for name in new),
            )

    def unknown_members(self) -> tuple[str, ...]:
        """Return the members of an event that an older service would reject."""
        if self._bound:
            return ()
        return ("redactions",) if self._takes_found else ("found", "redactions")

    def path(self, rest: str, chain: str | None = None) -> str:
        """Return a path under this chain, or under one that it continues."""
        return f"/v1/chains/{quote(chain or str(self.id), safe='')}{rest}"


def _binding_key(given: object) -> bytes | None:
    try:
        key = base64.b64decode(given, validate=True) if isinstance(given, str) else b""
    except ValueError:
        return None
    return key if len(key) == 32 else None


def _refusal(error: APIError) -> APIError:
    """Return the error with a message that fits a later call, which raises it."""
    text = f"an earlier action, decided in this process, was not recorded: {error.message}"
    return APIError(text, error.status, error.code, error.request_id, error.errors)


def _violation(decision: PolicyDecision) -> Exception:
    """Return the error for a locally decided action about which the service is stricter: the stop
    that was in force, otherwise a policy violation."""
    stop = denial_of(decision, "an earlier action, decided in this process")
    if is_stop(type(stop)):
        return stop
    stricter = decision.shadow_decision or decision.policy_decision
    text = f"an earlier action, decided in this process, should have been {stricter!r}"
    reason = f": {decision.decision_reason}" if decision.decision_reason else ""
    return PolicyViolationError(text + reason, decision)
