"""``governed_run``: a denial surfaces at the end of a run, whatever a framework made of it."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import countersign
from conftest import configure
from countersign import _transport, governed, governed_run
from countersign.adapters._shared import RunChain
from countersign.adapters._shared import governed_run as adapter_run
from countersign.testing import FakeService, example_api_key
from scripted import ScriptedService
from server import Server
from test_forks import in_child

# Python 3.12 and later warn of a fork beside threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    RAN.clear()
    monkeypatch.setattr(_transport, "_FIRST_BACKOFF", 0.001)


@governed
def act(name: str) -> str:
    RAN.append(name)
    return name


@governed
async def act_async(name: str) -> str:
    RAN.append(name)
    return name


# What the tools' runners of frameworks do with an exception.


def swallow(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return f"tool failed: {error}"


def swallow_everything(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BaseException:
        return "tool failed"


def wrap(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        raise KeyError("tool failed") from error


def replace(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception:
        raise KeyError("tool failed") from None


def retry(call: Callable[[], Any]) -> Any:
    for _ in range(3):
        try:
            return call()
        except Exception:
            continue
    return "gave up"


def fall_back(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception:
        return act("another way")


def in_a_thread(call: Callable[[], Any]) -> Any:
    thread = threading.Thread(target=swallow, args=(call,))
    thread.start()
    thread.join()


def in_a_pool(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).exception()


def in_a_loop(call: Callable[[], Any]) -> Any:
    async def main() -> None:
        await asyncio.gather(act_async("x"), return_exceptions=True)

    asyncio.run(main())


FRAMEWORKS = [
    swallow,
    swallow_everything,
    wrap,
    replace,
    retry,
    fall_back,
    in_a_thread,
    in_a_pool,
    in_a_loop,
]
STOPS: dict[str, type[Exception]] = {
    "deny": countersign.ActionDeniedError,
    "kill switch": countersign.KillSwitchActiveError,
    "auto-pause": countersign.ChainAutoPausedError,
    "time-out": countersign.ApprovalTimedOutError,
    "offline": countersign.BackendUnavailableError,
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("stop", list(STOPS))
def test_what_is_swallowed_is_raised_at_the_end(
    fake: FakeService, framework: Callable[..., Any], stop: str
) -> None:
    """Nothing that is governed runs after it, the chain failed, and it names the denial."""
    configure(fake)
    decider = threading.Thread(target=_let_time_pass, args=(fake,))
    with pytest.raises(STOPS[stop]) as raised, governed_run() as run:
        if stop == "offline":
            fake.go_offline()
        elif stop == "kill switch":
            fake.activate_kill_switch()
        elif stop == "auto-pause":
            fake.script("deny", auto_paused=True)
        elif stop == "time-out":
            fake.script("require_approval")
            decider.start()
        else:
            fake.script("deny", decision_reason="over budget")
        framework(lambda: act("x"))
        fake.come_back()
        swallow(lambda: act("later"))
    if stop == "time-out":
        decider.join()
    fake.come_back()
    assert countersign.flush()
    assert RAN == []
    assert raised.value is run.denial
    assert fake.chains[0]["status"] == "failed"
    assert fake.chains[0]["error"]["type"] == STOPS[stop].__name__
    assert len(fake.events) == (0 if stop == "offline" else 1)


def _let_time_pass(fake: FakeService) -> None:
    waited = threading.Event()
    while not fake.approvals:
        waited.wait(0.002)
    fake.time_out(fake.approvals[0]["id"])


def test_an_async_run_raises_at_its_end(fake: FakeService) -> None:
    configure(fake)
    fake.script("deny")

    async def main() -> None:
        async with governed_run():
            await asyncio.gather(act_async("x"), return_exceptions=True)
            await asyncio.gather(act_async("later"), return_exceptions=True)

    with pytest.raises(countersign.ActionDeniedError):
        asyncio.run(main())
    assert RAN == []
    assert len(fake.events) == 1


def test_a_decorated_function_is_a_run(fake: FakeService) -> None:
    """Each call is one, with a chain of its own; the result is the function's."""
    configure(fake)

    @governed_run("sync")
    def sync(name: str) -> str:
        return act(name)

    @governed_run("async")
    async def coroutine(name: str) -> str:
        return await act_async(name)

    assert [sync("a"), sync("b"), asyncio.run(coroutine("c"))] == ["a", "b", "c"]
    assert [chain["name"] for chain in fake.chains] == ["sync", "sync", "async"]
    fake.script("deny")
    with pytest.raises(countersign.ActionDeniedError):
        sync("d")
    with pytest.raises(countersign.ConfigurationError, match="generator"):

        @governed_run()
        def items() -> Any:
            yield 1


