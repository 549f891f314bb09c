"""Against a real service that decides by policy."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import countersign
from server import Server
from test_decisions import eventually

PAY = ("payer", "tool_call", "pay_invoice")


def undecided(server: Server, chain_id: str | None) -> list[dict[str, Any]]:
    found = server.get(f"/v1/approvals?chain_id={chain_id}")["data"]
    return [a for a in found if a["status"] in ("pending", "escalated")]


def agent_config(server: Server, **settings: Any) -> countersign.ChainConfig:
    """A configuration with a key of role agent: reviewers must not be who recorded."""
    key = server.post("/v1/api-keys", {"name": "agent", "role": "agent"})["key"]
    return server.config(api_key=key, **settings)


def test_the_thresholds_of_the_defaults(server: Server) -> None:
    agent_config(server)
    with countersign.Chain("small") as chain:
        decision = chain.record_agent_action_sync(*PAY, {"amount_usd": 120})
    assert decision.policy_decision == "allow"
    assert decision.cumulative_metrics is not None
    assert decision.cumulative_metrics["financial_exposure_usd"] == 120


def pay(chain: countersign.Chain, sync: bool = True) -> countersign.PolicyDecision:
    """Make a payment that a person must approve, alone in a chain."""

    async def main() -> countersign.PolicyDecision:
        async with chain:
            return await chain.record_agent_action(*PAY, {"amount_usd": 9000})

    if not sync:
        return asyncio.run(main())
    with chain:
        return chain.record_agent_action_sync(*PAY, {"amount_usd": 9000})


def asked(
    server: Server,
    chain: countersign.Chain,
    decide: Callable[[str], Any],
    sync: bool = True,
) -> Any:
    """What a client is told, or raised, that waits for a person. The person is given the address
    of the approval."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(pay(chain, sync))
        except Exception as error:
            found.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    eventually(lambda: chain.id and undecided(server, chain.id))
    (approval,) = undecided(server, chain.id)
    decide(f"/v1/approvals/{approval['id']}")
    worker.join(60)
    (result,) = found
    return result


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("resolution", ["approve", "deny"])
def test_an_approval_is_waited_for(server: Server, sync: bool, resolution: str) -> None:
    agent_config(server)
    result = asked(
        server,
        countersign.Chain("asks"),
        lambda approval: server.post(f"{approval}/{resolution}", {"comment": "seen"}),
        sync,
    )
    if resolution == "approve":
        assert result.policy_decision == "allow"
        assert result.decision_source == "human_approval"
        assert result.decision_reason == "a reviewer approved the action: seen"
    else:
        assert type(result) is countersign.ActionDeniedError
        assert result.decision is not None
        # What the person decided, and no advice of the rule that asked for it.
        assert str(result).endswith("was denied: a reviewer denied the action: seen")


def overruled(server: Server, chain: countersign.Chain, meanwhile: Callable[[], Any]) -> Any:
    """What a client is told that waits for a person, who approves too late."""

    def decide(approval: str) -> None:
        meanwhile()
        with pytest.raises(httpx.HTTPStatusError, match="409"):
            server.post(f"{approval}/approve", {})

    return asked(server, chain, decide)


def test_a_rule_that_ends_a_wait_is_named(own_server: Server) -> None:
    """The denial is the new rule's: neither the reviewer's nor that of the rule that asked."""
    server = own_server
    agent_config(server)
    closed = {"name": "closed", "when": "true", "decision": "deny", "reason": "no more"}
    error = overruled(
        server,
        countersign.Chain("asks"),
        lambda: server.call("PUT", "/v1/policies", {"rules": [closed]}),
    )
    assert type(error) is countersign.ActionDeniedError
    assert error.decision is not None
    assert error.decision.policy_name == "closed"
    assert error.decision.decision_source == "backend_evaluation"
    assert "was denied by policy 'closed'" in str(error)


def test_a_chain_that_runs_out_of_time_while_it_waits(server: Server) -> None:
    """What was approved too late raises what a new action in such a chain does."""
    agent_config(server, chain_timeout_seconds=0.5)
    error = overruled(server, countersign.Chain("asks"), lambda: time.sleep(0.6))
    assert type(error) is countersign.ChainTimeoutError


