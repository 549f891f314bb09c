"""Calls: retries, deadlines, refusals."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import pytest

import countersign
from clocks import stop_time
from countersign import ChainConfig, _clients, _transport
from countersign._client import transport_of
from countersign._secret import SecretStr
from countersign._steps import Pause, Reply, Send, Steps
from countersign.testing import FakeService, example_api_key

CHAIN = {"id": "c1", "fast_path": False, "fail_modes": {"default": "allow"}}
DECISION = {"policy_decision": "allow"}


def configure(
    handler: Callable[[httpx.Request], httpx.Response], **settings: Any
) -> countersign.ChainConfig:
    settings.setdefault("fail_mode", "deny")
    return countersign.init(example_api_key(), transport=httpx.MockTransport(handler), **settings)


class Script:
    """Answers events with what it is given, in order, and everything else well."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.events: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            self.events.append(request)
            answer = self.answers.pop(0) if self.answers else httpx.Response(200, json=DECISION)
            if isinstance(answer, Exception):
                raise answer
            return answer
        if request.url.path.endswith("/complete"):
            return httpx.Response(200, json={**CHAIN, "receipt": {"receipt_number": "x"}})
        return httpx.Response(201, json=CHAIN)


def record(script: Script, **settings: Any) -> countersign.PolicyDecision:
    configure(script, **settings)
    with countersign.Chain("test") as chain:
        return chain.record_agent_action_sync("a", "t", "n", {})


FAULTS: dict[str, httpx.Response | Exception] = {
    "refused": httpx.ConnectError("x"),
    "reset": httpx.ReadError("x"),
    "slow": httpx.ReadTimeout("x"),
    "cut": httpx.RemoteProtocolError("x"),
    "500": httpx.Response(500, json={"code": "internal"}),
    "502": httpx.Response(502, text="<html>"),
    "503": httpx.Response(503, json={"code": "outcome_unknown"}),
    "429": httpx.Response(429, headers={"retry-after": "0"}, json={}),
    "no JSON": httpx.Response(200, text="<html>hello</html>"),
    "no object": httpx.Response(200, json=[1]),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_passing_fault_is_retried_under_the_same_key(fault: httpx.Response | Exception) -> None:
    script = Script(fault)
    assert record(script).allowed
    first, second = script.events
    assert first.content == second.content
    assert b"idempotency_key" in first.content


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 415, 422])
def test_a_refusal_is_never_retried(status: int) -> None:
    problem = {
        "detail": "no",
        "code": "some_code",
        "request_id": "req_1",
        "errors": [{"pointer": "/payload", "detail": "is bad"}],
    }
    script = Script(httpx.Response(status, json=problem))
    with pytest.raises(countersign.APIError) as refused:
        record(script)
    error = refused.value
    assert (error.status, error.code, error.request_id) == (status, "some_code", "req_1")
    assert error.errors == ({"pointer": "/payload", "detail": "is bad"},)
    assert str(error) == f"the service answered {status}: no (/payload is bad)"
    assert len(script.events) == 1


def test_a_redirect_names_the_parameter() -> None:
    with pytest.raises(countersign.APIError, match="backend_url"):
        record(Script(httpx.Response(301, headers={"location": "https://x.invalid/"})))


@pytest.mark.parametrize(
    ("status", "code"), [(500, "internal"), (503, "outcome_unknown"), (429, "rate_limited")]
)
def test_a_lasting_refusal_is_an_answer(status: int, code: str) -> None:
    script = Script(*[httpx.Response(status, json={"code": code})] * 10)
    with pytest.raises(countersign.APIError) as refused:
        record(script, fail_mode="allow")
    assert (refused.value.status, refused.value.code) == (status, code)
    assert len(script.events) == 4


@pytest.mark.parametrize("code", ["evidence_tampered", "store_rolled_back"])
def test_what_somebody_must_look_at_is_not_asked_again(code: str) -> None:
    script = Script(httpx.Response(500, json={"code": code}))
    with pytest.raises(countersign.APIError):
        record(script)
    assert len(script.events) == 1


def test_a_lasting_fault_ends_as_unavailable() -> None:
    script = Script(*[httpx.ConnectError("x")] * 10)
    with pytest.raises(countersign.BackendUnavailableError, match="ConnectError"):
        record(script)
    assert len(script.events) == 4


