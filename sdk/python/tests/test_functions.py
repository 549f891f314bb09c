"""``governed``: any Python function is decided before its body runs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import AsyncMock

import pytest

import countersign
from clocks import stop_time
from conftest import configure
from countersign import _arguments, _permit, governed, governed_run
from countersign._plain import Snapshot
from countersign.testing import FakeService, RecordedCall
from forms import (
    FORMS,
    RAN,
    Callable_,
    Desk,
    Till,
    _pay,
    each_form,
    pay,
    pay_async,
    reports,
    run,
    start_over,
    stream,
    stream_async,
)
from server import Server


@pytest.fixture(autouse=True)
def _nothing_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    start_over(monkeypatch)


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


def test_arguments_fill_the_placeholders_of_a_partial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a call are recorded where the partial passes them on, in its own places and in those
    of a partial inside it. A call that leaves a place empty is refused, as Python refuses it."""
    place: Any = getattr(functools, "Placeholder", object())  # Python 3.14 and later have it
    monkeypatch.setattr(_arguments, "_PLACEHOLDER", place, raising=False)

    def send(sender: str, receiver: str, text: str, copies: int = 1) -> None: ...

    inner: Any = functools.partial(send, place, place, "hello")
    inner.kept = True  # an attribute keeps a partial of it from taking its arguments over
    for partial in (inner, functools.partial(inner, place, "bob"), functools.partial(inner, "ann")):
        arguments = _arguments.Arguments(partial)
        given = [name for name in ("ann", "bob") if name not in partial.args]
        expected = {"sender": "ann", "receiver": "bob", "text": "hello", "copies": 2}
        assert arguments.of((*given, 2), {}) == expected
        with pytest.raises(TypeError):
            arguments.of(tuple(given[1:]), {})


def test_a_builtin_without_a_signature_is_governed(fake: FakeService) -> None:
    configure(fake)
    with governed_run():
        assert governed(max)(1, 2) == 2
    assert fake.events[0]["payload"] == {"args": [1, 2], "kwargs": {}}


def test_an_object_that_counts_as_a_coroutine_function_is_awaited(fake: FakeService) -> None:
    """Not only by an ``async def __call__``: mocks and objects that are marked as one count too."""
    configure(fake)
    send = AsyncMock(return_value="sent")

    async def main() -> Any:
        async with governed_run():
            return await governed(name="send")(send)("a@example.com")

    assert asyncio.run(main()) == "sent"
    send.assert_awaited_once_with("a@example.com")
    assert reports(fake) == [{"outcome": "succeeded"}]


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


def test_named_arguments_are_redacted_among_arbitrary_keywords(fake: FakeService) -> None:
    """An argument that the signature does not name is redacted by the name that the caller uses."""
    configure(fake)

    @governed(redact=["iban"])
    def wire(amount_usd: float, **details: Any) -> None: ...

    with governed_run():
        wire(5, iban="DE00 0000", note={"iban": "kept"})
    (event,) = fake.events
    details = {"iban": "[REDACTED]", "note": {"iban": "kept"}}
    assert event["payload"] == {"amount_usd": 5, "details": details}
    assert list(event["redactions"]) == ["/details/iban"]


def test_a_name_to_redact_that_no_argument_has_is_refused() -> None:
    """A slip in the name would send the value to the service. It is found when the function is
    decorated, unless the argument may be any keyword's or the payload's own."""

    def wire(iban: str, *notes: str) -> None: ...
    async def wire_async(iban: str) -> None: ...
    def wire_any(amount_usd: float, **details: Any) -> None: ...

    class Bank:
        def wire(self, iban: str) -> None: ...
        def balance(self) -> None: ...
        @staticmethod
        def convert(amount: float) -> None: ...

    targets: list[Any] = [
        wire,
        wire_async,
        functools.partial(wire, "DE00 0000"),
        staticmethod(wire),
        Bank,
        Bank().wire,
    ]
    for target in targets:
        with pytest.raises(countersign.ConfigurationError, match="redact names 'ibn'"):
            governed(redact=["iban", "ibn"])(target)
    with pytest.raises(countersign.ConfigurationError, match="redact names 'self'"):
        governed(redact="self")(Bank)
    governed(redact=["ibn"])(wire_any)
    governed(redact=["ibn"], payload=lambda arguments: {"ibn": arguments["iban"]})(wire)
    governed(redact=["iban", "notes"])(wire)
    governed(redact=["iban", "amount"])(Bank)


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


