"""Reading what was recorded, and limits for one chain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import date, datetime, timedelta, timezone
from typing import Any, TypeVar

import httpx
import pytest

import countersign
from conftest import configure
from countersign import records
from countersign.testing import FakeService, example_api_key
from server import Server

T = TypeVar("T")


async def collected(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]


def test_lists_follow_their_cursors(fake: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page is asked for when the iterator comes to it, and no sooner."""
    configure(fake)
    monkeypatch.setattr(records, "_PAGE", 2)
    for number in range(5):
        with countersign.Chain(f"chain {number}") as chain:
            for _ in range(5):
                chain.record_agent_action_sync("a", "tool_call", "pay", {"n": number})
    fake.calls.clear()
    found = countersign.list_chains_sync()
    assert fake.calls == []
    assert next(found).name == "chain 4"
    assert len(fake.calls) == 1
    assert [c.name for c in found] == ["chain 3", "chain 2", "chain 1", "chain 0"]
    assert len(fake.calls) == 3
    assert [e.sequence for e in chain.events_sync()] == [1, 2, 3, 4, 5]
    assert len(list(countersign.receipts_sync())) == 5

    async def main() -> tuple[list[Any], list[Any], list[Any]]:
        return (
            await collected(countersign.list_chains()),
            await collected(chain.events()),
            await collected(countersign.receipts()),
        )

    chains, events, receipts = asyncio.run(main())
    assert [len(chains), len(events), len(receipts)] == [5, 5, 5]


def test_a_list_that_repeats_itself_ends() -> None:
    """A service that answers the same cursor for ever is an error, and no endless loop."""
    page = {"data": [{"id": "x"}], "next_cursor": "again"}
    answering = httpx.MockTransport(lambda _: httpx.Response(200, json=page))
    countersign.init(example_api_key(), transport=answering)
    found = countersign.list_chains_sync()
    with pytest.raises(countersign.APIError, match="same again"):
        list(found)


def test_a_chain_tells_of_itself_while_it_is_open_and_afterwards(fake: FakeService) -> None:
    configure(fake)
    chain = countersign.Chain("mine", metadata={"ticket": "OPS-7"})
    with pytest.raises(RuntimeError, match="enter it first"):
        chain.detail_sync()
    with chain:
        decision = chain.record_agent_action_sync("a", "tool_call", "pay", {"n": 1})
        chain.record_outcome_sync(decision, "failed", "OSError")
        assert chain.detail_sync().status == "active"
    detail = chain.detail_sync()
    assert (detail.name, detail.status, detail.total_actions) == ("mine", "completed", 1)
    assert detail.agents_involved == ("a",)
    assert detail.metadata == {"ticket": "OPS-7"}
    assert detail.raw["id"] == chain.id
    (event,) = chain.events_sync()
    assert event.payload == {"n": 1}
    assert event.outcome == records.OutcomeRecord("failed", "OSError", "2026-01-01T00:00:00.003Z")
    assert asyncio.run(chain.detail()) == detail

    async def in_a_loop() -> None:
        chain.detail_sync()

    with pytest.raises(RuntimeError, match="await detail"):
        asyncio.run(in_a_loop())