def perform(steps: Steps[Any], *answers: Reply | Exception) -> tuple[list[Any], Any]:
    """Drive steps by hand: what they asked for, and how they ended."""
    asked: list[Any] = []
    left = list(answers)
    try:
        effect = next(steps)
        while True:
            asked.append(effect)
            if isinstance(effect, Send):
                answer = left.pop(0)
                effect = (
                    steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
                )
            else:
                effect = steps.send(None)
    except StopIteration as stop:
        return asked, stop.value
    except Exception as error:
        return asked, error


def call(**settings: Any) -> Steps[Any]:
    config = configure(Script(), **settings)
    return transport_of(config).call("GET", "/x")


def test_the_pauses_between_retries_grow_and_vary() -> None:
    asked, result = perform(call(), *[Reply(503, {}, b"")] * 4)
    assert isinstance(result, _transport.Unreachable)
    pauses = [effect.seconds for effect in asked if isinstance(effect, Pause)]
    assert len(pauses) == 3
    for i, pause in enumerate(pauses):
        assert 0.05 * 2**i <= pause <= 0.1 * 2**i


def test_retry_after_is_honoured() -> None:
    busy = Reply(429, {"retry-after": "2"}, b"")
    asked, result = perform(call(), busy, Reply(200, {}, b'{"a":1}'))
    assert result == {"a": 1}
    assert [e.seconds for e in asked if isinstance(e, Pause)] == [2.0]


NOON = "Tue, 17 Nov 2026 12:00:00 GMT"
DATES = {
    "a date": (["Tue, 17 Nov 2026 12:00:02 GMT"], [2.0]),
    "the form of RFC 850": (["Tuesday, 17-Nov-26 12:00:02 GMT"], [2.0]),
    "the form of asctime": (["Tue Nov 17 12:00:02 2026"], [2.0]),
    "by the clock of whoever answers": (
        ["Tue, 17 Nov 2026 18:00:03 GMT", "Tue, 17 Nov 2026 18:00:00 GMT"],
        [3.0],
    ),
    "by ours, if the answer's date is none": (["Tue, 17 Nov 2026 12:00:02 GMT", "noon"], [2.0]),
    "too far away": (["Tue, 17 Nov 2026 12:01:00 GMT"], []),
    "very far away": (["Fri, 31 Dec 9999 23:59:59 GMT"], []),
}


@pytest.mark.parametrize(("headers", "pauses"), DATES.values(), ids=DATES.keys())
def test_a_date_in_retry_after_is_honoured(headers: list[str], pauses: list[float]) -> None:
    """Proxies may answer with a date in place of seconds: the client waits until then, or gives up
    at once if its own time-out is over first."""
    config = configure(Script())
    stop_time(config, wall=parsedate_to_datetime(NOON).timestamp())
    busy = Reply(429, dict(zip(("retry-after", "date"), headers, strict=False)), b"")
    asked, result = perform(transport_of(config).call("GET", "/x"), busy, Reply(200, {}, b"{}"))
    assert [e.seconds for e in asked if isinstance(e, Pause)] == pauses
    assert isinstance(result, countersign.APIError) is not bool(pauses)


@pytest.mark.parametrize(
    "told",
    ["Tue, 17 Nov 1998 12:00:00 GMT", "soon", "", "-3", "nan", "Tue, 17 Nov 99999999999 12:00 GMT"],
)
def test_a_retry_after_that_says_nothing_leaves_our_own_pause(told: str) -> None:
    """A date that is over and a text that is no time are not waited for, and break nothing."""
    busy = Reply(429, {"retry-after": told}, b"")
    asked, result = perform(call(), busy, Reply(200, {}, b"{}"))
    assert result == {}
    (pause,) = [e.seconds for e in asked if isinstance(e, Pause)]
    assert 0.05 <= pause <= 0.1