def test_a_wait_is_resumed_under_the_same_step_key(server: Server) -> None:
    config = agent_config(server)

    async def main() -> None:
        async with countersign.Chain("interrupted", config=config) as chain:
            step = {"amount_usd": 9000}
            first = asyncio.create_task(
                chain.record_agent_action(*PAY, step, idempotency_key="step-1")
            )
            while not await asyncio.to_thread(undecided, server, chain.id):
                pass
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            again = asyncio.create_task(
                chain.record_agent_action(*PAY, step, idempotency_key="step-1")
            )
            (approval,) = await asyncio.to_thread(undecided, server, chain.id)
            path = f"/v1/approvals/{approval['id']}/approve"
            await asyncio.to_thread(server.post, path, {})
            assert (await again).decision_source == "human_approval"
            by_id = await chain.wait_for_approval(approval["id"])
            assert by_id.allowed
            assert by_id.chain_id == chain.id

    asyncio.run(main())


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_giving_up_ends_the_wait_and_the_question(server: Server, sync: bool) -> None:
    config = agent_config(server)
    found: list[Any] = []

    def wait(chain: countersign.Chain) -> None:
        try:
            step = {"amount_usd": 9000}
            found.append(chain.record_agent_action_sync(*PAY, step, idempotency_key="step-1"))
        except Exception as error:
            found.append(error)

    with countersign.Chain("given-up", config=config) as chain:
        worker = threading.Thread(target=wait, args=(chain,))
        worker.start()
        eventually(lambda: undecided(server, chain.id))
        (approval,) = undecided(server, chain.id)
        reason = "the order was withdrawn, api_key=abcdefgh12345678"
        if sync:
            assert chain.cancel_approval_sync(idempotency_key="step-1", comment=reason)
        else:
            assert asyncio.run(countersign.cancel_approval(approval["id"], reason, config=config))
        worker.join(60)
        # Once more it changes nothing.
        assert chain.cancel_approval_sync(approval["id"])
        assert undecided(server, chain.id) == []
    (denied,) = found
    assert type(denied) is countersign.ActionDeniedError
    ended = server.get(f"/v1/approvals/{approval['id']}")
    assert ended["status"] == "cancelled"
    assert ended["comment"].startswith("the order was withdrawn")
    assert "abcdefgh12345678" not in ended["comment"]
    assert ended["waiting"] is False
    assert ended["last_polled_at"] is not None


def test_a_wait_that_is_broken_off_cancels_nothing(server: Server) -> None:
    config = agent_config(server)

    async def main() -> None:
        async with countersign.Chain("broken-off", config=config) as chain:
            asking = asyncio.create_task(
                chain.record_agent_action(*PAY, {"amount_usd": 9000}, idempotency_key="step-1")
            )
            for _ in range(1200):  # for a minute at most
                found = await asyncio.to_thread(undecided, server, chain.id)
                if any(approval["waiting"] for approval in found):
                    break
                await asyncio.sleep(0.05)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            (approval,) = await asyncio.to_thread(undecided, server, chain.id)
            assert approval["waiting"] is True  # it asked within the last minute
            assert await chain.cancel_approval(idempotency_key="step-1")
            assert await asyncio.to_thread(undecided, server, chain.id) == []
            with pytest.raises(countersign.ActionDeniedError):
                await chain.record_agent_action(
                    *PAY, {"amount_usd": 9000}, idempotency_key="step-1"
                )

    asyncio.run(main())


def test_giving_up_comes_too_late(server: Server) -> None:
    config = agent_config(server)

    async def main() -> None:
        async with countersign.Chain("too-late", config=config) as chain:
            step = asyncio.create_task(chain.record_agent_action(*PAY, {"amount_usd": 9000}))
            while not (asked := await asyncio.to_thread(undecided, server, chain.id)):
                pass
            path = f"/v1/approvals/{asked[0]['id']}"
            await asyncio.to_thread(server.post, f"{path}/approve", {})
            assert not await chain.cancel_approval(asked[0]["id"])
            assert (await step).allowed

    asyncio.run(main())


def test_an_approval_times_out(server: Server) -> None:
    agent_config(server, default_approval_timeout_hours=1 / 3600)
    with pytest.raises(countersign.ApprovalTimedOutError), countersign.Chain("slow") as chain:
        chain.record_agent_action_sync(*PAY, {"amount_usd": 9000})


def test_high_risk_agents_are_not_decided_locally(server: Server) -> None:
    agent_config(server, high_risk_agents=["root"], default_approval_timeout_hours=1 / 3600)
    with pytest.raises(countersign.ApprovalTimedOutError), countersign.Chain("risky") as chain:
        chain.record_agent_action_sync("root", "tool_call", "look", {})


def grants_leases(server: Server) -> bool:
    """Whether the service lets clients decide for a moment: one of before leases does not."""
    return bool(server.post("/v1/chains", {"name": "probe"}).get("fast_path_lease"))


def test_the_fast_path_records_in_order(server: Server) -> None:
    agent_config(server)
    with countersign.Chain("fast") as chain:
        sources = [
            chain.record_agent_action_sync("a", "tool_call", "look", {"n": n}).decision_source
            for n in range(50)
        ]
        chain.record_agent_action_sync(*PAY, {"amount_usd": 1})
    assert ("local_fast_path" in sources) == grants_leases(server)
    events = server.events(chain.id)
    assert [e["payload"].get("n") for e in events] == [*range(50), None]
    assert [e["decision_source"] for e in events[:50]] == sources
    assert chain.receipt is not None
    assert chain.receipt["total_actions"] == 51


