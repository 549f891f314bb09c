"""A client that speaks: of waits, and of where it looked for the service."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

import countersign
from conftest import configure
from countersign import ApprovalProgress, _approvals
from countersign.testing import FakeService
from server import Server
from test_decisions import both, eventually

ACTION = ("clerk", "tool_call", "pay", {"amount_usd": 5})


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def record(sync: bool) -> None:
    async def main() -> None:
        async with countersign.Chain("invoices") as chain:
            await chain.record_agent_action(*ACTION)

    if not sync:
        asyncio.run(main())
        return
    with countersign.Chain("invoices") as chain:
        chain.record_agent_action_sync(*ACTION)


def decide_the_first(fake: FakeService, verdict: Callable[[str], None]) -> threading.Thread:
    def decide() -> None:
        eventually(lambda: fake.approvals)
        verdict(fake.approvals[0]["id"])

    thread = threading.Thread(target=decide)
    thread.start()
    return thread


@both
@pytest.mark.parametrize("verdict", ["approve", "deny", "time_out"])
def test_a_wait_is_one_line_when_it_begins_and_one_when_it_ends(
    fake: FakeService, caplog: pytest.LogCaptureFixture, sync: bool, verdict: str
) -> None:
    """At WARNING, which Python prints unasked. They name the chain, the sequence and a page of
    the console, and never the approval."""
    told: list[ApprovalProgress] = []
    configure(fake, on_wait=told.append)
    fake.script("require_approval")
    decider = decide_the_first(fake, getattr(fake, verdict))
    if verdict == "approve":
        record(sync)
    else:
        with pytest.raises(countersign.ActionDeniedError):
            record(sync)
    decider.join()
    ended = {"approve": "approved", "deny": "denied", "time_out": "timed out"}[verdict]
    first, last = lines(caplog)[:2]
    chain = fake.chains[0]["id"]
    where = f"chain 'invoices', sequence 1, http://127.0.0.1:8080/chains/{chain}?after=0#events"
    action = "tool_call 'pay' by 'clerk'"
    assert first == f"countersign: waiting for a person to decide {action}, {where}"
    assert last == f"countersign: {ended} after 0 s: {action}, {where}"
    assert fake.approvals[0]["id"] not in caplog.text
    begun, *_, end = told
    assert (begun.status, begun.waiting) == ("pending", True)
    assert (end.status, end.waiting) == (ended.replace(" ", "_"), False)
    assert {progress.approval_id for progress in told} == {fake.approvals[0]["id"]}
    assert end.console_url is not None
    assert (end.chain_id, end.chain_name, end.sequence) == (chain, "invoices", 1)


def test_progress_is_told_while_the_wait_goes_on(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each answer that brings no decision: that it escalated, and until when it is valid."""
    monkeypatch.setattr(_approvals, "_LONG_POLL", 0)
    monkeypatch.setattr(_approvals, "_MIN_HOLD", 0.01)
    told: list[ApprovalProgress] = []

    def on_wait(progress: ApprovalProgress) -> None:
        told.append(progress)
        (approval,) = fake._records.approvals.values()
        if len(told) == 2:
            approval["status"] = "escalated"
        elif len(told) == 3:
            fake.approve(progress.approval_id)

    configure(fake, on_wait=on_wait)
    fake.script("require_approval")
    record(True)
    assert [progress.status for progress in told] == ["pending", "pending", "escalated", "approved"]
    assert told[1].expires_at == fake.approvals[0]["expires_at"]
    waited = [progress.waited_seconds for progress in told]
    assert waited == sorted(waited)


def test_a_callback_that_raises_ends_no_wait(
    fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    def on_wait(progress: ApprovalProgress) -> None:
        raise KeyError(progress.approval_id)

    configure(fake, on_wait=on_wait)
    fake.script("require_approval")
    decider = decide_the_first(fake, fake.approve)
    record(True)
    decider.join()
    assert "on_wait raised KeyError" in caplog.text
    assert fake.approvals[0]["id"] not in caplog.text
    with pytest.raises(countersign.ConfigurationError, match="on_wait"):
        configure(fake, on_wait="print")


def test_a_wait_that_is_broken_off_says_so(
    fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[ApprovalProgress] = []
    configure(fake, on_wait=told.append)
    fake.script("require_approval")

    async def main() -> None:
        async with countersign.Chain("invoices") as chain:
            task = asyncio.ensure_future(chain.record_agent_action(*ACTION))
            while not told:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert [progress.status for progress in told] == ["pending", "broken_off"]
    assert "broken off after" in caplog.text


def test_a_wait_for_an_approval_by_its_id_speaks_once_it_knows_where_it_stands(
    fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """What is decided already was no wait, and has no line."""
    configure(fake)
    fake.script("require_approval")
    told: list[Any] = []

    async def main() -> None:
        async with countersign.Chain("invoices") as chain:
            task = asyncio.ensure_future(chain.record_agent_action(*ACTION))
            while not fake.approvals:
                await asyncio.sleep(0.001)
            approval = fake.approvals[0]["id"]
            fake.approve(approval)
            await task
            caplog.clear()
            await countersign.wait_for_approval(approval)
            told.extend(lines(caplog))

    asyncio.run(main())
    assert told == []


def test_an_unreachable_service_is_named_by_its_address(
    fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """In exceptions and in the log; the path is left out, which could hold anything."""
    address = "http://127.0.0.1:9"
    config = countersign.init(
        api_key=fake.settings()["api_key"],
        backend_url=address + "/inner",
        backend_timeout_seconds=0.3,
    )
    with pytest.raises(countersign.BackendUnavailableError) as raised:
        countersign.get_chain_sync("x")
    assert f"at {address})" in str(raised.value)
    assert "/inner" not in str(raised.value)
    with countersign.Chain("x") as chain:
        with pytest.raises(countersign.BackendUnavailableError, match=f"at {address}\\)"):
            chain.record_agent_action_sync(*ACTION)
    assert f"at {address})" in caplog.text
    assert config.api_key.reveal() not in caplog.text  # type: ignore[union-attr]
    countersign.close()


def test_the_link_of_the_log_leads_to_the_action(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """On the real service's console, where the action is the first of the page."""
    told: list[ApprovalProgress] = []

    def approve(progress: ApprovalProgress) -> None:
        told.append(progress)
        if progress.waiting and len(told) == 1:
            threading.Thread(
                target=server.post, args=(f"/v1/approvals/{progress.approval_id}/approve",)
            ).start()

    key = server.post("/v1/api-keys", {"name": "speaking", "role": "agent"})["key"]
    countersign.init(key, backend_url=server.url, on_wait=approve)
    with countersign.Chain("speaking") as chain:
        chain.record_agent_action_sync("clerk", "tool_call", "noop", {})
        chain.record_agent_action_sync("clerk", "tool_call", "pay", {"amount_usd": 9000})
    assert told[-1].status == "approved"
    assert told[0].console_url == f"{server.url}/chains/{chain.id}?after=1#events"
    assert told[0].console_url in caplog.text
    assert told[0].approval_id not in caplog.text
