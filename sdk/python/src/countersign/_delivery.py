"""Getting a chain's record to the service: in order, once, and however long it takes."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import Any
from urllib.parse import quote

from countersign import _fastpath
from countersign._action import new_key
from countersign._buffer import Outbox
from countersign._clients import Unreachable
from countersign._config import ChainConfig
from countersign._decision import PolicyDecision
from countersign._steps import Steps, Until
from countersign._transport import transport_of
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
        self.completion: dict[str, Any] | None = None
        """How the chain ended, once it was left."""
        self.receipt: dict[str, Any] | None = None
        self.outbox = Outbox(config.offline_buffer_max_events)
        self.event_ids: dict[str, str] = {}
        """Events decided here, by idempotency key, once the service has recorded them."""
        self._opening = opening
        self._opening_key = new_key()
        self._latched: Exception | None = None
        self._turn: Future[None] | None = None
        self._lock = threading.Lock()

    @property
    def id(self) -> str | None:
        return self.chain.get("id")

    def open_now(self) -> Steps[None]:
        """Open the chain. Repeated under its key, it is opened once."""
        headers = {"idempotency-key": self._opening_key}
        chain = yield from self.transport.call("POST", "/v1/chains", self._opening, headers=headers)
        self._learn_chain(chain)

    def unsettled(self) -> bool:
        """Whether anything must be delivered before the service is asked about more."""
        return not self.chain or len(self.outbox) > 0 or _fastpath.is_stale(self)

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
        while batch := self.outbox.begin():
            delivered, sent = False, True
            try:
                yield from self._send(batch)
                delivered = True
            except Unreachable as fault:
                sent = fault.sent
                raise
            except APIError:
                delivered = True  # refused for good: sending it again would not help
                raise
            finally:
                self.outbox.end(delivered=delivered, sent=sent)
        if self.completion is not None and self.receipt is None:
            yield from self._complete(self.completion)
        elif _fastpath.is_stale(self):
            self._learn_chain((yield from self.transport.call("GET", self.path(""))))

    def _send(self, batch: list[tuple[str, bytes]]) -> Steps[None]:
        body = b'{"events":[' + b",".join(event for _, event in batch) + b"]}"
        try:
            answer = yield from self.transport.call("POST", self.path("/events/batch"), body)
        except APIError as error:
            if error.status not in _ABOUT_CONTENT or error.code == "chain_sealed":
                raise
            if len(batch) > 1:
                # One of them is at fault; that says nothing of the others.
                for one in batch:
                    yield from self._send([one])
            elif error.code != "idempotency_conflict":  # that one was recorded before
                self.fail(error)
            return
        results = answer.get("results")
        self.learn(answer)
        for (key, _), result in zip(
            batch, results if isinstance(results, list) else (), strict=False
        ):
            if isinstance(result, dict):
                self._take(key, result)

    def _take(self, key: str, result: dict[str, Any]) -> None:
        problem = result.get("error") or result.get("problem")
        if isinstance(problem, dict):
            if problem.get("code") != "idempotency_conflict":
                detail = f"an event was refused: {problem.get('detail', '')}"
                self.fail(APIError(detail, problem.get("status", 0), problem.get("code", "")))
            return
        self.learn(result)
        decision = PolicyDecision.from_json(result, idempotency_key=key)
        if decision.event_id and len(self.event_ids) < _MAX_KNOWN_EVENTS:
            self.event_ids[key] = decision.event_id
        if _fastpath.is_violation(result):
            stricter = decision.shadow_decision or decision.policy_decision
            text = f"an action decided in this process should have been {stricter!r}"
            reason = f": {decision.decision_reason}" if decision.decision_reason else ""
            self.fail(PolicyViolationError(text + reason, decision))

    def _complete(self, completion: dict[str, Any]) -> Steps[None]:
        try:
            sealed = yield from self.transport.call("POST", self.path("/complete"), completion)
            self.chain = sealed
            receipt = sealed.get("receipt")
        except APIError as error:
            if error.code != "chain_sealed":
                raise
            logger.warning("the chain had been completed already, with another outcome")
            receipt = yield from self.transport.call("GET", self.path("/receipt"))
        self.receipt = receipt

    def check_latched(self) -> None:
        """Raise what the background has found, once."""
        if self._latched is None:
            return
        with self._lock:
            latched, self._latched = self._latched, None
        if latched is not None:
            raise latched

    def fail(self, error: Exception) -> None:
        """Keep an error for the next call; the first one counts."""
        logger.warning("countersign: %s", error)
        with self._lock:
            self._latched = self._latched or error

    def undelivered(self) -> int:
        return len(self.outbox)

    def learn(self, answer: dict[str, Any]) -> None:
        """Take what any answer says about organization and chain."""
        self.transport.learn(answer)
        if isinstance(answer.get("auto_paused"), bool):
            self.paused = answer["auto_paused"]
        if isinstance(answer.get("fast_path"), bool):
            self.chain["fast_path"] = answer["fast_path"]
            self.chain["policy_version"] = self.transport.policy_version

    def _learn_chain(self, chain: dict[str, Any]) -> None:
        self.chain = chain
        self.paused = chain.get("status") == "auto_paused"
        self.transport.learn(chain)

    def path(self, rest: str) -> str:
        """The address of something of this chain."""
        return f"/v1/chains/{quote(str(self.id), safe='')}{rest}"