def test_a_busy_service_is_asked_again_for_as_long_as_the_time_out_lasts() -> None:
    config = configure(Script(), backend_timeout_seconds=10.0)
    clock = stop_time(config)
    steps = transport_of(config).call("GET", "/x")
    asked = 0
    effect = next(steps)
    with pytest.raises(countersign.APIError) as refused:
        while True:
            if isinstance(effect, Pause):
                clock.pass_time(effect.seconds)
                effect = steps.send(None)
            else:
                asked += 1
                effect = steps.send(Reply(429, {"retry-after": "1"}, b'{"code":"rate_limited"}'))
    assert refused.value.status == 429
    assert asked == 10


def test_a_retry_after_beyond_the_deadline_is_not_waited_for() -> None:
    asked, result = perform(call(), Reply(503, {"retry-after": "60"}, b""))
    assert isinstance(result, _transport.Unreachable)
    assert len(asked) == 1


def test_one_deadline_spans_all_attempts() -> None:
    config = configure(Script(), backend_timeout_seconds=5.0)
    clock = stop_time(config)
    steps = transport_of(config).call("GET", "/x")
    first = next(steps)
    assert isinstance(first, Send)
    assert first.timeout == 5.0
    clock.pass_time(4.0)
    assert isinstance(steps.throw(_transport.Unreachable("reset")), Pause)
    second = steps.send(None)
    assert isinstance(second, Send)
    assert second.timeout == 1.0
    clock.pass_time(1.0)
    with pytest.raises(_transport.Unreachable):
        steps.throw(_transport.Unreachable("reset"))


def test_known_to_be_away_the_service_is_asked_once() -> None:
    config = configure(Script())
    transport = transport_of(config)
    gone = _transport.Unreachable("ConnectError")
    asked, _ = perform(transport.call("GET", "/x"), *[gone] * 4)
    assert sum(isinstance(e, Send) for e in asked) == 4
    asked, _ = perform(transport.call("GET", "/x"), gone)
    assert len(asked) == 1
    asked, result = perform(transport.call("GET", "/x"), Reply(200, {}, b"{}"))
    assert result == {}
    assert not transport.offline


def test_a_silent_service_is_left_alone_for_a_moment() -> None:
    config = configure(Script())
    clock = stop_time(config)
    transport = transport_of(config)
    silent = _transport.Unreachable("ReadTimeout", slow=True)
    perform(transport.call("GET", "/x"), *[silent] * 4)
    asked, result = perform(transport.call("GET", "/x"))
    assert asked == []
    assert isinstance(result, _transport.Unreachable)
    clock.pass_time(2)
    asked, result = perform(transport.call("GET", "/x"), Reply(200, {}, b"{}"))
    assert result == {}


def test_a_long_poll_without_an_answer_says_nothing_about_other_requests() -> None:
    """A network may drop an idle connection without a word, and the service is there all the same.
    The fail modes must not decide what it can be asked about."""
    config = configure(Script())
    stop_time(config)
    transport = transport_of(config)
    silent = _transport.Unreachable("ReadTimeout", slow=True)
    _, result = perform(transport.call("GET", "/approval?wait=30", wait=30), *[silent] * 4)
    assert isinstance(result, _transport.Unreachable)
    assert not transport.offline
    asked, result = perform(transport.call("GET", "/x"), Reply(200, {}, b"{}"))
    assert len(asked) == 1
    assert result == {}
    # A refused connection does.
    refused = _transport.Unreachable("ConnectError", sent=False)
    perform(transport.call("GET", "/approval?wait=30", wait=30), *[refused] * 4)
    assert transport.offline


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_list_that_takes_too_long_says_nothing_about_actions(sync: bool) -> None:
    script = Script()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            raise httpx.ReadTimeout("a large list")
        return script(request)

    async def main() -> None:
        with pytest.raises(countersign.BackendUnavailableError):
            [_ async for _ in countersign.list_chains()]

    stop_time(configure(answer))
    with countersign.Chain("busy") as chain:
        if sync:
            with pytest.raises(countersign.BackendUnavailableError):
                list(countersign.list_chains_sync())
        else:
            asyncio.run(main())
        chain.record_agent_action_sync("a", "tool_call", "pay", {})
    assert len(script.events) == 1


def test_the_key_is_sent_as_a_bearer_and_appears_nowhere_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = Script(httpx.Response(403, json={"detail": "role"}))
    with caplog.at_level(logging.DEBUG), pytest.raises(countersign.APIError) as refused:
        record(script)
    key = example_api_key()
    assert script.events[0].headers["authorization"] == f"Bearer {key}"
    assert key not in caplog.text
    assert key not in repr(refused.value)


