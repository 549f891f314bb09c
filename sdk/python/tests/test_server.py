"""Against the real service: what it answers today, on every store."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from typing import Any

import pytest

import countersign
from countersign._action import digest_of
from countersign._canonical import canonical
from server import Server


def test_sync_chain_is_opened_recorded_and_sealed(server: Server) -> None:
    server.config(enable_local_fast_path=False, environment="staging")
    with countersign.Chain("sync-run", external_chain_id="x-1", metadata={"ticket": 7}) as chain:
        assert chain.id is not None
        decision = chain.record_agent_action_sync("clerk", "tool_call", "look_up", {"n": 1})
        assert (decision.policy_decision, decision.sequence) == ("allow", 1)
        assert decision.chain_id == chain.id
        assert decision.event_id
        assert not chain.receipt
    assert chain.receipt is not None
    assert chain.receipt["total_actions"] == 1
    assert chain.receipt["metadata"] == {"ticket": 7}
    stored = server.get(f"/v1/chains/{chain.id}")
    assert (stored["environment"], stored["external_chain_id"]) == ("staging", "x-1")
    assert stored["status"] == "completed"


def test_what_is_the_callers_own_is_kept_unchanged(server: Server) -> None:
    """Metadata and the external id stand in the signed receipt as they were given, secrets and
    all; what is too large for the service is refused by it, and the field named."""
    server.config(environment="staging")
    metadata = {"password": "hunter2", "text": "x" * 5000, "grüße": ["\u2028", 0.1]}
    external = ' Run 7:\t"é" token=abc '
    with countersign.Chain("own", external_chain_id=external, metadata=metadata) as chain:
        pass
    assert chain.receipt is not None
    assert chain.receipt["metadata"] == metadata
    assert chain.receipt["external_chain_id"] == external
    assert chain.receipt["environment"] == "staging"
    assert chain.receipt["format"] == "countersign-receipt-v2"
    for own in ({"external_chain_id": "x" * 201}, {"metadata": {"big": "x" * (16 << 10)}}):
        with pytest.raises(countersign.APIError) as refused, countersign.Chain("large", **own):
            pass
        assert refused.value.status == 422
        assert [e["pointer"] for e in refused.value.errors] == [f"/{next(iter(own))}"]


def test_looser_limits_are_told_of(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.config(financial_approval_threshold_usd=9000)
    with countersign.Chain("looser") as chain:
        pass
    assert "financial_approval_threshold_usd is 9000 here and 5000 in force" in caplog.text
    assert server.get(f"/v1/chains/{chain.id}")["effective_limits"] is None


def test_async_chain_is_opened_recorded_and_sealed(server: Server) -> None:
    server.config(enable_local_fast_path=False)

    async def main() -> countersign.Chain:
        async with countersign.Chain("async-run") as chain:
            await asyncio.gather(
                *(chain.record_agent_action("a", "tool_call", "look", {"n": n}) for n in range(20))
            )
        return chain

    chain = asyncio.run(main())
    assert chain.receipt is not None
    assert chain.receipt["total_actions"] == 20
    assert sorted(e["payload"]["n"] for e in server.events(chain.id)) == list(range(20))


def test_an_exception_marks_the_chain_as_failed(server: Server) -> None:
    server.config()
    secret = "sk_" + "x" * 20
    with pytest.raises(KeyError), countersign.Chain("broken") as chain:
        raise KeyError(f"no such key: {secret}")
    stored = server.get(f"/v1/chains/{chain.id}")
    assert stored["status"] == "failed"
    assert stored["error"]["type"] == "KeyError"
    assert secret not in stored["error"]["message"]
    assert chain.receipt is not None
    assert chain.receipt["events_summary"][-1]["action_type"] == "chain_failure"


@pytest.mark.parametrize("name", ["", " ", "\x01"])
def test_an_exception_without_a_name_marks_the_chain_as_failed(server: Server, name: str) -> None:
    """A class that a program makes may have a name that the service refuses. The chain is completed
    under the name of the class that it derives from."""
    server.config()
    chain = countersign.Chain("nameless")
    with pytest.raises(ValueError, match="no"), chain:
        raise type(name, (ValueError,), {})("no")
    assert server.get(f"/v1/chains/{chain.id}")["error"] == {"type": "ValueError", "message": "no"}


def test_cancellation_does_not_leave_the_chain_open(server: Server) -> None:
    server.config()
    inside = asyncio.Event()
    chain = countersign.Chain("cancelled")

    async def work() -> None:
        async with chain:
            inside.set()
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    stored = server.get(f"/v1/chains/{chain.id}")
    assert (stored["status"], stored["error"]["type"]) == ("failed", "CancelledError")


def test_cancellation_while_leaving_is_delivered_after_the_completion(server: Server) -> None:
    server.config()
    chain = countersign.Chain("cancelled-at-the-door")

    async def work() -> None:
        async with chain:
            current = asyncio.current_task()
            assert current is not None
            asyncio.get_running_loop().call_soon(current.cancel)

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(work())

    asyncio.run(main())
    assert chain.receipt is not None


def test_threads_share_a_chain(server: Server) -> None:
    server.config(enable_local_fast_path=False)
    with countersign.Chain("threads") as chain:

        def work(number: int) -> None:
            for n in range(5):
                chain.record_agent_action_sync(f"agent-{number}", "tool_call", "look", {"n": n})

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert chain.receipt is not None
    assert chain.receipt["total_actions"] == 40


def test_event_loops_share_a_configuration(server: Server) -> None:
    config = server.config(enable_local_fast_path=False)
    receipts: list[object] = []

    async def main() -> None:
        for _ in range(3):
            async with countersign.Chain("loops", config=config) as chain:
                await chain.record_agent_action("a", "tool_call", "look", {})
            receipts.append(chain.receipt)

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(receipts) == 12
    assert None not in receipts


def test_a_chain_opened_in_one_loop_is_used_from_a_thread(server: Server) -> None:
    server.config(enable_local_fast_path=False)

    async def main() -> countersign.Chain:
        async with countersign.Chain("mixed") as chain:
            await asyncio.to_thread(
                chain.record_agent_action_sync, "a", "tool_call", "look", {"n": 1}
            )
        return chain

    chain = asyncio.run(main())
    assert chain.receipt is not None
    assert chain.receipt["total_actions"] == 1


@pytest.mark.parametrize("fast", [False, True], ids=["asked", "fast path"])
def test_the_same_key_records_a_step_once(server: Server, fast: bool) -> None:
    """A lease covers such a step no better: without it, or in another process, the service would
    not take it for the step that was decided here."""
    server.config(enable_local_fast_path=fast)
    with countersign.Chain("replayed") as chain:
        first, again = (
            chain.record_agent_action_sync(
                "a", "tool_call", "look", {"n": 1}, idempotency_key="step-1"
            )
            for _ in range(2)
        )
        assert first == again
        with pytest.raises(countersign.APIError) as conflict:
            chain.record_agent_action_sync(
                "a", "tool_call", "look", {"n": 2}, idempotency_key="step-1"
            )
        assert (conflict.value.status, conflict.value.code) == (409, "idempotency_conflict")
    assert chain.receipt is not None
    assert chain.receipt["total_actions"] == 1


def test_an_outcome_is_recorded(server: Server) -> None:
    server.config(enable_local_fast_path=False)
    with countersign.Chain("outcomes") as chain:
        decision = chain.record_agent_action_sync("a", "tool_call", "look", {})
        assert chain.record_outcome_sync(decision, "failed", "token=abc was refused")
    (event,) = server.events(chain.id)
    assert event["outcome"]["outcome"] == "failed"
    assert "abc" not in event["outcome"]["detail"]


def test_a_receipt_is_checked_by_the_public_route(server: Server) -> None:
    server.config()
    with countersign.Chain("checked") as chain:
        pass
    assert chain.receipt is not None
    with pytest.warns(DeprecationWarning, match="verify_receipt_v2"):
        result = countersign.verify_receipt_sync(chain.receipt["receipt_id"])
    assert result.valid
    assert result.receipt_number == chain.receipt["receipt_number"]
    assert result.chain_id == chain.id
    with pytest.warns(DeprecationWarning):
        again = asyncio.run(countersign.verify_receipt(chain.receipt["receipt_id"]))
    assert again == result


def test_an_unknown_receipt_is_an_error_and_not_invalid(server: Server) -> None:
    server.config()
    with pytest.warns(DeprecationWarning), pytest.raises(countersign.APIError) as refused:
        countersign.verify_receipt_sync("00000000-0000-4000-8000-000000000000")
    assert refused.value.status == 404


def test_every_limit_of_init_is_accepted(server: Server) -> None:
    server.config(
        financial_approval_threshold_usd=10.5,
        cumulative_financial_threshold_usd=20,
        external_domains_allowlist=["example.com"],
        high_risk_agents=["root"],
        default_approval_timeout_hours=1,
        fallback_approvers=["a@example.com"],
        chain_timeout_seconds=600,
    )
    with countersign.Chain("limits") as chain:
        assert chain.id


def test_an_unknown_key_is_refused_at_once(server: Server) -> None:
    from countersign.testing import example_api_key

    server.config(api_key=example_api_key("7"))
    with pytest.raises(countersign.APIError) as refused, countersign.Chain("nobody"):
        pass
    assert refused.value.status == 401
    assert example_api_key("7") not in str(refused.value)


def test_whatever_an_agent_passes_is_accepted(server: Server) -> None:
    server.config(enable_local_fast_path=False)
    cyclic: dict[str, object] = {"n": 2**70, "nan": float("nan"), "lone": "\ud800", "b": b"\xff"}
    cyclic["self"] = cyclic
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    with countersign.Chain("anything", metadata={"big": ["x" * 900] * 18}) as chain:
        payloads: list[Any] = [
            cyclic,
            {"deep": deep},
            {"wide": ["é\x00" * 400] * 2000},
            {1: 2, "1": 3},
        ]
        for payload in payloads:
            decision = chain.record_agent_action_sync("a\nb", "tool_call", "look", payload)
            assert decision.allowed
        for name in ("é" * 300, "\U0001f600" * 300, "a\x85b\ud800", "x" * 201):
            assert chain.record_agent_action_sync(name, "tool_call", name, {}).allowed


def test_what_was_taken_out_is_bound_at_the_service(server: Server) -> None:
    server.config(enable_local_fast_path=False)
    deep: Any = "end"
    for _ in range(40):
        deep = [deep]
    secret = "hunter" + "2"
    payload = {
        "password": secret,
        "note": "n" * 2000,
        "deep": deep,
        "a/b": [{"text": f"token={secret}"}],
        "plain": "[REDACTED]",
    }
    with countersign.Chain("bound") as chain:
        chain.record_agent_action_sync("a", "tool_call", "look", payload)
        key = chain._session.binding_key  # type: ignore[union-attr]
    assert key is not None
    (event,) = server.events(chain.id)
    redactions = event["redactions"]
    assert redactions["/password"] == digest_of(key, secret)
    assert redactions["/note"] == digest_of(key, "n" * 2000)
    assert redactions["/a~1b/0/text"] == digest_of(key, f"token={secret}")
    assert len(redactions) == 4
    assert hashlib.sha256(canonical(redactions)).hexdigest() == event["redactions_sha256"]


def test_texts_with_a_null_character_reach_the_service(server: Server) -> None:
    """An exception, an outcome's detail and a comment may contain anything: the chain is completed,
    the outcome recorded and the approval cancelled all the same."""

    def give_up(progress: countersign.ApprovalProgress) -> None:
        if progress.waiting:
            cancelled.append(countersign.cancel_approval_sync(progress.approval_id, "a\x00b"))

    cancelled: list[bool] = []
    server.config(high_risk_agents=["intern"], on_wait=give_up)
    chain = countersign.Chain("binary")
    with pytest.raises(ValueError, match="a\x00b"), chain:
        decision = chain.record_agent_action_sync("clerk", "tool_call", "stamp", {})
        assert chain.record_outcome_sync(decision, "failed", "a\x00b")
        with pytest.raises(countersign.ActionDeniedError):
            chain.record_agent_action_sync("intern", "tool_call", "stamp", {})
        assert cancelled == [True]
        raise ValueError("a\x00b")
    assert chain.receipt is not None
    assert server.get(f"/v1/chains/{chain.id}")["error"]["message"] == "a\ufffdb"