def test_what_is_recorded_by_hand_is_latched_too(fake: FakeService) -> None:
    configure(fake)
    fake.script("deny")
    with pytest.raises(countersign.ActionDeniedError), governed_run() as run:
        swallow(lambda: run.chain.record_agent_action_sync("a", "tool_call", "pay", {}))
    assert fake.chains[0]["status"] == "failed"


def test_a_run_inside_of_another_is_part_of_it(fake: FakeService) -> None:
    """One chain; the inner block raises at its end, and so does the outer one."""
    configure(fake)
    fake.script("allow")
    fake.script("deny")
    with pytest.raises(countersign.ActionDeniedError), governed_run("outer") as outer:
        act("first")
        with pytest.raises(countersign.ActionDeniedError), governed_run("inner") as inner:
            swallow(lambda: act("x"))
        assert inner is outer
    assert [chain["name"] for chain in fake.chains] == ["outer"]
    assert RAN == ["first"]


def test_a_run_inside_of_a_chain_adds_the_latch(fake: FakeService) -> None:
    """The chain is its opener's to complete; after the run it goes on without a latch."""
    configure(fake)
    fake.script("deny")
    with countersign.Chain("mine") as chain:
        with pytest.raises(countersign.ActionDeniedError), governed_run(agent="clerk"):
            swallow(lambda: act("x"))
        assert chain.receipt is None
        act("after")
        fake.script("deny")
        swallow(lambda: act("handled"))
    assert fake.chains[0]["status"] == "completed"
    assert [event["agent_name"] for event in fake.events] == ["clerk", "mine", "mine"]
    assert RAN == ["after"]


def test_a_branch_that_waits_does_not_run_once_another_was_denied(fake: FakeService) -> None:
    """It is approved after the denial; its record says that it was not carried out."""
    configure(fake)
    fake.script("require_approval")

    async def main() -> None:
        async with governed_run():
            waiting = asyncio.ensure_future(act_async("waits"))
            while not fake.approvals:
                await asyncio.sleep(0.001)
            fake.script("deny")
            await asyncio.gather(act_async("denied"), return_exceptions=True)
            fake.approve(fake.approvals[0]["id"])
            await asyncio.gather(waiting, return_exceptions=True)

    with pytest.raises(countersign.ActionDeniedError):
        asyncio.run(main())
    assert RAN == []
    reports = [call.body for call in fake.calls if call.path.endswith("/outcome")]
    assert reports == [{"outcome": "failed", "detail": "ActionDeniedError"}]


def test_refused_calls_do_not_lengthen_the_traceback_of_the_denial(fake: FakeService) -> None:
    """An agent that tries again and again gets the traceback of the first attempt, and the frames
    of the others are not kept."""
    configure(fake)
    fake.script("deny")
    lengths = []

    @governed
    def pay() -> None: ...

    with pytest.raises(countersign.ActionDeniedError), governed_run() as run:
        for _ in range(5):
            with pytest.raises(countersign.ActionDeniedError):
                pay()
            assert run.denial is not None
            lengths.append(len(traceback.extract_tb(run.denial.__traceback__)))
    assert lengths[1:] == lengths[1:2] * 4


def test_the_first_denial_is_the_one_that_is_raised(fake: FakeService) -> None:
    configure(fake)
    fake.script("deny", decision_reason="the first")
    with pytest.raises(countersign.ActionDeniedError, match="the first"), governed_run():
        swallow(lambda: act("x"))
        raise KeyError("what the framework made of it")


