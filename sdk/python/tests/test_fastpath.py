"""Decisions in this process: when they are made, how they travel, what their answers teach."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

import countersign
from clocks import stop_time
from conftest import configure
from countersign._action import now
from countersign.testing import FakeService, RecordedCall
from countersign.testing._wire import Answer
from faults import FaultProxy
from server import Server
from test_decisions import eventually

SAFE = ("clerk", "tool_call", "look", {"n": 1})


@pytest.fixture
def fast() -> Iterator[FakeService]:
    with FakeService(fast_path=True) as service:
        yield service


def nested(depth: int, inmost: Any) -> Any:
    for _ in range(depth):
        inmost = [inmost]
    return inmost


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


@pytest.mark.parametrize("milliseconds", [0, 7, 999, 1000, 1_709_251_199_999, 1_709_251_200_000])
def test_the_time_of_an_event_has_milliseconds(
    milliseconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: milliseconds * 1_000_000 + 999_999)
    assert len(now()) == len("2026-01-01T00:00:00.000Z")
    seconds, rest = divmod(milliseconds, 1000)
    exact = datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=rest * 1000)
    assert now() == exact.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_hundred_safe_actions_wait_for_no_request(
    server: Server, proxy: FaultProxy, sync: bool
) -> None:
    """Counted at the socket: besides the chain's opening there is nothing but batches, which the
    background sends and nobody waits for. Time stands still, or a busy machine would let the
    lease run out."""
    config = server.config(backend_url=proxy.url)
    stop_time(config)

    def act(chain: countersign.Chain) -> None:
        for _ in range(100):
            decision = chain.record_agent_action_sync(*SAFE)
            assert decision.decision_source == "local_fast_path"

    async def act_async(chain: countersign.Chain) -> None:
        for _ in range(100):
            decision = await chain.record_agent_action(*SAFE)
            assert decision.decision_source == "local_fast_path"

    chain = countersign.Chain("hundred", config=config)
    with chain:
        if sync:
            act(chain)
        else:
            asyncio.run(act_async(chain))
    opening, *batches, completion = proxy.paths
    assert opening == "/v1/chains"
    assert set(batches) == {f"/v1/chains/{chain.id}/events/batch"}
    assert completion == f"/v1/chains/{chain.id}/complete"
    assert len(server.events(chain.id)) == 100


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
        ("R\u200boot", "tool_call", "look", {}),
        ("\uff52oot", "tool_call", "look", {}),
        ("a", "tool_call", "execute_shell", {"command": "ls"}),
        ("a", "tool_call", "run_sql", {"statement": "DROP TABLE t"}),
        ("a", "tool_call", "terminate_instances", {}),
        ("a", "tool_call", "place_order", {}),
        ("a", "tool_call", "book_flight", {"cost": 9000}),
        ("a", "tool_call", "find_and_run", {}),
        ("a", "tool_call", "look", {"password": "x"}),
        ("a", "tool_call", "look", {"tokens_purchase": {"amount": 9000}}),
        ("a", "tool_call", "look", {"text": "x" * 2000 + " https://example.com"}),
        ("a", "tool_call", "look", {"text": "x" * 2000}),
        ("a", "tool_call", "look", {"deep": nested(40, {"amount_usd": 9000})}),
        ("a", "tool_call", "look", {"deep": nested(80, 1)}),
        ("a", "tool_call", "look", {"object": object()}),
        ("a", "tool_call", "look", {("amount", "usd"): 9000}),
    ],
    ids=[
        "financial",
        "amount",
        "domain",
        "data",
        "llm",
        "high-risk-agent",
        "invisible-letter",
        "wide-letter",
        "shell",
        "sql",
        "terminate",
        "order",
        "flight",
        "second-verb",
        "redacted",
        "amount-under-a-secret-name",
        "address-behind-the-cut",
        "cut",
        "amount-in-the-depth",
        "too-deep",
        "unreadable",
        "unreadable-key",
    ],
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


def test_under_a_kill_switch_nothing_is_decided_here(fast: FakeService) -> None:
    """The switch was on before the chain was opened."""
    configure(fast)
    fast.activate_kill_switch("fire")
    with countersign.Chain("killed") as chain:
        for action in (SAFE, ("a", "tool_call", "execute_shell", {"command": "rm -rf /"})):
            with pytest.raises(countersign.KillSwitchActiveError, match="fire"):
                chain.record_agent_action_sync(*action)


def test_a_switch_in_mid_chain_raises_its_own_error_first(fast: FakeService) -> None:
    """What was decided under a lease is no violation, and the switch that a batch
    tells of ends the fast path on every chain."""
    config = configure(fast)
    with countersign.Chain("killed") as chain, countersign.Chain("another") as other:
        assert chain.record_agent_action_sync(*SAFE).decision_source == "local_fast_path"
        fast.activate_kill_switch("fire")
        eventually(lambda: config._transports[0].kill_switch_active)
        for one in (chain, other):
            with pytest.raises(countersign.KillSwitchActiveError) as stopped:
                one.record_agent_action_sync(*SAFE)
            assert stopped.value.decision is not None
            assert stopped.value.decision.pause_reason == "fire"
    assert chain.receipt is not None


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ({}, countersign.PolicyViolationError),
        ({"kill_switch_active": True}, countersign.KillSwitchActiveError),
        ({"auto_paused": True}, countersign.ChainAutoPausedError),
        ({"policy_name": "chain_timeout"}, countersign.ChainTimeoutError),
    ],
    ids=["policy", "kill-switch", "pause", "timeout"],
)
@pytest.mark.parametrize("leaving", [True, False], ids=["on-leaving", "at-the-next-call"])
def test_what_was_decided_without_cover_and_should_not_have_been_is_raised(
    fake: FakeService, script: dict[str, Any], error: type[Any], leaving: bool
) -> None:
    configure(fake)
    raised = pytest.raises(error)
    with raised, countersign.Chain("violated") as chain:
        fake.go_offline()
        chain.record_agent_action_sync(*SAFE)
        if script.get("kill_switch_active"):
            fake.activate_kill_switch("fire")
        else:
            fake.script("deny", decision_reason="new rule", **script)
        fake.come_back()
        if not leaving:
            eventually(lambda: chain._session is not None and chain._session._latched)
            chain.record_agent_action_sync(*SAFE)
    assert fake.chains[0]["error"] is None or not leaving


def test_a_violation_is_said_once(fake: FakeService) -> None:
    configure(fake)
    with countersign.Chain("violated") as chain:
        fake.go_offline()
        chain.record_agent_action_sync(*SAFE)
        fake.script("require_approval", decision_reason="new rule")
        fake.come_back()
        with pytest.raises(
            countersign.PolicyViolationError, match=r"an earlier.*new rule"
        ) as raised:
            chain.record_agent_action_sync(*SAFE)
        assert raised.value.decision is not None
        assert raised.value.decision.shadow_decision == "require_approval"
        assert chain.record_agent_action_sync(*SAFE).allowed


def test_a_stop_is_raised_before_a_violation_that_was_found_first(fake: FakeService) -> None:
    configure(fake)
    with countersign.Chain("both") as chain:
        session = chain._session
        assert session is not None
        session.fail(countersign.PolicyViolationError("first"))
        session.fail(countersign.KillSwitchActiveError("second"))
        with pytest.raises(countersign.KillSwitchActiveError):
            chain.record_agent_action_sync(*SAFE)
        with pytest.raises(countersign.PolicyViolationError):
            chain.record_agent_action_sync(*SAFE)


def test_an_error_that_cannot_be_logged_is_raised_all_the_same(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program's own filter of the log may raise. The violation must not be lost with it."""

    def fragile(record: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    configure(fake)
    with countersign.Chain("logged") as chain:
        session = chain._session
        assert session is not None
        monkeypatch.setattr(logging.getLogger("countersign"), "filters", [fragile])
        with pytest.raises(ZeroDivisionError):
            session.fail(countersign.PolicyViolationError("found meanwhile"))
        with pytest.raises(countersign.PolicyViolationError):
            chain.record_agent_action_sync(*SAFE)


def test_a_chain_that_is_too_old_says_so_first(fast: FakeService) -> None:
    config = configure(fast, chain_timeout_seconds=3600)
    clock = stop_time(config)
    with pytest.raises(countersign.ChainTimeoutError), countersign.Chain("old") as chain:
        session = chain._session
        assert session is not None
        session.fail(countersign.PolicyViolationError("found meanwhile"))
        clock.pass_time(3601)
        chain.record_agent_action_sync(*SAFE)


def test_a_violation_does_not_hide_the_callers_error(fake: FakeService) -> None:
    configure(fake)
    with pytest.raises(ZeroDivisionError), countersign.Chain("both") as chain:
        fake.go_offline()
        chain.record_agent_action_sync(*SAFE)
        fake.script("deny")
        fake.come_back()
        raise ZeroDivisionError


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
    with pytest.raises(countersign.APIError, match=r"an earlier action.*: bad event") as refused:
        with countersign.Chain("choosy") as chain:
            for n in range(3):
                chain.record_agent_action_sync("a", "tool_call", "look", {"n": n})
    assert (refused.value.status, refused.value.code) == (422, "invalid_request")
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
