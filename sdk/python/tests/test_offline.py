"""While the service is unreachable: fail modes, the buffer, the gap, and the way back."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import countersign
from conftest import configure
from countersign import _delivery
from countersign._clients import Unreachable
from countersign._sender import Sender
from countersign._steps import Send, Until
from countersign.testing import FakeService, RecordedCall
from test_decisions import eventually

SAFE = ("clerk", "tool_call", "look", {"n": 1})
ACTIONS: dict[str, tuple[Any, ...]] = {
    "financial": ("a", "tool_call", "pay", {}),
    "external_communication": ("a", "tool_call", "send_email", {}),
    "data_modification": ("a", "tool_call", "delete_rows", {}),
    "llm": ("a", "llm_call", "chat", {}),
    "default": ("a", "tool_call", "execute_shell", {"command": "rm -rf /"}),
    "safe": SAFE,
}


def outage(service: FakeService, *action: Any, **settings: Any) -> countersign.PolicyDecision:
    """Record one action while the service is away, and let it come back."""
    config = configure(service, **settings)
    with countersign.Chain("outage", config=config) as chain:
        service.go_offline()
        try:
            return chain.record_agent_action_sync(*action)
        finally:
            service.come_back()


@pytest.mark.parametrize("category", ACTIONS)
@pytest.mark.parametrize("mode", ["allow", "deny"])
def test_the_fail_mode_of_the_category_decides(fake: FakeService, category: str, mode: str) -> None:
    other = "deny" if mode == "allow" else "allow"
    modes = {"default": other, category: mode}
    if mode == "deny":
        with pytest.raises(countersign.BackendUnavailableError) as refused:
            outage(fake, *ACTIONS[category], fail_modes=modes)
        assert "was not recorded" in str(refused.value)
        assert fake.events == []
        return
    decision = outage(fake, *ACTIONS[category], fail_modes=modes)
    assert decision.decision_source == "offline_stub"
    assert decision.policy_decision == "allow"
    (event,) = fake.events
    assert event["decision_source"] == "offline_stub"


@pytest.mark.parametrize("agent", ["root", "R\u200boot"])
@pytest.mark.parametrize("whose", ["client", "organization"])
def test_nothing_of_a_high_risk_agent_is_obviously_safe(
    fake: FakeService, agent: str, whose: str
) -> None:
    """Each of its actions needs a person's approval, which nobody can give during an outage."""
    settings = {}
    if whose == "client":
        settings["high_risk_agents"] = ["root"]
    else:
        fake.limits["high_risk_agents"] = ["root"]
    with pytest.raises(countersign.BackendUnavailableError):
        outage(fake, agent, *SAFE[1:], **settings)
    assert outage(fake, *SAFE, **settings).decision_source == "offline_stub"


def test_default_is_the_fallback_of_unmatched_categories(fake: FakeService) -> None:
    with pytest.raises(countersign.BackendUnavailableError):
        outage(fake, *ACTIONS["llm"], fail_modes={"financial": "allow", "default": "deny"})


def test_the_strictest_of_several_categories_counts(fake: FakeService) -> None:
    action = ("a", "tool_call", "pay", {"to": "someone@example.com"})
    with pytest.raises(countersign.BackendUnavailableError):
        outage(
            fake,
            *action,
            fail_modes={"financial": "allow", "external_communication": "deny", "default": "allow"},
        )


def test_the_legacy_fail_mode_is_the_default(fake: FakeService) -> None:
    with pytest.raises(countersign.BackendUnavailableError):
        outage(fake, *SAFE, fail_mode="deny")


@pytest.mark.parametrize("category", ACTIONS)
def test_without_modes_of_its_own_the_client_uses_the_services(
    fake: FakeService, category: str
) -> None:
    """Offline, only what is obviously safe goes on."""
    if category == "safe":
        assert outage(fake, *ACTIONS[category]).decision_source == "offline_stub"
    else:
        with pytest.raises(countersign.BackendUnavailableError):
            outage(fake, *ACTIONS[category])


@pytest.mark.parametrize("category", ACTIONS)
def test_before_any_answer_the_same_modes_count(fake: FakeService, category: str) -> None:
    config = configure(fake)
    fake.go_offline()
    with countersign.Chain("never-heard", config=config) as chain:
        if category == "safe":
            assert chain.record_agent_action_sync(*ACTIONS[category]).allowed
        else:
            with pytest.raises(countersign.BackendUnavailableError):
                chain.record_agent_action_sync(*ACTIONS[category])
        fake.come_back()


