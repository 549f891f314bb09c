"""``governed``: any Python function is decided before its body runs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

import countersign
from conftest import configure
from countersign import _transport, governed, governed_run
from countersign.testing import FakeService
from server import Server

RAN: list[Any] = []
"""What the bodies of the functions below were called with."""


@pytest.fixture(autouse=True)
def _nothing_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    RAN.clear()
    monkeypatch.setattr(_transport, "_FIRST_BACKOFF", 0.001)


@governed
def pay(amount: int, currency: str = "USD") -> int:
    RAN.append(amount)
    if amount < 0:
        raise ValueError("a secret text")
    return amount


@governed
async def pay_async(amount: int, currency: str = "USD") -> int:
    RAN.append(amount)
    await asyncio.sleep(0)
    if amount < 0:
        raise ValueError("a secret text")
    return amount


@governed
def stream(amount: int, currency: str = "USD") -> Iterator[int]:
    RAN.append(amount)
    yield amount
    if amount < 0:
        raise ValueError("a secret text")


@governed
async def stream_async(amount: int, currency: str = "USD") -> AsyncIterator[int]:
    RAN.append(amount)
    yield amount
    if amount < 0:
        raise ValueError("a secret text")


def _pay(amount: int, currency: str = "USD") -> int:
    RAN.append(amount)
    if amount < 0:
        raise ValueError("a secret text")
    return amount


class Till:
    @governed
    def method(self, amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    @governed
    async def async_method(self, amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    @governed
    @classmethod
    def outer_class_method(cls, amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    @classmethod
    @governed
    def inner_class_method(cls, amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    @governed
    @staticmethod
    def outer_static_method(amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    @staticmethod
    @governed
    def inner_static_method(amount: int, currency: str = "USD") -> int:
        return _pay(amount)


class Callable_:  # noqa: N801
    """An object that is called."""

    def __call__(self, amount: int, currency: str = "USD") -> int:
        return _pay(amount)


class AsyncCallable:
    async def __call__(self, amount: int, currency: str = "USD") -> int:
        return _pay(amount)


@governed
class Desk:
    """Every public method of it is an action."""

    def method(self, amount: int, currency: str = "USD") -> int:
        return self._unseen(amount)

    async def async_method(self, amount: int, currency: str = "USD") -> int:
        return self._unseen(amount)

    @staticmethod
    def static_method(amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    @classmethod
    def class_method(cls, amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    def __call__(self, amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    def _unseen(self, amount: int) -> int:
        return _pay(amount)


async def _collect(items: AsyncIterator[int]) -> int:
    (item,) = [item async for item in items]
    return item


def _only(items: Iterator[int]) -> int:
    (item,) = items
    return item


def block(amount: int) -> int:
    payload = {"amount": amount, "currency": "USD"}
    with governed(name="block", payload=payload) as decision:
        assert decision.allowed
        return _pay(amount)


async def async_block(amount: int) -> int:
    payload = {"amount": amount, "currency": "USD"}
    async with governed(name="async_block", payload=payload):
        return _pay(amount)


FORMS: dict[str, Callable[[int], Any]] = {
    "pay": pay,
    "pay_async": pay_async,
    "stream": lambda amount: _only(stream(amount)),
    "stream_async": lambda amount: _collect(stream_async(amount)),
    "method": Till().method,
    "async_method": Till().async_method,
    "outer_class_method": Till.outer_class_method,
    "inner_class_method": Till().inner_class_method,
    "outer_static_method": Till.outer_static_method,
    "inner_static_method": Till().inner_static_method,
    "Callable_": governed(Callable_()),
    "AsyncCallable": governed(AsyncCallable()),
    "_pay": governed(functools.partial(_pay, currency="USD")),
    "renamed": governed(name="renamed")(_pay),
    "block": block,
    "async_block": async_block,
    "class.method": Desk().method,
    "class.async_method": Desk().async_method,
    "class.static_method": Desk.static_method,
    "class.class_method": Desk.class_method,
    "class.__call__": Desk(),
}
each_form = pytest.mark.parametrize("form", list(FORMS))


def run(form: str, amount: int) -> Any:
    """Call one form in a run of its own: in a thread without a loop, or on one."""
    call = FORMS[form]
    if "async" not in form.lower():
        with governed_run("test", agent="clerk"):
            return call(amount)

    async def main() -> Any:
        async with governed_run("test", agent="clerk"):
            made: Awaitable[Any] = call(amount)
            return await made

    return asyncio.run(main())


def reports(fake: FakeService) -> list[dict[str, Any]]:
    """The outcomes as they were sent."""
    return [call.body for call in fake.calls if call.path.endswith("/outcome")]


@each_form
def test_an_allowed_call_is_recorded_runs_once_and_has_an_outcome(
    fake: FakeService, form: str
) -> None:
    """One record, with all arguments and without the receiver; one body; one outcome."""
    configure(fake)
    assert run(form, 5) == 5
    assert RAN == [5]
    (event,) = fake.events
    assert event["agent_name"] == "clerk"
    assert event["action_type"] == "tool_call"
    assert event["action_name"] == form.rpartition(".")[2]
    assert event["payload"] == {"amount": 5, "currency": "USD"}
    assert reports(fake) == [{"outcome": "succeeded"}]
    assert fake.chains[0]["status"] == "completed"


@each_form
@pytest.mark.parametrize("stop", ["deny", "kill switch", "offline"])
def test_a_call_that_is_not_allowed_does_not_run(fake: FakeService, form: str, stop: str) -> None:
    """The body does not begin, the exception is the client's own, and the chain failed."""
    configure(fake)
    expected: type[Exception] = countersign.ActionDeniedError
    before = FORMS[form]

    def stopped(amount: int) -> Any:
        if stop == "offline":
            fake.go_offline()
        return before(amount)

    if stop == "deny":
        fake.script("deny", decision_reason="over budget")
    elif stop == "kill switch":
        expected = countersign.KillSwitchActiveError
        fake.activate_kill_switch()
    else:
        expected = countersign.BackendUnavailableError
    FORMS[form] = stopped
    try:
        with pytest.raises(expected):
            run(form, 5)
    finally:
        FORMS[form] = before
        fake.come_back()
    assert RAN == []
    assert reports(fake) == []
    if stop != "offline":
        assert fake.chains[0]["status"] == "failed"