def test_a_cancellation_goes_on_though_something_was_denied(fake: FakeService) -> None:
    """Its task must end. The chain names the cancellation; the record has the denial."""
    configure(fake)
    fake.script("deny")

    async def main() -> None:
        async with governed_run():
            await asyncio.gather(act_async("x"), return_exceptions=True)
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert fake.chains[0]["status"] == "failed"


def test_a_run_without_a_denial_ends_as_it_ends(fake: FakeService) -> None:
    configure(fake)
    with governed_run("good") as run:
        act("x")
    assert run.denial is None
    assert run.chain.receipt is not None
    with pytest.raises(KeyError), governed_run("bad"):
        raise KeyError("x")
    assert [chain["status"] for chain in fake.chains] == ["completed", "failed"]


def test_a_run_is_entered_once(fake: FakeService) -> None:
    configure(fake)
    scope = governed_run()
    with scope:
        pass
    with pytest.raises(RuntimeError, match="once"), scope:
        pass


def test_a_sync_run_on_an_event_loop_is_refused(fake: FakeService) -> None:
    configure(fake)

    async def main() -> None:
        with governed_run():
            pass

    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(main())


def test_the_governed_function_of_another_process_is_refused(fake: FakeService) -> None:
    """What a child latches, the parent would not learn of."""
    configure(fake)
    place = governed_run()
    with place as run:
        run._process += 1  # as after a fork
        with pytest.raises(RuntimeError, match="another process"):
            act("x")
    assert RAN == []


def test_nothing_of_a_run_is_left_behind(fake: FakeService) -> None:
    configure(fake)

    async def main() -> None:
        async with governed_run():
            await act_async("x")
        with pytest.raises(RuntimeError, match="no run is open"):
            await act_async("y")

    asyncio.run(main())
    with governed_run():
        act("x")
    with pytest.raises(RuntimeError, match="no run is open"):
        act("y")


def test_a_denial_by_the_real_service_surfaces(server: Server) -> None:
    """The kill switch, thrown midway, under an agent that goes on whatever happens."""
    server.config()
    key = server.post("/v1/api-keys", {"name": "latch", "role": "agent"})["key"]
    countersign.init(key, backend_url=server.url)
    with pytest.raises(countersign.KillSwitchActiveError), governed_run("latch") as run:
        act("before")
        server.post("/v1/kill-switch/activate", {"reason": "a test"})
        try:
            swallow(lambda: act("x"))
            swallow(lambda: act("y"))
        finally:
            server.post("/v1/kill-switch/deactivate")
    assert RAN == ["before"]
    chain = server.get(f"/v1/chains/{run.chain.id}")
    assert chain["status"] == "failed"
    assert [event["status"] for event in server.events(run.chain.id)] == ["allowed", "denied"]


def test_a_governed_function_in_an_adapters_run_is_part_of_it(fake: FakeService) -> None:
    """It is recorded in the run's chain, and its denial ends the run; so does that of a run that
    is opened inside."""
    configure(fake)

    def chain() -> countersign.Chain:
        return RunChain("adapter")

    with adapter_run(chain):
        act("x")
    fake.script("deny")
    with pytest.raises(countersign.ActionDeniedError), adapter_run(chain) as run:
        with pytest.raises(countersign.ActionDeniedError), governed_run():
            swallow(lambda: act("y"))
        assert run.denial is not None
    assert [chain["name"] for chain in fake.chains] == ["adapter", "adapter"]
    assert RAN == ["x"]
    with pytest.raises(RuntimeError, match="no run is open"):
        act("z")


def test_a_forked_child_is_refused_and_opens_a_run_of_its_own() -> None:
    """A child of a run's process: the parent would not learn of what is latched there."""
    with ScriptedService() as service:
        countersign.init(example_api_key(), backend_url=service.url)

        def child() -> str:
            with pytest.raises(RuntimeError, match="another process"):
                act("x")
            with governed_run("child"):
                return act("in the child")

        with governed_run("parent"):
            assert in_child(child) == "in the child"
            act("in the parent")
    assert RAN == ["in the parent"]
    assert service.asked == 2