def test_the_modes_that_the_opened_chain_carried_are_used(fake: FakeService) -> None:
    config = configure(fake)
    with countersign.Chain("opened", config=config) as chain:
        assert chain._session is not None
        transport = chain._session.transport
        modes = {"financial": "allow", "default": "deny"}
        transport.learn({"fail_modes": modes}, transport.clock.now())
        fake.go_offline()
        assert chain.record_agent_action_sync(*ACTIONS["financial"]).allowed
        with pytest.raises(countersign.BackendUnavailableError):
            chain.record_agent_action_sync(*SAFE)
        fake.come_back()


def test_an_outage_is_told_once_for_a_chain(
    fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    configure(fake)
    fake.go_offline()
    with caplog.at_level(logging.WARNING, "countersign"):
        with countersign.Chain("quiet") as chain:
            for _ in range(5):
                chain.record_agent_action_sync(*SAFE)
    where = "ConnectError at http://127.0.0.1:8080"
    assert [r.message for r in caplog.records if "unreachable" in r.message] == [
        f"the service is unreachable ({where}): the chain is opened later"
    ]
    fake.come_back()
    eventually(lambda: countersign.flush(5))


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("script", "error"),
    [
        ({"kill_switch_active": True, "pause_reason": "fire"}, countersign.KillSwitchActiveError),
        ({"auto_paused": True, "pause_reason": "too many"}, countersign.ChainAutoPausedError),
    ],
    ids=["kill-switch", "pause"],
)
def test_a_known_stop_outlasts_the_service(
    fake: FakeService, sync: bool, script: dict[str, Any], error: type[Any]
) -> None:
    """The service becomes unreachable after the client has learnt of a stop."""
    configure(fake, fail_modes={"default": "allow"})

    async def record(chain: countersign.Chain) -> None:
        if sync:
            await asyncio.to_thread(chain.record_agent_action_sync, *SAFE)
        else:
            await chain.record_agent_action(*SAFE)

    async def main() -> None:
        async with countersign.Chain("stopped") as chain:
            fake.script("deny", **script)
            with pytest.raises(error):
                await record(chain)
            fake.go_offline()
            for _ in range(2):
                with pytest.raises(error, match=script["pause_reason"]) as stopped:
                    await record(chain)
                assert stopped.value.decision.policy_decision == "deny"
            fake.come_back()
            await record(chain)  # the service says otherwise

    asyncio.run(main())


def test_a_kill_switch_seen_on_one_chain_outlasts_the_service_on_another(
    fake: FakeService,
) -> None:
    config = configure(fake, fail_modes={"default": "allow"})
    fake.activate_kill_switch("fire")
    with countersign.Chain("first", config=config) as chain:
        with pytest.raises(countersign.KillSwitchActiveError):
            chain.record_agent_action_sync(*SAFE)
    fake.go_offline()
    with countersign.Chain("second", config=config) as chain:
        with pytest.raises(countersign.KillSwitchActiveError, match="fire"):
            chain.record_agent_action_sync(*SAFE)
    fake.come_back()
    eventually(lambda: countersign.flush(5))


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_chain_opened_offline_is_opened_completed_and_sealed_later(
    fake: FakeService, sync: bool
) -> None:
    config = configure(fake)
    fake.go_offline()
    chain = countersign.Chain("later", config=config)

    async def main() -> None:
        async with chain:
            assert (await chain.record_agent_action(*SAFE)).decision_source == "offline_stub"

    if sync:
        with chain:
            assert not chain.id
            assert chain.record_agent_action_sync(*SAFE).decision_source == "offline_stub"
    else:
        asyncio.run(main())
    assert not chain.receipt
    assert not countersign.flush(0)
    fake.come_back()
    eventually(lambda: countersign.flush(5))
    assert chain.id == fake.chains[0]["id"]
    assert chain.receipt is not None
    assert chain.receipt["total_actions"] == 1
    assert len(fake.chains) == len(fake.events) == 1


def test_the_background_brings_everything_back_by_itself(fake: FakeService) -> None:
    configure(fake)
    fake.go_offline()
    with countersign.Chain("by-itself") as chain:
        chain.record_agent_action_sync(*SAFE)
    fake.come_back()
    eventually(lambda: chain.receipt)


def test_a_chain_is_not_opened_offline_when_the_default_is_deny(fake: FakeService) -> None:
    configure(fake, fail_modes={"default": "deny"})
    fake.go_offline()
    with pytest.raises(countersign.BackendUnavailableError), countersign.Chain("refused"):
        pass