SYNC_CALLS: dict[str, tuple[Any, ...]] = {
    "cancel_approval_sync": ("apr_1",),
    "create_public_token_sync": ("receipt", "rcp_1"),
    "events_of_sync": ("chn_1",),
    "get_chain_sync": ("chn_1",),
    "list_chains_sync": (),
    "list_public_tokens_sync": (),
    "receipts_sync": (),
    "revoke_public_token_sync": ("tok_1",),
    "verify_approval_v2_sync": ("apr_1",),
    "verify_public_token_sync": ("token",),
    "verify_receipt_sync": ("rcp_1",),
    "verify_receipt_v2_sync": ("rcp_1",),
    "wait_for_approval_sync": ("apr_1",),
}
"""The public functions for code without an event loop, and arguments for each."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_sync_function_is_refused_where_a_loop_runs(fake: FakeService) -> None:
    """None of them sends a request from a thread that runs an event loop, which would stand still
    until the answer. A list is refused when it is read: another thread may do that."""
    configure(fake)
    public: dict[str, Any] = {
        name: getattr(module, name)
        for module in (countersign, records)
        for name in module.__all__
        if name.endswith("_sync")
    }
    assert sorted(public) == sorted(SYNC_CALLS)

    async def in_a_loop(name: str) -> None:
        with pytest.raises(RuntimeError, match="would block the event loop"):
            found = public[name](*SYNC_CALLS[name])
            next(found)

    for name in public:
        asyncio.run(in_a_loop(name))
    assert fake.calls == []

    async def in_a_thread() -> list[Any]:
        return await asyncio.to_thread(list, countersign.list_chains_sync())

    assert asyncio.run(in_a_thread()) == []


LIMITS: dict[str, Any] = {
    "financial_approval_threshold_usd": 10.0,
    "cumulative_financial_threshold_usd": 20.0,
    "external_domains_allowlist": ["example.com"],
    "high_risk_agents": ["intern"],
    "approval_timeout_hours": 1.0,
    "chain_timeout_seconds": 60.0,
}


def test_limits_of_one_chain_are_sent_with_it_and_with_no_other(fake: FakeService) -> None:
    """Over the same connections: what is known of the organization is known to all chains."""
    config = configure(fake, high_risk_agents=["robot"])
    with countersign.Chain("limited", **LIMITS) as limited, countersign.Chain("plain") as plain:
        pass
    opened = [call.body for call in fake.calls if call.path == "/v1/chains"]
    assert opened[0]["policy_config"] == LIMITS
    assert opened[1]["policy_config"] == {"high_risk_agents": ["robot"]}
    assert limited._session is not None
    assert plain._session is not None
    assert limited._session.transport is plain._session.transport
    assert config.high_risk_agents == ("robot",)
    with pytest.raises(countersign.ConfigurationError, match="chain_timeout_seconds"):
        countersign.Chain("x", chain_timeout_seconds=-1)


def test_the_real_service_is_read(server: Server) -> None:
    """Chains by filter, events with outcomes, receipts; and a limit of one chain holds."""
    server.config()
    with countersign.Chain(
        "read",
        external_chain_id="read-1",
        metadata={"ticket": "OPS 7", "urgent": True, "n": 4.5},
        high_risk_agents=["intern"],
        approval_timeout_hours=0.0003,
    ) as chain:
        decision = chain.record_agent_action_sync("clerk", "tool_call", "noop", {"n": 1})
        chain.record_outcome_sync(decision, "succeeded")
        with pytest.raises(countersign.ApprovalTimedOutError):
            chain.record_agent_action_sync("intern", "tool_call", "noop", {"n": 1})
    (found,) = countersign.list_chains_sync(external_chain_id="read-1")
    search: dict[str, Any] = {
        "name": "READ",
        "agent_name": "clerk",
        "action_type": "tool_call",
        "action_name": "noop",
        "decision": "allow",
        "since": date(2020, 1, 1),
        "until": datetime.now(timezone.utc) + timedelta(hours=1),
        "metadata": {"ticket": "OPS 7", "urgent": True, "n": 4.50},
    }
    assert list(countersign.list_chains_sync(**search)) == [found]
    assert [r.chain_id for r in countersign.receipts_sync(**search)] == [found.id]
    assert asyncio.run(collected(countersign.list_chains(**search))) == [found]
    assert len(asyncio.run(collected(countersign.receipts(**search)))) == 1
    assert list(countersign.list_chains_sync(**search | {"decision": "deny"})) == []
    with pytest.raises(ValueError, match="time zone"):
        list(countersign.receipts_sync(since=datetime(2026, 1, 1)))
    assert found == countersign.get_chain_sync(str(chain.id))
    assert (found.status, found.total_actions) == ("completed", 2)
    first, second = chain.events_sync()
    assert first.outcome is not None
    assert first.outcome.outcome == "succeeded"
    assert second.status == "awaiting_approval"
    receipt = next(countersign.receipts_sync())
    assert chain.receipt is not None
    assert receipt.raw == chain.receipt
    assert receipt.receipt_number == chain.receipt["receipt_number"]
    assert asyncio.run(collected(chain.events())) == [first, second]


def test_a_repeat_says_how_the_approval_ended(server: Server) -> None:
    """As after a lost answer: the approval may have ended before the action is sent again."""
    server.config()
    with countersign.Chain(
        "repeat", high_risk_agents=["intern"], approval_timeout_hours=0.0003
    ) as chain:
        for _ in range(2):
            with pytest.raises(countersign.ApprovalTimedOutError):
                chain.record_agent_action_sync(
                    "intern", "tool_call", "noop", {}, idempotency_key="k"
                )
        assert len(list(chain.events_sync())) == 1
