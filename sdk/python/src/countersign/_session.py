"""The life of a chain: opening, deciding actions, reporting outcomes, completing."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from countersign import _fastpath
from countersign._action import Action
from countersign._answers import is_retryable
from countersign._approvals import (
    MAX_LATE_ANSWERS,
    TOO_LATE,
    ConfirmationBackoff,
    check_release,
    wait_for_decision,
)
from countersign._clients import Unreachable
from countersign._config import ChainConfig
from countersign._decision import DecisionSource, PolicyDecision, allowed_locally
from countersign._delivery import Delivery
from countersign._enforce import denial_of
from countersign._steps import Steps, Until
from countersign._transport import DEFAULT_FAIL_MODES
from countersign._words import fold_name
from countersign.exceptions import (
    APIError,
    BackendUnavailableError,
    ChainTimeoutError,
    PolicyError,
)

__all__ = ["Session"]

logger = logging.getLogger("countersign")

_SAFE = frozenset(("safe",))
_DEFAULT = frozenset(("default",))
_MAX_DEFERRED = 10_000  # outcomes; the oldest are dropped
_MAX_AT_ONCE = 10  # outcomes that the end of a call reports; the background reports the others


class Session(Delivery):
    """One chain, from opening to receipt. Its methods serve sync and async callers."""

    def __init__(self, config: ChainConfig, opening: dict[str, Any]) -> None:
        super().__init__(config, opening)
        self._began = self.transport.clock.monotonic()
        self._warned = False  # whether the log says that the service is unreachable
        self._warned_of_refusal = False  # whether it says that an outcome was refused for now
        self.pending_approvals: dict[str, str] = {}
        """Approval ids by the idempotency keys of the steps that wait for them, or waited until
        they were interrupted."""
        self.released_keys: set[str] = set()
        """Idempotency keys of the steps that a reviewer released while this process waited."""
        self.keys_are_of_content = False
        """Whether the idempotency keys of steps are derived from what the steps are, so that no two
        steps can have the same."""
        self.unreported: dict[int, PolicyDecision] = {}
        """Decisions on governed calls whose outcome was not reported yet, by their ``id()``."""
        self._deferred: deque[tuple[PolicyDecision, str, str | None]] = deque(maxlen=_MAX_DEFERRED)
        self._reports: dict[Future[None], float] = {}
        """The reports that are under way, and the monotonic seconds until which each may be."""
        self.latches: list[Callable[[Exception], object]] = []
        """Called with every error that prevents an action."""

    def reset_after_fork(self) -> None:
        """Leave the calls that are under way, and the chain's end, to the parent."""
        super().reset_after_fork()
        self.completion = None
        self.unreported.clear()
        self._deferred.clear()
        self._reports.clear()

    def latch(self, error: Exception) -> None:
        """Pass an error to the latches."""
        for latch in tuple(self.latches):
            latch(error)

    # -- opening and leaving ---------------------------------------------------------

    def open(self) -> Steps[None]:
        """Open the chain now, or later if the service is unreachable and the fail mode of safe
        actions is allow."""
        try:
            yield from self.open_now()
        except Unreachable as fault:
            if self._fail_mode(_SAFE) == "deny":
                raise self._unavailable("the chain was not opened", fault) from fault
            self._warn("the chain is opened later", fault)
            self.transport.sender.submit(self)

    def leave(self, completion: dict[str, Any] | None) -> Steps[None]:
        """Deliver the queue, complete the chain and keep its receipt. Without a ``completion`` the
        chain stays open, to be continued. A forked child only delivers: its parent still uses the
        chain."""
        consequence = "its events are delivered later"
        if self._is_parents:
            completion = None
        try:
            if completion is not None:
                consequence = "the chain is completed later"
                self.completion = completion
            yield from self.flush()
        except Unreachable as fault:
            self.transport.sender.submit(self)
            if self._fail_mode(_SAFE) == "deny":
                raise self._unavailable(consequence, fault) from fault
            self._warn(consequence, fault)
        except APIError as error:
            if is_retryable(error):
                self.transport.sender.submit(self)
            raise
        except Exception:
            raise
        except BaseException:
            # An interrupt, such as Ctrl-C: nobody calls this again.
            self.transport.sender.submit(self)
            raise

    def flush(self, patience: float | None = None) -> Steps[None]:
        """Deliver the queue, report the outcomes that were deferred, and complete the chain if it
        was left."""
        is_left = self.completion is not None
        while True:
            if is_left:
                self._defer_unfinished()
            if self._deferred:
                yield from self.deliver(patience)
                yield from self._report_deferred(patience)
            # What others report now would be refused once the chain is sealed.
            if not is_left or not (yield from self._await_report(patience)):
                break
        yield from self.deliver(patience, complete=is_left)

    def _await_report(self, patience: float | None) -> Steps[bool]:
        """Wait for a report that is under way. Returns False if there is none. One that takes too
        long is not waited for: its event loop was stopped, or is blocked by this thread."""
        now = self.transport.clock.monotonic()
        left = {theirs: end - now for theirs, end in tuple(self._reports.items()) if end > now}
        if not left:
            return False
        theirs, seconds = left.popitem()
        is_done = yield Until(theirs, seconds if patience is None else min(seconds, patience))
        if not is_done and patience is not None:
            raise Unreachable("another report is still in progress", sent=False)
        return True

    def undelivered(self) -> int:
        return super().undelivered() + len(self._deferred)

    # -- actions ---------------------------------------------------------------------

    def decide_locally(self, action: Action) -> PolicyDecision | None:
        """Decide an obviously safe action in this process if a lease covers it; None otherwise."""
        lease = _fastpath.lease_for(self, action)
        if lease is None:
            return None
        self.check()
        if not lease.take(self.transport.clock.now()):
            return None
        return self._record_locally(action, "local_fast_path", "obviously safe", lease.id)

    def record(self, action: Action) -> Steps[PolicyDecision]:
        """Let the service decide, and wait for a reviewer if it requires approval."""
        self.check()
        try:
            if self.has_undelivered():
                yield from self.deliver()
                self.check()
            return (yield from self._ask(action))
        except Unreachable as fault:
            return self._decide_offline(action, fault)
        except APIError as error:
            if error.code == "kill_switch_active":
                self.transport.learn({"kill_switch_active": True}, self.transport.clock.now())
                raise self._stopped(str(action), str(error)) from error
            raise

    def _ask(self, action: Action) -> Steps[PolicyDecision]:
        """Ask until an allow arrives in time. Requests repeat the idempotency key, so the service
        records the action once and answers with the current decision."""
        unknown = self.unknown_members()
        whole = action.as_sent(self.binding_key)
        body = {k: v for k, v in whole.items() if k not in unknown} if unknown else whole
        key = body["idempotency_key"]
        try:
            decision, in_time = yield from self._ask_until_fresh(body, str(action), None)
        except APIError as error:
            if error.code != "idempotency_conflict" or not self.keys_are_of_content:
                raise
            # The step was reported as carried out, without having been asked about. The service
            # does not answer with that: the step is decided anew.
            body = {**body, "idempotency_key": _key_to_ask_with(key)}
            decision, in_time = yield from self._ask_until_fresh(body, str(action), None)
        if decision.policy_decision != "require_approval":
            if not in_time:
                raise Unreachable(TOO_LATE)
            return decision
        assert decision.approval_id is not None
        self.pending_approvals[key] = decision.approval_id
        try:
            approved = yield from wait_for_decision(
                self.transport,
                decision.approval_id,
                self.config,
                decision,
                str(action),
                self.name,
            )
        except PolicyError:
            self.pending_approvals.pop(key, None)
            raise
        self.pending_approvals.pop(key, None)
        self.released_keys.add(key)
        backoff = ConfirmationBackoff(self.transport, self.config)
        while True:
            reason = TOO_LATE
            try:
                _, in_time = yield from self._ask_until_fresh(body, str(action), decision)
                if in_time:
                    return approved
            except Unreachable as fault:
                reason = str(fault)
            yield from backoff.pause(reason)

    def _ask_until_fresh(
        self, body: dict[str, Any], action: str, asked: PolicyDecision | None
    ) -> Steps[tuple[PolicyDecision, bool]]:
        """Ask until an allow arrives in time, at most three times. Returns the decision and whether
        it is fresh. A denial is raised.

        ``asked`` is the decision that required approval, once a reviewer has approved. Without it,
        a decision that requires approval is returned.
        """
        for attempt in range(MAX_LATE_ANSWERS):
            asking = self.transport.ask("POST", self.path("/events"), body)
            if attempt or asked:
                asking = self.transport.retry_slots.run(asking)
            answer, sent = yield from asking
            current = self.learn(answer, sent)
            decision = PolicyDecision.from_json(answer, idempotency_key=body["idempotency_key"])
            if decision.policy_decision == "require_approval" and decision.approval_id:
                if asked is None:
                    return decision, False
                # The service repeated the recorded decision: read the approval itself.
                decision, sent, current = yield from self.transport.retry_slots.run(
                    check_release(self.transport, decision.approval_id, decision)
                )
            if not decision.allowed:
                raise (yield from self._denial(decision, action))
            if current and self.transport.is_fresh(sent):
                return decision, True
        return decision, False

    def _denial(self, decision: PolicyDecision, action: str) -> Steps[Exception]:
        """Return the error for a denial. If an approval ended before its first answer arrived, only
        the approval says how it ended."""
        denial = denial_of(decision, action)
        if decision.decision_source == "human_approval" and decision.approval_id:
            try:
                yield from self.transport.retry_slots.run(
                    check_release(self.transport, decision.approval_id, decision)
                )
            except PolicyError as error:
                return error
            except (Unreachable, APIError):
                pass  # it is denied, and must not be decided offline
        return denial

    def report(self, decision: PolicyDecision, outcome: str, detail: str | None) -> Steps[bool]:
        """Report the outcome of an action. Returns whether the service recorded it."""
        try:
            if decision.event_id is None:
                yield from self.deliver()
            return (yield from self._send_outcome(decision, outcome, detail))
        except Unreachable:
            return False
        except APIError as error:
            if not is_retryable(error):
                raise
            return False

    def _send_outcome(
        self,
        decision: PolicyDecision,
        outcome: str,
        detail: str | None,
    ) -> Steps[bool]:
        """Report the outcome of an action whose event was delivered. Returns False if it can never
        be recorded, because the service does not know the action or has sealed its chain."""
        body = {"outcome": outcome}
        if detail is not None:
            body["detail"] = self.config._sanitizer.prose(str(detail))[:2000]
        if decision.event_id:
            chain, event_id = decision.chain_id, decision.event_id
        elif known := self.events.get(decision.idempotency_key or ""):
            chain, event_id = known
        else:
            return False
        if outcome == "unknown" and event_id in self.begun:
            return True  # the record says so already, and takes no second unknown outcome
        path = self.path(f"/events/{quote(event_id, safe='')}/outcome", chain)
        try:
            answer = yield from self.transport.call("POST", path, body)
        except APIError as error:
            if error.code != "chain_sealed":
                raise
            logger.warning("countersign: an outcome came after the chain was sealed")
            return False
        self.follow(answer.get("continued_by"))
        return True

    def defer_report(self, decision: PolicyDecision, outcome: str, detail: str | None) -> None:
        """Have the outcome of a governed call reported with the next one, or at the chain's end.
        Takes no lock, and so may be called wherever the garbage collector runs."""
        if self.unreported.pop(id(decision), None) is not None:
            self._deferred.append((decision, outcome, detail))

    def end_call(self, decision: PolicyDecision, outcome: str, detail: str | None) -> Steps[None]:
        """Report the outcome of a governed call, and those that were deferred. Never raises, unless
        it is interrupted. What could not be reported is reported later. A call that was reported
        already, or is one of the parent of a forked child, is left as it is."""
        with self._reporting():  # the chain must not end between the two steps
            if self.unreported.pop(id(decision), None) is not None:
                self._deferred.appendleft((decision, outcome, detail))  # first: its caller waits
        yield from self.report_deferred()

    def report_deferred(self) -> Steps[None]:
        """Report the outcomes that were deferred, now or in the background. Never raises, unless it
        is interrupted."""
        try:
            for _ in range(_MAX_AT_ONCE):
                if not self._deferred:
                    return
                yield from self._report_next()
        except Unreachable as fault:
            self._warn("outcomes are reported later", fault)
        except APIError as fault:
            if not self._warned_of_refusal:
                self._warned_of_refusal = True
                logger.warning("countersign: outcomes are reported later: %s", fault)
        if self._deferred:
            self.transport.sender.submit(self)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Hold off the chain's end for the length of the block."""
        ours: Future[None] = Future()
        try:
            # A report may have to deliver its action first.
            self._reports[ours] = self.transport.clock.monotonic() + 2 * self.transport.timeout
            yield
        finally:
            self._reports.pop(ours, None)
            ours.set_result(None)

    def _report_deferred(self, patience: float | None = None) -> Steps[None]:
        """Report the outcomes that were deferred, until an error that may pass is raised."""
        while self._deferred:
            yield from self._report_next(patience)

    def _report_next(self, patience: float | None = None) -> Steps[None]:
        """Report the next outcome that was deferred, if there is one."""
        with self._reporting():
            try:
                deferred = self._deferred.popleft()
            except IndexError:
                return
            try:
                if (yield from self._deliver_event(deferred[0], patience)):
                    yield from self._send_outcome(*deferred)
            except Exception as fault:
                if isinstance(fault, Unreachable) or (
                    isinstance(fault, APIError) and is_retryable(fault)
                ):
                    self._deferred.appendleft(deferred)
                    raise
                text = "countersign: the outcome of an action was not recorded: %s"
                logger.warning(text, fault)
            except BaseException:
                self._deferred.appendleft(deferred)
                raise

    def _deliver_event(
        self, decision: PolicyDecision, patience: float | None = None
    ) -> Steps[bool]:
        """Deliver the event of an action that was decided here. Returns False if the service has
        refused what was in the queue: nobody waits for that, and the next call raises it."""
        if decision.event_id is None:
            try:
                yield from self.deliver(patience)
            except APIError as error:
                if is_retryable(error):
                    raise
                self.fail(error)
                return False
        return True

    def _defer_unfinished(self) -> None:
        """Defer the reports of the calls that the chain's end overtakes, such as a generator that
        somebody still reads. Their outcome would be refused once the chain is sealed."""
        for decision in tuple(self.unreported.values()):
            self.defer_report(decision, "unknown", "the run ended before it did")

    def check(self) -> None:
        """Raise if the chain ran too long, or an error was latched since the last call."""
        limit = self.config.chain_timeout_seconds
        if limit is not None and self.transport.clock.monotonic() - self._began > limit:
            raise ChainTimeoutError(f"the chain has run for longer than {limit:g} seconds")
        self.check_latched()

    # -- offline ---------------------------------------------------------------------

    def _decide_offline(self, action: Action, fault: Unreachable) -> PolicyDecision:
        absent = f"the service is unreachable ({fault})"
        if self.transport.kill_switch_active or self.paused:
            raise self._stopped(str(action), absent) from fault
        safe = action.safe and not self._is_of_high_risk_agent(action)
        if self._fail_mode(_SAFE if safe else action.categories or _DEFAULT) == "deny":
            raise self._unavailable(f"{action} was not recorded", fault) from fault
        self._warn("the fail modes decide", fault)
        return self._record_locally(action, "offline_stub", absent)

    def _is_of_high_risk_agent(self, action: Action) -> bool:
        """Whether every action of the agent needs approval, by the limits of this client or those
        that the service reported when the chain was opened."""
        limits = self.chain.get("effective_limits")
        named = limits.get("high_risk_agents") if isinstance(limits, Mapping) else None
        agent = fold_name(action.wire["agent_name"])
        return agent in self.config._high_risk or (
            isinstance(named, list) and any(fold_name(str(name)) == agent for name in named)
        )

    def _stopped(self, action: str, circumstance: str) -> Exception:
        """Return the error for a stop. A known stop stays in force while offline."""
        switch = self.transport.kill_switch_active
        reason = self.transport.kill_switch_reason if switch else self.pause_reason
        decision = PolicyDecision(
            "deny",
            decision_reason=reason or circumstance,
            decision_source="offline_stub",
            kill_switch_active=switch,
            auto_paused=not switch,
            pause_reason=reason,
            chain_id=self.id,
            status="denied",
        )
        return denial_of(decision, action)

    def _fail_mode(self, categories: frozenset[str]) -> str:
        """Return the strictest fail mode of the categories."""
        given = self.config.fail_modes or self.transport.fail_modes
        default = given.get("default")
        modes = [
            given.get(name) or default or DEFAULT_FAIL_MODES.get(name, "deny")
            for name in categories
        ]
        return "allow" if all(mode == "allow" for mode in modes) else "deny"

    def _unavailable(self, consequence: str, fault: Unreachable) -> BackendUnavailableError:
        return BackendUnavailableError(
            f"the service is unreachable ({fault}) and the fail mode is deny: {consequence}"
        )

    def _warn(self, consequence: str, fault: Unreachable) -> None:
        """Log an outage, once for each chain."""
        if not self._warned:
            self._warned = True
            logger.warning("the service is unreachable (%s): %s", fault, consequence)

    def _record_locally(
        self, action: Action, source: DecisionSource, reason: str, lease_id: str | None = None
    ) -> PolicyDecision:
        self.outbox.put(action.as_local_event(source, self.binding_key, lease_id))
        self.transport.sender.submit(self)
        return allowed_locally(
            reason,
            source,
            self.id,
            self.transport.policy_version,
            action.wire["idempotency_key"],
        )


def _key_to_ask_with(key: str) -> str:
    """Return the second key of a step, the same in every replay."""
    return "asked-" + hashlib.sha256(key.encode()).hexdigest()