def test_leaving_says_that_the_receipt_is_missing_when_the_default_is_deny(
    fake: FakeService,
) -> None:
    configure(fake, fail_modes={"default": "deny"})
    with pytest.raises(countersign.BackendUnavailableError), countersign.Chain("late") as chain:
        fake.go_offline()
    fake.come_back()
    eventually(lambda: countersign.flush(5))
    assert chain.receipt is not None


def test_the_buffer_drops_the_oldest_and_records_the_gap(fake: FakeService) -> None:
    configure(fake, offline_buffer_max_events=3)
    with countersign.Chain("overflow") as chain:
        fake.go_offline()
        for n in range(8):
            chain.record_agent_action_sync("a", "tool_call", "look", {"n": n})
        fake.come_back()
    gap, *kept = fake.events
    assert (gap["action_type"], gap["action_name"]) == ("gap", "dropped_events")
    assert gap["payload"]["dropped"] == 5
    assert gap["payload"]["from"] <= gap["payload"]["to"] <= kept[0]["executed_at"]
    assert chain.receipt is not None
    assert chain.receipt["total_actions"] == len(kept)
    assert gap["agent_name"] not in chain.receipt["agents_involved"]
    assert [e["payload"]["n"] for e in kept] == [5, 6, 7]


def test_without_overflow_there_is_no_gap(fake: FakeService) -> None:
    configure(fake, offline_buffer_max_events=3)
    with countersign.Chain("full") as chain:
        fake.go_offline()
        for n in range(3):
            chain.record_agent_action_sync("a", "tool_call", "look", {"n": n})
        fake.come_back()
    assert [e["action_type"] for e in fake.events] == ["tool_call"] * 3


def test_a_buffer_of_nothing_records_only_the_gap(fake: FakeService) -> None:
    configure(fake, offline_buffer_max_events=0)
    with countersign.Chain("none") as chain:
        fake.go_offline()
        for _ in range(2):
            chain.record_agent_action_sync(*SAFE)
        fake.come_back()
    (gap,) = fake.events
    assert gap["payload"]["dropped"] == 2


def test_the_buffer_holds_a_hundred_events_unless_told_otherwise(fake: FakeService) -> None:
    assert configure(fake).offline_buffer_max_events == 100
    with countersign.Chain("default") as chain:
        fake.go_offline()
        for n in range(101):
            chain.record_agent_action_sync("a", "tool_call", "look", {"n": n})
        fake.come_back()
    assert fake.events[0]["payload"]["dropped"] == 1
    assert len(fake.events) == 101


def test_back_online_the_service_decides_again(fake: FakeService) -> None:
    configure(fake)
    with countersign.Chain("back") as chain:
        fake.go_offline()
        assert chain.record_agent_action_sync(*SAFE).decision_source == "offline_stub"
        fake.come_back()
        assert chain.record_agent_action_sync(*SAFE).decision_source == "backend_evaluation"
    assert [e["decision_source"] for e in fake.events] == ["offline_stub", "backend_evaluation"]


def test_what_offline_should_have_been_denied_is_a_violation(fake: FakeService) -> None:
    configure(fake)
    with pytest.raises(countersign.PolicyViolationError):
        with countersign.Chain("violation") as chain:
            fake.go_offline()
            chain.record_agent_action_sync(*SAFE)
            fake.script("deny", decision_reason="forbidden meanwhile")
            fake.come_back()


