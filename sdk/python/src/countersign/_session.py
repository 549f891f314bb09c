"""What a chain decides, written once for sync and async callers."""

from __future__ import annotations

import logging
import time
from typing import Any
from urllib.parse import quote

from countersign import _fastpath
from countersign._action import Action
from countersign._approvals import await_decision
from countersign._clients import Unreachable
from countersign._config import ChainConfig
from countersign._decision import PolicyDecision
from countersign._delivery import Delivery
from countersign._enforce import denial_of
from countersign._steps import Steps
from countersign._transport import DEFAULT_FAIL_MODES
from countersign.exceptions import BackendUnavailableError, ChainTimeoutError

__all__ = ["Session"]

logger = logging.getLogger("countersign")


class Session(Delivery):
    """One chain, from opening to receipt."""

    def __init__(self, config: ChainConfig, opening: dict[str, Any]) -> None:
        super().__init__(config, opening)
        self._began = time.monotonic()

    # -- opening and leaving ---------------------------------------------------------

    def open(self) -> Steps[None]:
        """Open the chain, or decide to open it later."""
        try:
            yield from self.open_now()
        except Unreachable as fault:
            if self._fail_mode(frozenset()) == "deny":
                raise self._unavailable("the chain was not opened", fault) from fault
            logger.warning("countersign is unreachable (%s): the chain is opened later", fault)
            self.transport.sender.submit(self)

    def leave(self, completion: dict[str, Any]) -> Steps[None]:
        """Deliver what is left, complete the chain and take its receipt."""
        self.completion = completion
        try:
            yield from self.settle()
        except Unreachable as fault:
            self.transport.sender.submit(self)
            if self._fail_mode(frozenset()) == "deny":
                raise self._unavailable("the chain is completed later", fault) from fault
            logger.warning("countersign is unreachable (%s): the chain is completed later", fault)

    # -- actions ---------------------------------------------------------------------

    def decide_locally(self, action: Action) -> PolicyDecision | None:
        """Decide an obviously safe action here, if that is allowed just now."""
        if not _fastpath.permits(self, action):
            return None
        self.check()
        return self._decided_here(action, "local_fast_path", "no category applies")

    def record(self, action: Action) -> Steps[PolicyDecision]:
        """Have the service decide, and wait for a person where it says so."""
        self.check()
        try:
            if self.unsettled():
                yield from self.settle()
                self.check()
            path = self.path("/events")
            answer = yield from self.transport.call("POST", path, action.wire)
        except Unreachable as fault:
            return self._decide_offline(action, fault)
        self.learn(answer)
        key = action.wire["idempotency_key"]
        decision = PolicyDecision.from_json(answer, idempotency_key=key)
        if decision.policy_decision == "require_approval" and decision.approval_id:
            return (
                yield from await_decision(
                    self.transport, decision.approval_id, self.config, decision
                )
            )
        if not decision.allowed:
            raise denial_of(decision, str(action))
        return decision

    def report(self, decision: PolicyDecision, outcome: str, detail: str | None) -> Steps[bool]:
        """Report what became of an action; whether the service knows it now."""
        body = {"outcome": outcome}
        if detail is not None:
            body["detail"] = self.config._sanitizer.prose(str(detail))[:2000]
        try:
            if decision.event_id is None:
                yield from self.settle()
            event_id = decision.event_id or self.event_ids.get(decision.idempotency_key or "")
            if event_id is None:
                return False
            path = self.path(f"/events/{quote(event_id, safe='')}/outcome")
            yield from self.transport.call("POST", path, body)
        except Unreachable:
            return False
        return True

    def check(self) -> None:
        """Raise what was found since the last call. The chain's age comes first: the service
        finds the same a moment later, and calls it a violation."""
        limit = self.config.chain_timeout_seconds
        if limit is not None and time.monotonic() - self._began > limit:
            raise ChainTimeoutError(f"the chain has run for longer than {limit:g} seconds")
        self.check_latched()

    # -- offline ---------------------------------------------------------------------

    def _decide_offline(self, action: Action, fault: Unreachable) -> PolicyDecision:
        if self._fail_mode(action.categories) == "deny":
            raise self._unavailable(f"{action} was not recorded", fault) from fault
        return self._decided_here(action, "offline_stub", f"the service is unreachable ({fault})")

    def _fail_mode(self, categories: frozenset[str]) -> str:
        """The strictest of the categories' modes."""
        given = self.config.fail_modes or self.transport.fail_modes
        default = given.get("default")
        modes = [
            given.get(name) or default or DEFAULT_FAIL_MODES.get(name, "allow")
            for name in categories or ("default",)
        ]
        return "deny" if "deny" in modes else "allow"

    def _unavailable(self, consequence: str, fault: Unreachable) -> BackendUnavailableError:
        return BackendUnavailableError(
            f"the service is unreachable ({fault}) and the fail mode is deny: {consequence}"
        )

    def _decided_here(self, action: Action, source: Any, reason: str) -> PolicyDecision:
        self.outbox.put(action.decided_here(source))
        self.transport.sender.submit(self)
        return PolicyDecision(
            "allow",
            decision_reason=reason,
            decision_source=source,
            chain_id=self.id,
            policy_version=self.transport.policy_version,
            status="allowed",
            idempotency_key=action.wire["idempotency_key"],
        )