def test_an_event_loop_closes_its_connections() -> None:
    closed: list[str] = []

    class Watched(httpx.MockTransport):
        async def aclose(self) -> None:
            closed.append("async")

        def close(self) -> None:
            closed.append("sync")

    async def open_and_leave(config: countersign.ChainConfig) -> None:
        async with countersign.Chain("test", config=config):
            pass
        assert closed == []

    def use(config: countersign.ChainConfig) -> None:
        asyncio.run(open_and_leave(config))
        assert closed == ["async"]
        with countersign.Chain("test", config=config):
            pass
        assert closed == ["async"]

    use(countersign.ChainConfig(example_api_key(), transport=Watched(Script())))
    # With the configuration go the connections that threads used.
    gc.collect()
    assert closed == ["async", "sync"]


@pytest.mark.filterwarnings("ignore:asynchronous generator .* was scheduled after")
def test_a_loop_that_is_used_again_closes_its_connections_again() -> None:
    """Some frameworks end the generators of a loop after each sync call, and use it again."""
    closed: list[str] = []

    class Watched(httpx.MockTransport):
        async def aclose(self) -> None:
            closed.append("async")

    config = countersign.ChainConfig(example_api_key(), transport=Watched(Script()))

    async def main() -> None:
        async with countersign.Chain("test", config=config):
            pass

    loop = asyncio.new_event_loop()
    for times in (1, 2):
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_asyncgens())
        assert closed == ["async"] * times
    loop.close()


@pytest.mark.filterwarnings("ignore:unclosed")
@pytest.mark.filterwarnings("ignore:Exception ignored")
def test_a_loop_that_was_closed_by_hand_is_not_kept() -> None:
    """Its connections cannot be closed any more, only let go: a program that makes a loop for each
    of its jobs would run out of sockets."""

    async def main() -> None:
        async with countersign.Chain("test"):
            pass

    with FakeService() as fake:
        countersign.init(**fake.serve())
        loops = []
        for _ in range(5):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(main())
            loop.close()
            loops.append(weakref.ref(loop))
            del loop
        gc.collect()
        assert [loop() is None for loop in loops] == [True] * 4 + [False]
        asyncio.run(main())
        gc.collect()
        assert loops[-1]() is None


def test_connections_are_closed_by_hand() -> None:
    config = configure(Script())

    async def main() -> None:
        async with countersign.Chain("test"):
            pass
        await countersign.aclose()
        async with countersign.Chain("again"):
            pass

    asyncio.run(main())
    countersign.close(config=config)
    with countersign.Chain("again"):
        pass


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_is_named_with_or_without_its_scheme(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """``http_proxy=proxy.internal:3128`` means the same as with ``http://`` before it."""
    served = fake.serve()
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", scheme + served["backend_url"].removeprefix("http://"))
    config = ChainConfig(served["api_key"], backend_url="http://service.invalid:8080")
    with countersign.Chain("x", config=config):
        pass
    assert fake.calls[0].path == "http://service.invalid:8080/v1/chains"
    countersign.close(config=config)


@pytest.mark.parametrize(
    ("exempt", "used"),
    [("service.invalid", False), ("service.invalid:8080", False), ("service.invalid:9", True)],
)
def test_no_proxy_names_a_host_with_or_without_its_port(
    monkeypatch: pytest.MonkeyPatch, exempt: str, used: bool
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", exempt)
    assert (_clients._proxy_for("http://service.invalid:8080") is not None) == used


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_socks_proxy_that_speaks_something_else_is_unreachable(sync: bool) -> None:
    """httpx does not translate the errors of the package that speaks SOCKS. Nothing was sent."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise type("ProtocolError", (Exception,), {"__module__": "socksio.exceptions"})("malformed")

    clients = _clients.Clients("http://a.test", SecretStr("key"), "0", httpx.MockTransport(refuse))
    send = Send("GET", "/", 1.0)
    with pytest.raises(_clients.Unreachable, match="ProtocolError") as raised:
        clients.send(send) if sync else asyncio.run(clients.send_async(send))
    assert not raised.value.sent
    assert not raised.value.slow
