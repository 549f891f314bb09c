"""Decisions in this process: when they are made, how they travel, what their answers teach."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import countersign
from conftest import configure
from countersign.testing import FakeService, RecordedCall
from countersign.testing._wire import Answer
from test_decisions import eventually

SAFE = ("clerk", "tool_call", "look", {"n": 1})


@pytest.fixture
def fast() -> Iterator[FakeService]:
    with FakeService(fast_path=True) as service:
        yield service


def batches(service: FakeService) -> list[list[dict[str, Any]]]:
    return [c.body["events"] for c in tuple(service.calls) if c.path.endswith("/batch")]


def test_a_safe_action_is_decided_here_and_sent_before_leaving(fast: FakeService) -> None:
    configure(fast)
    with countersign.Chain("fast") as chain:
        decision = chain.record_agent_action_sync(*SAFE)
        assert decision.policy_decision == "allow"
        assert decision.decision_source == "local_fast_path"
        assert decision.event_id is None
    (event,) = fast.events
    assert event["decision_source"] == "local_fast_path"
    assert event["executed_at"].endswith("Z")
    assert fast.calls[-1].path.endswith("/complete")
    assert chain.receipt is not None


def test_events_arrive_in_order_in_few_batches(fast: FakeService) -> None:
    configure(fast)

    async def main() -> None:
        async with countersign.Chain("ordered") as chain:
            for n in range(250):
                await chain.record_agent_action("a", "tool_call", "look", {"n": n})

    asyncio.run(main())
    assert [e["payload"]["n"] for e in fast.events] == list(range(250))
    assert len(batches(fast)) < 50


def test_events_are_sent_in_the_background(fast: FakeService) -> None:
    configure(fast)
    with countersign.Chain("background") as chain:
        chain.record_agent_action_sync(*SAFE)
        eventually(lambda: fast.events)


def test_earlier_events_arrive_before_one_that_the_service_decides(fast: FakeService) -> None:
    configure(fast)
    with countersign.Chain("mixed") as chain:
        chain.record_agent_action_sync("a", "tool_call", "look", {"n": 1})
        chain.record_agent_action_sync("a", "tool_call", "pay", {"amount_usd": 2})
        chain.record_agent_action_sync("a", "tool_call", "look", {"n": 3})
    assert [e["action_name"] for e in fast.events] == ["look", "pay", "look"]


@pytest.mark.parametrize(
    "action",
    [
        ("a", "tool_call", "pay", {}),
        ("a", "tool_call", "look", {"amount_usd": 1}),
        ("a", "tool_call", "look", {"url": "https://example.com"}),
        ("a", "tool_call", "delete_rows", {}),
        ("a", "llm_call", "chat", {}),
        ("root", "tool_call", "look", {}),
    ],
    ids=["financial", "amount", "domain", "data", "llm", "high-risk-agent"],
)
def test_an_action_that_may_matter_goes_to_the_service(
    fast: FakeService, action: tuple[Any, ...]
) -> None:
    configure(fast, high_risk_agents=["root"])
    with countersign.Chain("careful") as chain:
        decision = chain.record_agent_action_sync(*action)
    assert decision.decision_source == "backend_evaluation"


def test_a_category_in_the_metadata_counts(fast: FakeService) -> None:
    configure(fast)
    with countersign.Chain("declared") as chain:
        decision = chain.record_agent_action_sync(*SAFE, metadata={"category": "financial"})
    assert decision.decision_source == "backend_evaluation"


def test_switched_off_every_action_goes_to_the_service(fast: FakeService) -> None:
    configure(fast, enable_local_fast_path=False)
    with countersign.Chain("off") as chain:
        assert chain.record_agent_action_sync(*SAFE).decision_source == "backend_evaluation"


def test_the_service_can_forbid_it(fake: FakeService) -> None:
    configure(fake)  # this one answers fast_path: false
    with countersign.Chain("forbidden") as chain:
        assert chain.record_agent_action_sync(*SAFE).decision_source == "backend_evaluation"


def test_the_kill_switch_is_seen_with_the_next_answer(fast: FakeService) -> None:
    config = configure(fast)
    fast.activate_kill_switch("fire")
    with pytest.raises(countersign.PolicyViolationError) as late:
        with countersign.Chain("killed") as chain:
            chain.record_agent_action_sync(*SAFE)
            eventually(lambda: fast.events)
            eventually(lambda: config._transports[0].kill_switch_active)
            # A chain opened meanwhile sees it too, and does not decide by itself.
            with pytest.raises(countersign.KillSwitchActiveError) as stopped:
                with countersign.Chain("another", config=config) as other:
                    other.record_agent_action_sync(*SAFE)
            assert stopped.value.decision is not None
            assert stopped.value.decision.pause_reason == "fire"
    assert late.value.decision is not None
    assert late.value.decision.kill_switch_active


def test_what_the_service_would_have_denied_is_raised_at_the_next_call(fast: FakeService) -> None:
    configure(fast)
    fast.script("require_approval", decision_reason="new rule")
    with countersign.Chain("violated") as chain:
        chain.record_agent_action_sync(*SAFE)
        eventually(lambda: fast.events)
        eventually(lambda: chain._session is not None and chain._session._latched)
        with pytest.raises(countersign.PolicyViolationError, match="new rule") as raised:
            chain.record_agent_action_sync(*SAFE)
        assert raised.value.decision is not None
        assert raised.value.decision.shadow_decision == "require_approval"
        # It is said once.
        assert chain.record_agent_action_sync(*SAFE).allowed


def test_a_chain_that_is_too_old_says_so_before_its_violations(fast: FakeService) -> None:
    configure(fast, chain_timeout_seconds=3600)
    fast.script("deny", policy_name="chain_timeout")
    with pytest.raises(countersign.ChainTimeoutError), countersign.Chain("old") as chain:
        chain.record_agent_action_sync(*SAFE)
        session = chain._session
        assert session is not None
        eventually(lambda: session._latched)
        session._began -= 3601
        chain.record_agent_action_sync(*SAFE)


def test_what_the_service_would_have_denied_is_raised_on_leaving(fast: FakeService) -> None:
    configure(fast)
    fast.script("deny")
    with pytest.raises(countersign.PolicyViolationError), countersign.Chain("late") as chain:
        chain.record_agent_action_sync(*SAFE)
    assert chain.receipt is not None


def test_a_violation_does_not_hide_the_callers_error(fast: FakeService) -> None:
    configure(fast)
    fast.script("deny")
    with pytest.raises(ZeroDivisionError), countersign.Chain("both") as chain:
        chain.record_agent_action_sync(*SAFE)
        raise ZeroDivisionError


def test_a_new_policy_is_asked_about(fast: FakeService) -> None:
    configure(fast)
    fast.script("allow", policy_version="v1+111111111111")
    with countersign.Chain("renewed") as chain:
        chain.record_agent_action_sync("a", "tool_call", "pay", {})
        fast._records.chains[chain.id or ""].update(
            fast_path=False, policy_version="v1+111111111111"
        )
        decision = chain.record_agent_action_sync(*SAFE)
        assert decision.decision_source == "backend_evaluation"
    assert any(c.method == "GET" and c.path.endswith(chain.id or "") for c in fast.calls)


def test_an_outcome_finds_the_event_of_a_local_decision(fast: FakeService) -> None:
    configure(fast)
    with countersign.Chain("outcome") as chain:
        decision = chain.record_agent_action_sync(*SAFE)
        assert chain.record_outcome_sync(decision, "succeeded")
    assert fast.events[0]["outcome"] == "succeeded"


def test_one_bad_event_does_not_take_the_others_with_it(fast: FakeService) -> None:
    config = configure(fast)
    receive = fast._receive

    def choosy(call: RecordedCall) -> Any:
        if call.path.endswith("/batch") and any(
            event["payload"]["n"] == 1 for event in call.body["events"]
        ):
            return Answer(422, {"code": "invalid_request", "detail": "bad event"})
        return receive(call)

    config.transport._handle = choosy  # type: ignore[union-attr]
    with pytest.raises(countersign.APIError, match="bad event"):
        with countersign.Chain("choosy") as chain:
            for n in range(3):
                chain.record_agent_action_sync("a", "tool_call", "look", {"n": n})
    assert [e["payload"]["n"] for e in fast.events] == [0, 2]
    assert chain.receipt is not None


def test_an_event_that_had_arrived_before_is_not_an_error(fast: FakeService) -> None:
    config = configure(fast)
    receive = fast._receive

    def forgetful(call: RecordedCall) -> Any:
        if call.path.endswith("/batch"):
            conflict = {"code": "idempotency_conflict", "status": 409, "detail": "known"}
            if len(call.body["events"]) == 1:
                return Answer(409, conflict)
            return Answer(200, {"results": [{"error": conflict}] * len(call.body["events"])})
        return receive(call)

    config.transport._handle = forgetful  # type: ignore[union-attr]
    for count in (1, 3):
        with countersign.Chain("known") as chain:
            for n in range(count):
                chain.record_agent_action_sync("a", "tool_call", "look", {"n": n})
        assert chain.receipt is not None