def test_the_kill_switch_stops_everything(own_server: Server) -> None:
    server = own_server
    config = agent_config(server)
    with countersign.Chain("warm", config=config) as chain:
        chain.record_agent_action_sync("a", "tool_call", "look", {})
    server.post("/v1/kill-switch/activate", {"reason": "fire"})
    with pytest.raises(countersign.KillSwitchActiveError) as stopped:
        with countersign.Chain("stopped", config=config) as chain:
            chain.record_agent_action_sync(*PAY, {"amount_usd": 1})
    assert stopped.value.decision is not None
    assert stopped.value.decision.kill_switch_active
    assert stopped.value.decision.pause_reason == "fire"
    # What is known now keeps the next action from being decided locally.
    with pytest.raises(countersign.KillSwitchActiveError):
        with countersign.Chain("still", config=config) as chain:
            chain.record_agent_action_sync("a", "tool_call", "look", {})
    server.post("/v1/kill-switch/deactivate", {})
    with countersign.Chain("again", config=config) as chain:
        assert chain.record_agent_action_sync(*PAY, {"amount_usd": 1}).allowed


def test_once_the_kill_switch_is_answered_nothing_more_begins(own_server: Server) -> None:
    agent_config(own_server)
    with countersign.Chain("stopped") as chain:
        chain.record_agent_action_sync("a", "tool_call", "look", {})
        own_server.post("/v1/kill-switch/activate", {"reason": "fire"})
        for action in ("look", "execute_shell"):
            with pytest.raises(countersign.KillSwitchActiveError, match="fire"):
                chain.record_agent_action_sync("a", "tool_call", action, {})
    assert chain.receipt is not None


def test_too_many_events_pause_the_chain(own_server: Server) -> None:
    own_server.call("PATCH", "/v1/organization", {"auto_pause": {"max_events": 2}})
    agent_config(own_server, enable_local_fast_path=False)
    with pytest.raises(countersign.ChainAutoPausedError), countersign.Chain("busy") as chain:
        for n in range(5):
            chain.record_agent_action_sync("a", "tool_call", "look", {"n": n})


def test_a_chain_that_ran_too_long(server: Server) -> None:
    agent_config(server, chain_timeout_seconds=0.01)
    with pytest.raises(countersign.ChainTimeoutError), countersign.Chain("old") as chain:
        while True:
            chain.record_agent_action_sync("a", "tool_call", "look", {})


def test_a_killed_server_loses_and_doubles_nothing(own_server: Server) -> None:
    """Killed in the middle of a run and started again: every event is there once, in order."""
    server = own_server
    agent_config(server, fail_mode="allow", offline_buffer_max_events=1000)
    with countersign.Chain("killed") as chain:
        for n in range(60):
            if n == 20:
                server.kill()
            if n == 40:
                server.start()
            chain.record_agent_action_sync("a", "tool_call", "look", {"n": n})
            if n % 10 == 5:
                chain.record_agent_action_sync(*PAY, {"amount_usd": 1, "n": n})
    eventually(lambda: countersign.flush(10))
    assert chain.receipt is not None
    events = server.events(chain.id)
    assert [e["payload"]["n"] for e in events if e["action_name"] == "look"] == list(range(60))
    paid = [e["payload"]["n"] for e in events if e["action_name"] == "pay_invoice"]
    assert paid == [5, 15, 25, 35, 45, 55]
    assert not [e for e in events if e["action_type"] == "gap"]
    assert "offline_stub" in {e["decision_source"] for e in events}
    assert len({e["idempotency_key"] for e in events}) == len(events) == 66
    with pytest.warns(DeprecationWarning):
        assert countersign.verify_receipt_sync(chain.receipt["receipt_id"]).valid


def test_a_gap_is_recorded_when_the_buffer_overflowed(own_server: Server) -> None:
    server = own_server
    agent_config(server, fail_mode="allow", offline_buffer_max_events=5)
    with countersign.Chain("overflow") as chain:
        server.kill()
        for n in range(20):
            chain.record_agent_action_sync("a", "tool_call", "look", {"n": n})
        server.start()
    eventually(lambda: countersign.flush(10))
    events = server.events(chain.id)
    dropped = sum(e["payload"]["dropped"] for e in events if e["action_type"] == "gap")
    kept = [e["payload"]["n"] for e in events if e["action_type"] != "gap"]
    # What the client was trying to send meanwhile, on a slow machine, is kept beside the buffer.
    assert events[0]["action_type"] == "gap"
    assert dropped + len(kept) == 20
    assert len(kept) <= 10
    assert kept[-5:] == [15, 16, 17, 18, 19]
    assert chain.receipt is not None


def test_a_chain_opened_while_the_server_was_down(own_server: Server) -> None:
    server = own_server
    agent_config(server, fail_mode="allow")
    server.kill()
    with countersign.Chain("offline-all-along") as chain:
        for n in range(3):
            chain.record_agent_action_sync("a", "tool_call", "look", {"n": n})
    assert not chain.id
    server.start()
    eventually(lambda: chain.receipt)
    assert len(server.events(chain.id)) == 3
    assert chain.receipt is not None
    assert chain.receipt["total_actions"] == 3
