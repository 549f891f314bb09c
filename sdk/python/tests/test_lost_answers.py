"""Actions whose answers were lost: the fail mode decides them, and the record shows what was
carried out, whatever the service had decided."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any, Literal

import httpx
import pytest

import countersign
from conftest import configure
from countersign.testing import FakeService, RecordedCall
from faults import FaultProxy
from server import Server

PAY = ("payer", "tool_call", "pay", {"amount_usd": 9000})


class Lossy:
    """Loses the answers to actions until it is healed."""

    def __init__(self, service: FakeService, **settings: Any) -> None:
        settings = {"fail_mode": "allow", "enable_local_fast_path": False, **settings}
        config = configure(service, **settings)
        assert config.transport is not None
        self._receive = config.transport._handle  # type: ignore[attr-defined]
        config.transport._handle = self.handle  # type: ignore[attr-defined]
        self.healthy = False
        self.to_lose: list[str | None] = []
        """Keys of actions of which one answer more is lost."""

    def handle(self, call: RecordedCall) -> Any:
        answer = self._receive(call)
        if call.path.endswith("/events"):
            key = call.body["idempotency_key"]
            if key in self.to_lose:
                self.to_lose.remove(key)
            elif self.healthy:
                return answer
            raise httpx.ReadError("the answer was lost")
        return answer


def act(chain: countersign.Chain, network: Lossy, sync: bool) -> None:
    """Carry an action out as the fail mode says, and report its outcome."""

    async def main() -> None:
        decision = await chain.record_agent_action(*PAY)
        assert decision.decision_source == "offline_stub"
        network.healthy = True
        assert await chain.record_outcome(decision, "succeeded")

    if not sync:
        asyncio.run(main())
        return
    decision = chain.record_agent_action_sync(*PAY)
    assert decision.decision_source == "offline_stub"
    network.healthy = True
    assert chain.record_outcome_sync(decision, "succeeded")


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_an_action_that_was_allowed_is_recorded_once_with_its_outcome(
    fake: FakeService, sync: bool
) -> None:
    network = Lossy(fake)
    with countersign.Chain("allowed") as chain:
        act(chain, network, sync)
    (event,) = fake.events
    assert (event["decision_source"], event["outcome"]) == ("backend_evaluation", "succeeded")


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("decision", ["deny", "require_approval"])
def test_an_action_that_was_not_allowed_is_a_violation(
    fake: FakeService, decision: str, sync: bool
) -> None:
    """It was refused and carried out all the same. The record shows both, and nobody is asked any
    more about what has happened."""
    network = Lossy(fake)
    for _ in range(2):
        fake.script(decision, decision_reason="over budget", policy_name="budget")
    with pytest.raises(countersign.PolicyViolationError, match=f"should have been '{decision}'"):
        with countersign.Chain("refused") as chain:
            act(chain, network, sync)
    refused, done = fake.events
    assert (refused["policy_decision"], "outcome" in refused) == (decision, False)
    assert (done["decision_source"], done["shadow_decision"]) == ("offline_stub", decision)
    assert (done["payload"], done["outcome"]) == (refused["payload"], "succeeded")
    assert [a["status"] for a in fake.approvals] == ["cancelled"] * (decision != "deny")


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("outcome", ["succeeded", "unknown", None])
def test_a_stop_afterwards_does_not_make_a_violation_of_what_was_allowed(
    fake: FakeService, outcome: Literal["succeeded", "unknown"] | None, sync: bool
) -> None:
    """Asked again, the service says what may happen now. The action was allowed, it happened
    once, and so it is recorded once."""
    network = Lossy(fake)

    async def main() -> None:
        async with countersign.Chain("stopped") as chain:
            decision = await chain.record_agent_action(*PAY)
            fake.activate_kill_switch("fire")
            network.healthy = True
            if outcome is not None:
                assert await chain.record_outcome(decision, outcome)

    if sync:
        with countersign.Chain("stopped") as chain:
            decision = chain.record_agent_action_sync(*PAY)
            fake.activate_kill_switch("fire")
            network.healthy = True
            if outcome is not None:
                assert chain.record_outcome_sync(decision, outcome)
    else:
        asyncio.run(main())
    (event,) = fake.events
    assert (event["policy_decision"], event["outcome"]) == ("allow", outcome or "unknown")
    assert fake.chains[0]["cumulative_metrics"]["financial_exposure_usd"] == 9000


def test_what_was_refused_before_a_stop_is_a_violation(fake: FakeService) -> None:
    network = Lossy(fake)
    fake.script("deny", decision_reason="over budget")
    with pytest.raises(countersign.KillSwitchActiveError):
        with countersign.Chain("stopped") as chain:
            chain.record_agent_action_sync(*PAY)
            fake.activate_kill_switch("fire")
            network.healthy = True
    refused, done = fake.events
    assert (refused["policy_decision"], "outcome" in refused) == ("deny", False)
    assert (done["decision_source"], done["shadow_decision"]) == ("offline_stub", "deny")


def test_nobody_is_asked_after_a_stop_about_what_has_happened(fake: FakeService) -> None:
    """While the kill switch is active, the repeated answer is a denial. Its approval is still open
    and would be asked for once the switch is lifted."""
    network = Lossy(fake)
    fake.script("require_approval")
    with pytest.raises(countersign.KillSwitchActiveError):
        with countersign.Chain("stopped") as chain:
            decision = chain.record_agent_action_sync(*PAY)
            fake.activate_kill_switch("fire")
            network.healthy = True
            assert chain.record_outcome_sync(decision, "succeeded")
            (approval,) = fake.approvals
            assert approval["status"] == "cancelled"
            chain.record_agent_action_sync(*PAY)


def test_a_violation_is_recorded_once_if_its_report_is_interrupted(fake: FakeService) -> None:
    """Of two events the second cannot be settled at first, and both are sent again."""
    network = Lossy(fake)
    for _ in range(4):
        fake.script("deny", decision_reason="over budget")

    async def main() -> None:
        async with countersign.Chain("interrupted") as chain:
            both = (chain.record_agent_action(*PAY) for _ in "ab")
            decisions = await asyncio.gather(*both)
            network.to_lose = [decisions[1].idempotency_key]
            network.healthy = True

    with pytest.raises(countersign.PolicyViolationError):
        asyncio.run(main())
    assert network.to_lose == []
    sources = [e["decision_source"] for e in fake.events]
    assert sources == ["backend_evaluation"] * 2 + ["offline_stub"] * 2


def test_a_key_that_was_used_for_something_else_is_left_alone(fake: FakeService) -> None:
    """The service refuses it, and says no more."""
    network = Lossy(fake)
    network.healthy = True
    with countersign.Chain("reused") as chain:
        chain.record_agent_action_sync("payer", "tool_call", "other", {}, idempotency_key="step")
        fake.go_offline()
        decision = chain.record_agent_action_sync(*PAY, idempotency_key="step")
        fake.come_back()
        assert not chain.record_outcome_sync(decision, "succeeded")
    assert [e["action_name"] for e in fake.events] == ["other"]


@pytest.mark.parametrize("amount", [120, 9000], ids=["allowed", "not allowed"])
def test_the_real_service_learns_what_was_carried_out(
    server: Server, proxy: FaultProxy, amount: int
) -> None:
    countersign.init(
        server.key, backend_url=proxy.url, fail_mode="allow", enable_local_fast_path=False
    )
    chain = countersign.Chain("lost")
    violation = pytest.raises(countersign.PolicyViolationError, match="'require_approval'")
    with nullcontext() if amount == 120 else violation, chain:
        proxy.mode = "lose"
        decision = chain.record_agent_action_sync(*PAY[:3], {"amount_usd": amount})
        assert decision.decision_source == "offline_stub"
        proxy.mode = "pass"
        assert chain.record_outcome_sync(decision, "succeeded")
    told = [
        (e["decision_source"], e["status"], (e.get("outcome") or {}).get("outcome"))
        for e in server.events(chain.id)
    ]
    if amount == 120:
        assert told == [("backend_evaluation", "allowed", "succeeded")]
    else:
        assert told == [
            ("backend_evaluation", "awaiting_approval", None),
            ("offline_stub", "flagged", "succeeded"),
        ]


def test_the_real_service_says_that_it_had_allowed_what_it_would_not_any_more(
    server: Server, proxy: FaultProxy
) -> None:
    """An agent's key is enough."""
    server.config()
    key = server.post("/v1/api-keys", {"name": "lost", "role": "agent"})["key"]
    countersign.init(key, backend_url=proxy.url, fail_mode="allow", enable_local_fast_path=False)
    with countersign.Chain("lost") as chain:
        proxy.mode = "lose"
        decision = chain.record_agent_action_sync(*PAY[:3], {"amount_usd": 120})
        assert decision.decision_source == "offline_stub"
        server.post("/v1/kill-switch/activate", {"reason": "a test"})
        try:
            proxy.mode = "pass"
            assert chain.record_outcome_sync(decision, "succeeded")
        finally:
            server.post("/v1/kill-switch/deactivate")
    (event,) = server.events(chain.id)
    assert (event["status"], event["outcome"]["outcome"]) == ("allowed", "succeeded")
    assert [entry["outcome"] for entry in event["entries"]] == ["unknown", "succeeded"]
