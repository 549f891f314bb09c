"""``governed``: how a call ended is reported, and a denial can be told to the model."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, wait
from typing import Any

import pytest

import countersign
from conftest import configure
from countersign import _buffer, _redact, _steps, _transport, governed, governed_run
from countersign.testing import FakeService, RecordedCall
from countersign.testing._wire import Answer, Hold
from forms import (
    RAN,
    _pay,
    pay,
    pay_async,
    reports,
    start_over,
    stream,
    stream_async,
)


@pytest.fixture(autouse=True)
def _nothing_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    start_over(monkeypatch)


# -- outcomes ------------------------------------------------------------------------------


def test_a_cancelled_call_is_reported_as_unknown(fake: FakeService) -> None:
    """It was cut off: nobody knows how far it came. The cancellation goes on afterwards."""
    configure(fake)

    @governed
    async def slow() -> None:
        await asyncio.sleep(3600)

    async def main() -> None:
        async with governed_run():
            task = asyncio.ensure_future(slow())
            while not fake.events:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert reports(fake) == [{"outcome": "unknown", "detail": "CancelledError"}]


def test_generators_are_decided_before_the_first_item_and_reported_at_their_end(
    fake: FakeService,
) -> None:
    configure(fake)
    with governed_run():
        items = stream(3)
        assert fake.events == []
        assert RAN == []
        assert next(items) == 3
        assert len(fake.events) == 1
        assert reports(fake) == []
        items.close()  # type: ignore[attr-defined]
        assert reports(fake) == [{"outcome": "succeeded", "detail": "closed before its end"}]


def test_async_generators_are_reported_when_they_are_closed(fake: FakeService) -> None:
    configure(fake)

    async def main() -> None:
        async with governed_run():
            items: Any = stream_async(3)
            assert await items.__anext__() == 3
            await items.aclose()

    asyncio.run(main())
    assert reports(fake) == [{"outcome": "succeeded", "detail": "closed before its end"}]


@pytest.mark.parametrize("plain", [False, True], ids=["run", "chain"])
def test_what_a_run_ends_before_is_unknown(fake: FakeService, plain: bool) -> None:
    """A generator that is still read when its run is over, sync or async, has an outcome."""
    configure(fake)

    def around() -> Any:
        return countersign.Chain("plain") if plain else governed_run("run")

    with around():
        items: Any = stream(2)
        next(items)
        pay(1)

    async def main() -> None:
        async with around():
            left: Any = stream_async(2)
            await left.__anext__()
        told.extend(reports(fake))
        await left.aclose()

    told: list[Any] = []
    asyncio.run(main())
    late = {"outcome": "unknown", "detail": "the run ended before it did"}
    assert told == [{"outcome": "succeeded"}, late, late]
    items.close()


def test_a_generator_that_is_closed_on_an_event_loop_is_reported_at_the_end(
    fake: FakeService,
) -> None:
    """Nothing may block the loop, so its outcome goes with the next one, or with the end."""
    configure(fake)

    async def main() -> None:
        async with governed_run():
            items: Any = stream(2)
            assert await asyncio.to_thread(next, items) == 2
            items.close()
            assert reports(fake) == []

    asyncio.run(main())
    assert reports(fake) == [{"outcome": "succeeded", "detail": "closed before its end"}]


def test_a_generator_that_is_collected_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector runs in the middle of anything, such as a delivery of the same chain:
    what it ends is reported later, with the next outcome or in the background."""

    @governed
    def read_pages() -> Iterator[int]:
        yield 1
        yield 2

    def collect_and_encode(event: Any) -> bytes:
        gc.collect()
        told.extend(reports(fake))
        return _redact.encode(event)

    def work() -> None:
        with governed_run() as run:
            pages = [read_pages()]
            assert next(pages[0]) == 1
            pages.append(pages)  # type: ignore[arg-type]  # a cycle: only the collector ends it
            del pages
            with monkeypatch.context() as collecting:
                collecting.setattr(_buffer, "encode", collect_and_encode)
                run.chain.record_agent_action_sync("clerk", "tool_call", "stamp", {})
            pay(1)

    told: list[Any] = []
    with FakeService(fast_path=True) as fake:
        configure(fake)
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        worker.join(20)
        assert not worker.is_alive(), "it waits for itself"
        closed = {"outcome": "succeeded", "detail": "closed before its end"}
        assert told == []
        assert sorted(reports(fake), key=len) == [{"outcome": "succeeded"}, closed]