def test_what_is_lost_at_the_end_is_said(
    fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    config = configure(fake)
    fake.go_offline()
    with caplog.at_level(logging.WARNING, "countersign"):
        with countersign.Chain("lost", config=config) as chain:
            chain.record_agent_action_sync(*SAFE)
        countersign.close(config=config)
    assert "undelivered events and outcomes were lost: 1, in chains: 1" in caplog.text


def test_an_uncertain_delivery_leaves_one_gap_that_grows() -> None:
    """Answers are lost again and again: what may have arrived is sent again as it was, and the
    events dropped meanwhile make one gap more, not one each."""
    from countersign._buffer import Outbox

    def event(n: int) -> dict[str, Any]:
        return {"payload": {"n": n}, "executed_at": f"t{n:02d}", "idempotency_key": f"k{n}"}

    outbox = Outbox(3)
    attempts: list[list[tuple[str, bytes]]] = []
    for n in range(20):
        outbox.put(event(n))
        attempts.append(outbox.begin())
        outbox.end(delivered=False, sent=True)
    assert len(outbox) <= 5
    delivered: list[tuple[str, bytes]] = []
    while batch := outbox.begin():
        delivered += batch
        outbox.end(delivered=True)
    dropped = [json.loads(e)["payload"]["dropped"] for _, e in delivered if b"dropped" in e]
    assert sum(dropped) == 17
    assert [json.loads(e)["payload"].get("n") for _, e in delivered][-3:] == [17, 18, 19]
    # The same key never stands for two contents.
    contents: dict[str, set[bytes]] = {}
    for key, entry in [e for batch in attempts for e in batch] + delivered:
        contents.setdefault(key, set()).add(entry)
    assert all(len(found) == 1 for found in contents.values())


@pytest.mark.parametrize("during", ["/outcome", "/complete"])
def test_an_interrupted_completion_is_made_up_for(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    """After an interrupt, such as Ctrl-C, while the chain is left, it is completed in the
    background, or at the exit of the process, with the outcomes of its calls."""
    receive = fake._receive

    def interrupt_once(call: RecordedCall) -> Any:
        if call.path.endswith(during) and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return receive(call)

    @countersign.governed
    def pages() -> Iterator[int]:
        yield 1
        yield 2

    interrupted: list[bool] = []
    monkeypatch.setattr(fake, "_receive", interrupt_once)
    configure(fake)
    chain = countersign.Chain("interrupted")
    with pytest.raises(KeyboardInterrupt), chain:
        unfinished = pages()
        next(unfinished)
    assert interrupted
    assert countersign.flush()
    assert chain.receipt is not None
    assert [event["outcome"] for event in fake.events] == ["unknown"]
    unfinished.close()  # type: ignore[attr-defined]


def test_an_action_does_not_wait_for_ever_for_a_delivery_that_stands_still(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sync code on the thread of an event loop keeps that loop from going on with a delivery. The
    adapters have it wait in another thread, and then each would wait for the other."""
    monkeypatch.setattr(_delivery, "_PATIENCE", 0.01)
    config = configure(fake)
    receive = config.transport.handle_async_request  # type: ignore[union-attr]
    begun, refused = asyncio.Event(), asyncio.Event()

    async def stand_still(request: Any) -> Any:
        if request.url.path.endswith("/batch"):
            begun.set()
            await refused.wait()
        return await receive(request)

    async def main() -> None:
        async with chain:
            assert chain._session is not None
            fake.go_offline()
            decision = await chain.record_agent_action(*SAFE)
            assert decision.decision_source == "offline_stub"
            fake.come_back()
            monkeypatch.setattr(config.transport, "handle_async_request", stand_still)
            delivering = asyncio.ensure_future(chain.record_outcome(decision, "succeeded"))
            await begun.wait()
            asking = pool.submit(chain.record_agent_action_sync, *ACTIONS["default"])
            with pytest.raises(countersign.BackendUnavailableError, match="still in progress"):
                asking.result(30)  # on the loop's own thread
            refused.set()
            await delivering  # late, now that the loop goes on

    chain = countersign.Chain("still", config=config)
    with ThreadPoolExecutor(1) as pool:
        asyncio.run(main())
    eventually(lambda: chain.receipt)


def test_a_delivery_that_advances_is_waited_for(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes: the service is there, and no fail mode may decide."""
    monkeypatch.setattr(Sender, "submit", lambda *_: None)
    config = configure(fake)
    fake.go_offline()
    with countersign.Chain("long", config=config) as chain:
        session = chain._session
        assert session is not None
        chain.record_agent_action_sync(*SAFE)
        fake.come_back()
        send = session.transport.clients.send
        theirs, ours = session.deliver(), session.deliver()
        opening = next(theirs)
        assert isinstance(opening, Send)
        assert isinstance(next(ours), Until)
        batch = theirs.send(send(opening))
        assert isinstance(batch, Send)
        assert isinstance(ours.send(False), Until)  # the opening was answered
        with pytest.raises(Unreachable, match="still in progress"):
            ours.send(False)  # and nothing since
        with pytest.raises(StopIteration):
            theirs.send(send(batch))
    assert [event["decision_source"] for event in fake.events] == ["offline_stub"]


def test_leaving_does_not_wait_for_ever_for_a_delivery_that_stands_still(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_delivery, "_PATIENCE", 0.01)
    config = configure(fake)
    with countersign.Chain("still", config=config) as chain:
        session = chain._session
        assert session is not None
        theirs: Future[None] = Future()
        session._flushing = theirs
    assert chain.receipt is None
    session._flushing = None
    theirs.set_result(None)
    eventually(lambda: chain.receipt)