@pytest.mark.parametrize("kind", ["cached", "partial", "dispatched", "decorated"])
@pytest.mark.parametrize("inside", [False, True])
def test_methods_that_are_no_functions(fake: FakeService, kind: str, inside: bool) -> None:
    """A class governs such a method if the function inside is governed, and is refused otherwise:
    no public method of it runs without a record."""
    configure(fake)

    def spend(self: Any, amount: int) -> None:
        RAN.append(amount)

    function = governed(spend) if inside else spend
    methods: dict[str, Any] = {
        "cached": functools.lru_cache(function),
        "partial": functools.partialmethod(function, amount=7),
        "dispatched": functools.singledispatchmethod(function),
        "decorated": _Method(function),
    }
    owner = type("Owner", (), {"spend": methods[kind], "look": lambda self: None})
    if not inside:
        with pytest.raises(countersign.ConfigurationError, match=r"Owner\.spend"):
            governed(owner)
        return
    made: Any = governed(owner)()
    with governed_run():
        made.spend() if kind == "partial" else made.spend(7)
    assert RAN == [7]
    assert [event["action_name"] for event in fake.events] == ["spend"]


class _Method:
    """What a decorator makes that is a class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __get__(self, instance: Any, owner: type) -> Any:
        return functools.partial(self, instance)


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


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("stopped", [False, True], ids=["still allowed", "stopped"])
def test_arguments_that_take_long_to_compare_are_asked_about_again(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch, stopped: bool, sync: bool
) -> None:
    """Millions of values are read once more before the body begins, and the permission runs out
    meanwhile. The stop that came in between was answered already."""
    clock = stop_time(configure(fake))
    reads = []

    class Slow(Snapshot):
        def __init__(self, value: Any) -> None:
            super().__init__(value)
            reads.append(value)
            if len(reads) == 2:
                clock.pass_time(1.5)
                if stopped:
                    fake.activate_kill_switch("fire")

    async def main() -> None:
        async with governed_run():
            await pay_async(9)

    monkeypatch.setattr(_permit, "Snapshot", Slow)
    refused = pytest.raises(countersign.KillSwitchActiveError, match="fire")
    with refused if stopped else nullcontext():
        if sync:
            with governed_run():
                pay(9)
        else:
            asyncio.run(main())
    assert len(RAN) == (not stopped)
    (event,) = fake.events
    assert event["outcome"] == ("failed" if stopped else "succeeded")


def test_arguments_that_change_while_they_are_asked_about_again_are_refused(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compared before the second request says nothing about what another thread does
    until its answer."""
    config = configure(fake)
    clock = stop_time(config)
    receive = fake._receive
    order = {"amount": 9}
    asked = []

    class Slow(Snapshot):
        def __init__(self, value: Any) -> None:
            super().__init__(value)
            clock.pass_time(0.2)

    def change_at_the_second(call: RecordedCall) -> Any:
        answer = receive(call)
        if call.path.endswith("/events"):
            asked.append(call)
            if len(asked) == 2:
                order["amount"] = 9000
        return answer

    @governed
    def pay_for(order: dict[str, int]) -> None:
        RAN.append(order)

    monkeypatch.setattr(_permit, "Snapshot", Slow)
    monkeypatch.setattr(config.transport, "_handle", change_at_the_second)
    with pytest.raises(countersign.PolicyViolationError, match="changed"), governed_run():
        pay_for(order)
    assert len(asked) == 2
    assert RAN == []
    (event,) = fake.events
    assert event["outcome"] == "failed"