@each_form
def test_a_call_that_fails_reports_the_errors_type_and_never_its_text(
    fake: FakeService, form: str
) -> None:
    configure(fake)
    with pytest.raises(ValueError, match="a secret text"):
        run(form, -5)
    assert RAN == [-5]
    assert reports(fake) == [{"outcome": "failed", "detail": "ValueError"}]
    assert len(fake.events) == 1


@each_form
def test_a_call_outside_of_a_run_is_refused(
    fake: FakeService, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing runs ungoverned: the refusal is raised, and in the log, as frameworks swallow it."""
    configure(fake)
    with pytest.raises(RuntimeError, match="governed_run"):
        made = FORMS[form](5)
        if inspect.isawaitable(made):

            async def main() -> None:
                await made

            asyncio.run(main())
    assert RAN == []
    assert fake.calls == []
    assert "no run is open here" in caplog.text


@each_form
def test_every_run_of_a_body_has_its_own_record(fake: FakeService, form: str) -> None:
    configure(fake)
    run(form, 5)
    run(form, 5)
    assert RAN == [5, 5]
    assert len(fake.events) == 2
    assert len({event["idempotency_key"] for event in fake.events}) == 2


@each_form
def test_what_a_person_approves_runs_and_what_a_person_denies_does_not(
    fake: FakeService, form: str
) -> None:
    configure(fake)
    for verdict in (fake.approve, fake.deny):
        RAN.clear()
        fake.script("require_approval", decision_reason="ask")
        decider = threading.Thread(target=_decide_the_next, args=(fake, verdict))
        decider.start()
        if verdict == fake.approve:
            assert run(form, 5) == 5
            assert RAN == [5]
        else:
            with pytest.raises(countersign.ActionDeniedError):
                run(form, 5)
            assert RAN == []
        decider.join()


def _decide_the_next(fake: FakeService, verdict: Callable[[str], None]) -> None:
    waited = threading.Event()
    while True:
        pending = [a["id"] for a in fake.approvals if a["status"] == "pending"]
        if pending:
            assert RAN == []
            verdict(pending[0])
            return
        waited.wait(0.002)


# -- arguments -----------------------------------------------------------------------------


def test_arguments_are_recorded_as_they_are_bound(fake: FakeService) -> None:
    """Positional-only, variable and keyword arguments, each under its parameter's name."""
    configure(fake)

    @governed
    def call(first: int, /, second: str = "b", *rest: int, flag: bool = False, **more: Any) -> None:
        pass

    cases: list[tuple[Callable[[], None], dict[str, Any]]] = [
        (
            lambda: call(1),
            {"first": 1, "second": "b", "rest": [], "flag": False, "more": {}},
        ),
        (
            lambda: call(1, "x", 2, 3, flag=True, first=9),
            {"first": 1, "second": "x", "rest": [2, 3], "flag": True, "more": {"first": 9}},
        ),
    ]
    with governed_run():
        for make, _ in cases:
            make()
    assert [event["payload"] for event in fake.events] == [expected for _, expected in cases]


def test_arguments_of_a_partial_are_recorded_whole(fake: FakeService) -> None:
    """What was filled in by position, which the partial's signature does not show, too."""
    configure(fake)
    partial = functools.partial(functools.partial(_pay, 7), currency="EUR")
    with governed_run():
        assert governed(partial)() == 7
    assert fake.events[0]["payload"] == {"amount": 7, "currency": "EUR"}


def test_a_builtin_without_a_signature_is_governed(fake: FakeService) -> None:
    configure(fake)
    with governed_run():
        assert governed(max)(1, 2) == 2
    assert fake.events[0]["payload"] == {"args": [1, 2], "kwargs": {}}


def test_arguments_that_do_not_fit_are_the_callers_error(fake: FakeService) -> None:
    """As without a decorator: a TypeError, nothing recorded, and the run goes on."""
    configure(fake)
    with governed_run():
        with pytest.raises(TypeError, match="amount"):
            pay()  # type: ignore[call-arg]
        assert pay(1) == 1
    assert len(fake.events) == 1


def test_objects_are_recorded_as_the_client_converts_them(fake: FakeService) -> None:
    configure(fake)

    @dataclass
    class Order:
        total: float

    @governed
    def place(order: Order, seen: set[int]) -> None: ...

    with governed_run():
        place(Order(9.5), {2, 1})
    assert fake.events[0]["payload"] == {"order": {"total": 9.5}, "seen": [1, 2]}


def test_the_payload_can_be_made_of_the_arguments(fake: FakeService) -> None:
    configure(fake)
    calls: list[int] = []

    def payload(arguments: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return {"amount_usd": arguments["amount"], "call": len(calls)}

    with governed_run():
        governed(payload=payload, action_type="payment", agent="payer")(_pay)(5)
    (event,) = fake.events
    assert event["payload"] == {"amount_usd": 5, "call": 1}
    assert (event["action_type"], event["agent_name"]) == ("payment", "payer")


def test_named_arguments_are_redacted_and_bound(fake: FakeService) -> None:
    """Whatever they hold and are called; what stood there stays part of the action."""
    configure(fake)

    @governed(redact=["iban", "extra"])
    def wire(iban: str, amount_usd: float, extra: dict[str, Any]) -> None: ...

    with governed_run():
        wire("DE00 0000", 5, {"inner": {"amount": 7000}})
    (event,) = fake.events
    assert event["payload"] == {"iban": "[REDACTED]", "amount_usd": 5, "extra": "[REDACTED]"}
    assert sorted(event["redactions"]) == ["/extra", "/iban"]
    assert all(str(digest).startswith("hmac-sha256:") for digest in event["redactions"].values())
    assert event["found"]["amount_usd"] == 7000


def test_arguments_that_change_while_they_wait_are_refused(fake: FakeService) -> None:
    """What was decided is what runs; the record says that nothing did."""
    configure(fake)
    order = {"amount": 5}

    @governed
    async def place(order: dict[str, int]) -> None:
        RAN.append(order["amount"])

    async def change() -> None:
        while not fake.approvals:
            await asyncio.sleep(0.001)
        order["amount"] = 9000
        fake.approve(fake.approvals[0]["id"])

    async def main() -> None:
        fake.script("require_approval")
        async with governed_run():
            await asyncio.gather(place(order), change())

    with pytest.raises(countersign.PolicyViolationError, match="changed while it waited"):
        asyncio.run(main())
    assert RAN == []
    assert reports(fake) == [{"outcome": "failed", "detail": "PolicyViolationError"}]


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


def test_an_outcome_that_cannot_be_reported_does_not_take_the_result_away(
    fake: FakeService,
) -> None:
    configure(fake)

    @governed
    def last() -> str:
        fake.go_offline()
        return "done"

    with governed_run():
        assert last() == "done"
        fake.come_back()


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


# -- places --------------------------------------------------------------------------------


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
    with pytest.raises(RuntimeError, match="inside of a run"):
        countersign.carry(again)


# -- what is refused -----------------------------------------------------------------------


def test_settings_that_make_no_sense_are_refused() -> None:
    for make in (
        lambda: governed(on_denial="perhaps"),  # type: ignore[call-overload]
        lambda: governed(payload={"a": 1})(_pay),
        lambda: governed(payload="amount"),  # type: ignore[call-overload]
        lambda: governed(pay),
        lambda: governed(name="x")(Till),
        lambda: governed(type("Empty", (), {})),
        lambda: governed().__enter__(),
        lambda: governed(name="x", on_denial="tell_model").__enter__(),
        lambda: governed(name="x", payload=lambda _: {}).__enter__(),
    ):
        with pytest.raises(countersign.ConfigurationError):
            make()
    with pytest.raises(TypeError, match="callable"):
        governed(5)  # type: ignore[call-overload]


def test_a_block_is_entered_once(fake: FakeService) -> None:
    configure(fake)
    block = governed(name="block")
    with governed_run():
        with block:
            pass
        with pytest.raises(RuntimeError, match="once"), block:
            pass
    assert len(fake.events) == 1


def test_a_governed_function_looks_like_the_function() -> None:
    """Frameworks make a tool's description of its name, text, annotations and signature."""
    assert pay.__name__ == "pay"
    assert str(inspect.signature(pay)) == "(amount: 'int', currency: 'str' = 'USD') -> 'int'"
    assert pay.__annotations__["amount"] == "int"
    assert inspect.iscoroutinefunction(pay_async)
    assert inspect.isgeneratorfunction(stream)
    assert inspect.isasyncgenfunction(stream_async)
    called = governed(Callable_())
    assert called.__name__ == "Callable_"  # type: ignore[attr-defined]
    assert list(inspect.signature(called).parameters) == ["amount", "currency"]


def test_a_subclass_inherits_governed_methods(fake: FakeService) -> None:
    configure(fake)

    class Counter(Desk):
        pass

    with governed_run():
        Counter().method(4)
    assert fake.events[0]["payload"] == {"amount": 4, "currency": "USD"}


# -- the real service ----------------------------------------------------------------------


def test_the_real_service_has_the_records_and_outcomes(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Allowed and failed calls, and one that nobody may make, in one chain."""
    server.config()

    @governed(agent="clerk", redact=["iban"])
    def pay_invoice(iban: str, amount_usd: float, currency: str = "USD") -> str:
        if amount_usd == 2:
            raise OSError("a secret text")
        return "paid"

    with caplog.at_level(logging.WARNING), governed_run("functions") as run:
        assert pay_invoice("DE00 0000", 1) == "paid"
        with pytest.raises(OSError, match="a secret text"):
            pay_invoice("DE00 0000", 2)
    assert run.chain.receipt is not None
    events = server.events(run.chain.id)
    assert [event["outcome"]["outcome"] for event in events] == ["succeeded", "failed"]
    assert events[1]["outcome"]["detail"] == "OSError"
    assert events[0]["payload"] == {"iban": "[REDACTED]", "amount_usd": 1, "currency": "USD"}
    assert not caplog.records