# The loop is used after its end here, by the client's connections too.
@pytest.mark.filterwarnings("ignore:asynchronous generator:ResourceWarning")
@pytest.mark.parametrize("collected", [True, False], ids=["collected", "end of the loop"])
def test_a_forgotten_async_generator_is_closed_once(fake: FakeService, collected: bool) -> None:
    """An event loop closes the generators that the garbage collector finds, and at its end all that
    are left. It has no error to log if the function's own takes a moment to close."""
    configure(fake)
    closed: list[str] = []
    faults: list[Any] = []

    @governed
    async def read_pages() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0.01)
            closed.append("once")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, fault: faults.append(fault))
        async with governed_run():
            pages: list[Any] = [read_pages()]
            await pages[0].__anext__()
            if collected:
                pages.append(pages)  # a cycle: only the collector ends it
                del pages
                gc.collect()
                await asyncio.sleep(0)  # the loop makes tasks that close what was found
                await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
                gc.collect()  # an error is logged when its task is collected
            else:
                await loop.shutdown_asyncgens()

    asyncio.run(main())
    assert faults == []
    assert closed == ["once"]
    assert reports(fake) == [{"outcome": "succeeded", "detail": "closed before its end"}]


def test_the_end_of_the_interpreter_is_quiet() -> None:
    """A generator that nobody ended, and collections until the very end, print nothing."""
    program = """
import countersign, gc, sys
from countersign.testing import FakeService

@countersign.governed
def pages():
    yield 1
    yield 2

service = FakeService()
countersign.init(**service.settings())
with countersign.governed_run():
    left = pages()
    next(left)
    sys.left = [left]
    sys.left.append(sys.left)
    gc.set_threshold(1)
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_an_interrupted_report_is_made_up_for(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt, such as Ctrl-C, while an outcome is reported does not lose it."""
    receive = fake._receive

    def interrupt_once(call: RecordedCall) -> Any:
        if call.path.endswith("/outcome") and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return receive(call)

    interrupted: list[bool] = []
    monkeypatch.setattr(fake, "_receive", interrupt_once)
    configure(fake)
    with pytest.raises(KeyboardInterrupt), governed_run():
        pay(1)
    assert interrupted
    assert reports(fake) == [{"outcome": "succeeded"}]


def test_generators_keep_their_protocol(fake: FakeService) -> None:
    """Values are sent, exceptions thrown and results returned as without a decorator."""
    configure(fake)

    @governed
    def echo() -> Any:
        got = yield "first"
        try:
            got = yield got
        except KeyError:
            got = yield "caught"
        return got

    @governed
    async def echo_async() -> Any:
        got = yield "first"
        try:
            got = yield got
        except KeyError:
            yield "caught"

    with governed_run():
        items = echo()
        assert (next(items), items.send(1), items.throw(KeyError())) == ("first", 1, "caught")
        with pytest.raises(StopIteration) as stop:
            items.send("end")
        assert stop.value.value == "end"

    async def main() -> None:
        async with governed_run():
            items = echo_async()
            assert await items.__anext__() == "first"
            assert await items.asend(1) == 1
            assert await items.athrow(KeyError()) == "caught"
            with pytest.raises(StopAsyncIteration):
                await items.__anext__()

    asyncio.run(main())
    assert reports(fake) == [{"outcome": "succeeded"}] * 2


