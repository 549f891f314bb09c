"""``governed``: a call belongs to the run that is open around it, in every thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import countersign
from conftest import configure
from countersign import governed_run
from countersign.testing import FakeService
from forms import (
    RAN,
    pay,
    pay_async,
    start_over,
)


@pytest.fixture(autouse=True)
def _nothing_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    start_over(monkeypatch)


def test_calls_belong_to_the_chain_that_is_open_around_them(fake: FakeService) -> None:
    """The innermost one; and a denial can be caught there, as nothing latches it."""
    configure(fake)
    with countersign.Chain("outer"):
        pay(1)
        with countersign.Chain("inner"):
            pay(2)
        pay(3)
        fake.script("deny")
        with pytest.raises(countersign.ActionDeniedError):
            pay(4)
        pay(5)
    chains = {chain["id"]: chain["name"] for chain in fake.chains}
    assert [chains[event["chain_id"]] for event in fake.events] == [
        "outer",
        "inner",
        "outer",
        "outer",
        "outer",
    ]
    assert {event["agent_name"] for event in fake.events} == {"inner", "outer"}
    assert RAN == [1, 2, 3, 5]


def test_a_run_inside_of_another_names_its_agent(fake: FakeService) -> None:
    """Its calls are its agent's, in the chain of the run around it, and its denial ends both."""
    configure(fake)
    with pytest.raises(countersign.ActionDeniedError) as caught, governed_run("outer") as outer:
        pay(1)
        with pytest.raises(countersign.ActionDeniedError) as inner:
            with governed_run(agent="payer") as run:
                pay(2)
                fake.script("deny")
                with contextlib.suppress(countersign.ActionDeniedError):
                    pay(3)
            raise AssertionError("the inner run did not raise")
        assert run.denial is outer.denial is inner.value
        with contextlib.suppress(countersign.ActionDeniedError):
            pay(4)
    assert caught.value is inner.value
    assert [event["agent_name"] for event in fake.events] == ["outer", "payer", "payer"]
    assert len(fake.chains) == 1
    assert RAN == [1, 2]


def test_two_runs_at_once_keep_their_calls_apart(fake: FakeService) -> None:
    configure(fake)

    async def one(name: str, amount: int) -> None:
        async with governed_run(name):
            for _ in range(3):
                await asyncio.gather(pay_async(amount), pay_async(amount))

    async def main() -> None:
        await asyncio.gather(one("a", 1), one("b", 2))

    asyncio.run(main())
    chains = {chain["id"]: chain["name"] for chain in fake.chains}
    assert {(chains[e["chain_id"]], e["payload"]["amount"]) for e in fake.events} == {
        ("a", 1),
        ("b", 2),
    }


def test_a_sync_function_on_an_event_loop_is_refused(fake: FakeService) -> None:
    """It would stop the loop while it waits. The refusal surfaces though the agent goes on."""
    configure(fake)

    async def main() -> None:
        async with governed_run():
            try:
                pay(5)
            except RuntimeError:
                pass  # as a framework does
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="to_thread"):
        asyncio.run(main())
    assert RAN == []


def _threads(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


class _Started(threading.Thread):
    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call

    def run(self) -> None:
        self._call()


def _subclass(call: Callable[[], Any]) -> None:
    thread = _Started(call)
    thread.start()
    thread.join()


def _timer(call: Callable[[], Any]) -> None:
    timer = threading.Timer(0, call)
    timer.start()
    timer.join()


def _pool(call: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


def _mapped(call: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: call(), [0]))


def _nested(call: Callable[[], Any]) -> None:
    _pool(lambda: _threads(call))


@pytest.mark.parametrize("start", [_threads, _subclass, _timer, _pool, _mapped, _nested])
def test_threads_and_pools_of_a_run_belong_to_it(
    fake: FakeService, start: Callable[[Callable[[], Any]], None]
) -> None:
    configure(fake)
    with governed_run("run"):
        start(lambda: pay(5))
    assert RAN == [5]
    assert len(fake.chains) == len(fake.events) == 1


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor], ids=["default", "own"])
def test_executors_of_a_loop_belong_to_the_run(fake: FakeService, executor: Any) -> None:
    configure(fake)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        pool = executor and executor(1)
        async with governed_run("run"):
            await loop.run_in_executor(pool, pay, 1)
            await asyncio.to_thread(pay, 2)
        if pool:
            pool.shutdown()

    asyncio.run(main())
    assert RAN == [1, 2]
    assert len(fake.chains) == 1


def test_a_pool_that_outlives_a_run_serves_each_run_as_its_own(fake: FakeService) -> None:
    """A worker that was started in one run has nothing of it left in the next, or outside."""
    configure(fake)
    with ThreadPoolExecutor(1) as pool:
        for amount in (1, 2):
            with governed_run(f"run {amount}"):
                pool.submit(pay, amount).result()
        with pytest.raises(RuntimeError, match="no run is open here"):
            pool.submit(pay, 3).result()
    assert RAN == [1, 2]
    chains = {chain["id"]: chain["name"] for chain in fake.chains}
    assert [chains[event["chain_id"]] for event in fake.events] == ["run 1", "run 2"]


def test_a_thread_that_a_run_did_not_start_is_refused_unless_its_work_is_carried(
    fake: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    configure(fake)
    work: list[Callable[[], Any]] = []
    errors: list[Exception] = []
    ready, done = threading.Semaphore(0), threading.Semaphore(0)

    def worker() -> None:
        for _ in range(2):
            ready.acquire()
            try:
                work.pop()()
            except Exception as error:
                errors.append(error)
            done.release()

    thread = threading.Thread(target=worker)
    thread.start()
    with governed_run():
        for call in (lambda: pay(1), countersign.carry(lambda: pay(2))):
            work.append(call)
            ready.release()
            done.acquire()
    thread.join()
    assert RAN == [2]
    (error,) = errors
    assert "carry" in str(error)
    assert "no run is open here" in caplog.text


def test_a_call_after_its_run_has_ended_is_refused(fake: FakeService) -> None:
    """A task or thread that outlives its run records nothing in it. A new run can be opened."""
    configure(fake)
    with governed_run():
        late = countersign.carry(lambda: pay(1))

        def again() -> None:
            with governed_run("again"):
                pay(2)

        later = countersign.carry(again)
    with pytest.raises(RuntimeError, match="has ended"):
        late()
    later()
    assert RAN == [2]
    with pytest.raises(RuntimeError, match="inside a run"):
        countersign.carry(again)