def test_an_outcome_that_cannot_be_reported_is_reported_later(fake: FakeService) -> None:
    """The result is not lost, and neither is its outcome: it is reported as soon as the service can
    be reached, whatever the run does meanwhile."""
    configure(fake)

    @governed
    def last() -> str:
        fake.go_offline()
        return "done"

    with governed_run():
        assert last() == "done"
        assert reports(fake) == []
        fake.come_back()
        assert countersign.flush()
        assert reports(fake) == [{"outcome": "succeeded"}]
    assert reports(fake) == [{"outcome": "succeeded"}]


def test_an_outage_does_not_delay_calls_more_and_more(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that ends during an outage tries once, after the first has noticed it, however many
    outcomes wait. All of them are reported before the chain is completed."""
    receive, tried = fake._receive, []

    def count(call: RecordedCall) -> Any:
        if threading.current_thread() is threading.main_thread():
            tried.append(call.path)
        return receive(call)

    monkeypatch.setattr(fake, "_receive", count)
    configure(fake)
    attempts = []
    with governed_run():
        items = [stream(amount) for amount in (1, 2, 3)]
        for item in items:
            next(item)
        fake.go_offline()
        for item in items:
            tried.clear()
            item.close()  # type: ignore[attr-defined]
            attempts.append(len(tried))
    assert attempts[1:] == [1, 1]
    assert [chain["status"] for chain in fake.chains] == ["active"]
    fake.come_back()
    assert countersign.flush()
    assert [chain["status"] for chain in fake.chains] == ["completed"]
    assert [event["outcome"] for event in fake.events] == ["succeeded"] * 3


@pytest.mark.parametrize("reporter", ["the call's thread", "the background"])
def test_a_chain_waits_for_the_outcomes_that_are_on_their_way(
    reporter: str, fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may be reporting an outcome when the run ends. It is recorded before the chain
    is completed, and not refused because the chain is sealed."""
    receive = fake._receive
    on_its_way, arrives = threading.Event(), threading.Event()

    def hold(call: RecordedCall) -> Any:
        if call.path.endswith("/complete"):
            arrives.set()
        elif call.path.endswith("/outcome") and threading.current_thread() is not main:
            on_its_way.set()
            arrives.wait(10)
        return receive(call)

    def let_arrive(*args: Any) -> Any:
        arrives.set()
        return wait(*args)

    main = threading.main_thread()
    monkeypatch.setattr(fake, "_receive", hold)
    configure(fake)
    calls: list[threading.Thread] = []
    with governed_run():
        if reporter == "the background":
            items = stream(1)
            next(items)
            fake.go_offline()
            items.close()  # type: ignore[attr-defined]
            fake.come_back()
        else:
            calls.append(threading.Thread(target=pay, args=(1,)))
            calls[0].start()
        assert on_its_way.wait(10)
        monkeypatch.setattr(_steps, "wait", let_arrive)
    for call in calls:
        call.join(10)
    assert countersign.flush()
    assert [event.get("outcome") for event in fake.events] == ["succeeded"]
    assert [chain["status"] for chain in fake.chains] == ["completed"]


def test_a_chain_does_not_wait_for_a_report_that_nobody_carries_on(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event loop was stopped in the middle of a report. A request has a deadline, and so has the
    chain's wait for it."""
    receive: Any = fake._receive
    held: Future[None] = Future()

    def hold(call: RecordedCall) -> Any:
        if held.done() or not call.path.endswith("/outcome"):
            return receive(call)
        loop.call_soon(loop.stop)
        return Hold(held, 60, lambda: receive(call))

    monkeypatch.setattr(fake, "_receive", hold)
    monkeypatch.setattr(_transport, "_AFTER_SILENCE", 0)
    configure(fake, backend_timeout_seconds=0.05)
    loop = asyncio.new_event_loop()
    with governed_run():
        call = loop.create_task(pay_async(1))
        loop.run_forever()
    assert [chain["status"] for chain in fake.chains] == ["completed"]
    held.set_result(None)
    assert loop.run_until_complete(call) == 1
    loop.close()
    assert countersign.flush()


def test_the_outcome_of_a_call_that_outlasts_its_run_comes_before_the_chains_end(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service cannot be reached when the run ends, nor when a call ends after it. Once it can
    be, the outcome is reported first; it is unknown if the background took it before its end."""
    receive = fake._receive
    asked, decided = threading.Event(), threading.Event()

    def hold(call: RecordedCall) -> Any:
        answer = receive(call)
        if call.path.endswith("/events"):
            asked.set()
            decided.wait(10)
        return answer

    monkeypatch.setattr(fake, "_receive", hold)
    configure(fake)
    with governed_run():
        call = threading.Thread(target=pay, args=(1,))
        call.start()
        assert asked.wait(10)
        fake.go_offline()
    decided.set()
    call.join(10)
    fake.come_back()
    assert countersign.flush()
    assert [event.get("outcome") in ("succeeded", "unknown") for event in fake.events] == [True]
    assert [chain["status"] for chain in fake.chains] == ["completed"]


def refusing_outcomes(fake: FakeService, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While the event is set, the service refuses outcomes for now."""
    receive, refusing = fake._receive, threading.Event()

    def refuse(call: RecordedCall) -> Any:
        if refusing.is_set() and call.path.endswith("/outcome"):
            return Answer(429, {"code": "rate_limited", "detail": "too many requests"})
        return receive(call)

    monkeypatch.setattr(fake, "_receive", refuse)
    return refusing


def test_an_action_does_not_wait_for_the_outcomes_of_others(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage the service answers again, but refuses outcomes for a while. The next action
    is decided all the same, and no outcome is lost."""
    refusing = refusing_outcomes(fake, monkeypatch)
    configure(fake, fail_modes={"default": "allow"})
    with governed_run():
        fake.go_offline()
        assert pay(1) == 1
        refusing.set()
        fake.come_back()
        assert pay(2) == 2
        refusing.clear()
    assert [event.get("outcome") for event in fake.events] == ["succeeded"] * 2


def test_a_call_after_an_outage_does_not_report_all_that_waits(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each outcome is a request. After a long outage there are many, and the first call would be
    held up by all of them. They are left to the background, and reported before the chain ends."""
    receive = fake._receive
    reported: list[RecordedCall] = []

    def count(call: RecordedCall) -> Any:
        if is_back.is_set() and call.path.endswith("/outcome"):
            if threading.current_thread() is threading.main_thread():
                reported.append(call)
            else:
                ended.wait(10)
        return receive(call)

    is_back, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(fake, "_receive", count)
    configure(fake)
    with governed_run():
        items = [stream(amount) for amount in range(100)]
        for item in items:
            next(item)
        fake.go_offline()
        for item in items:
            item.close()  # type: ignore[attr-defined]
        is_back.set()
        fake.come_back()
        assert pay(1) == 1
        assert 1 <= len(reported) <= 10
        ended.set()
    assert [event.get("outcome") for event in fake.events] == ["succeeded"] * 101


def test_the_log_says_why_outcomes_are_reported_later(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A service that answers with an error can be reached. An outage later in the chain is logged
    too, because it decides about actions."""
    refusing = refusing_outcomes(fake, monkeypatch)
    configure(fake, fail_modes={"default": "allow"})
    refusing.set()
    with governed_run():
        assert [pay(1), pay(1)] == [1, 1]
        told = [record.getMessage() for record in caplog.records]
        fake.go_offline()
        assert [pay(2), pay(2)] == [2, 2]
        refusing.clear()
        fake.come_back()
    later = "countersign: outcomes are reported later"
    assert told == [f"{later}: the service answered 429: too many requests"]
    outages = [r.getMessage() for r in caplog.records if "is unreachable" in r.getMessage()]
    assert [text.rpartition(": ")[2] for text in outages] == ["the fail modes decide"]


def test_a_function_that_returns_a_coroutine_is_reported_when_that_ends(fake: FakeService) -> None:
    configure(fake)

    async def inner() -> str:
        raise KeyError("a secret text")

    @governed
    def outer() -> Any:
        return inner()

    with governed_run():
        made = outer()
        assert reports(fake) == []
        with pytest.raises(KeyError):
            asyncio.run(made)
        assert reports(fake) == [{"outcome": "failed", "detail": "KeyError"}]


# -- a denial for the model -----------------------------------------------------------------


def test_a_denial_can_be_told_to_the_model(fake: FakeService) -> None:
    """As the result, with the true reason; the run goes on, and the chain has it on record."""
    configure(fake)
    tell = governed(on_denial="tell_model")

    @tell
    def sync() -> str:
        return "ran"

    @tell
    async def coroutine() -> str:
        return "ran"

    @tell
    def items() -> Iterator[str]:
        yield "ran"

    @tell
    async def items_async() -> AsyncIterator[str]:
        yield "ran"

    async def main() -> list[Any]:
        async with governed_run("x"):
            return [await coroutine(), *[i async for i in items_async()]]

    def deny_two() -> None:
        for _ in range(2):
            fake.script("deny", decision_reason="over budget", policy_name="cap")

    deny_two()
    with governed_run("x"):
        told = [sync(), *items()]
        assert sync() == "ran"
    deny_two()
    told += asyncio.run(main())
    assert len(told) == 4
    for text in told:
        assert "was denied by policy 'cap': over budget" in text
    assert [e["status"] for e in fake.events].count("denied") == 4


def test_a_denial_of_another_call_is_not_told_as_the_result(fake: FakeService) -> None:
    """The run has ended: that is raised, also from what would tell its own denial."""
    configure(fake)
    fake.script("deny")
    with pytest.raises(countersign.ActionDeniedError), governed_run():
        with pytest.raises(countersign.ActionDeniedError):
            pay(5)
        with pytest.raises(countersign.ActionDeniedError):
            governed(on_denial="tell_model")(_pay)(6)
    assert RAN == []


def test_a_stop_is_not_told_to_the_model_but_ends_the_run(fake: FakeService) -> None:
    configure(fake)
    fake.activate_kill_switch()
    with pytest.raises(countersign.KillSwitchActiveError), governed_run():
        governed(on_denial="tell_model")(_pay)(5)
    assert RAN == []


# -- events that the service refuses --------------------------------------------------------------


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("plain", [False, True], ids=["run", "chain"])
def test_an_event_that_is_refused_while_its_outcome_is_reported_is_raised(
    plain: bool, sync: bool
) -> None:
    """The call was decided here and has run. It is in no record, which is no mere warning."""

    @governed
    def look_up(n: int) -> int:
        return n

    @governed(name="look_up")
    async def look_up_async(n: int) -> int:
        return n

    def refuse(call: RecordedCall) -> Any:
        if call.path.endswith("/batch"):
            return Answer(403, {"code": "agent_not_allowed", "detail": "the key is another's"})
        return receive(call)

    async def main() -> None:
        async with countersign.Chain("refused") if plain else governed_run("refused"):
            assert await look_up_async(1) == 1

    with FakeService(fast_path=True) as fake:
        config = configure(fake)
        receive = config.transport._handle  # type: ignore[union-attr]
        config.transport._handle = refuse  # type: ignore[union-attr]
        with pytest.raises(countersign.APIError, match=r"an earlier action.*key is another") as no:
            if sync:
                with countersign.Chain("refused") if plain else governed_run("refused"):
                    assert look_up(1) == 1
            else:
                asyncio.run(main())
        assert no.value.code == "agent_not_allowed"
        assert fake.events == []
