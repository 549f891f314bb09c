"""The adapter for Pydantic AI against the real service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from office import Office
from pydantic import BaseModel
from pydantic_ai import Agent, FunctionToolset, ModelRetry, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import WrapperToolset
from pydantic_ai_runs import prepare
from pydantic_ai_scripts import agent, scripted, tool
from sync_loops import close_loop
from waits import threads_of_waiting_runs

import countersign
from countersign.adapters import last_chain
from countersign.adapters.pydantic_ai import govern


@pytest.fixture(autouse=True)
def _loop_closed() -> Iterator[None]:
    yield
    close_loop()


def events_of(name: str, office: Office) -> list[dict[str, Any]]:
    chain = last_chain()
    assert chain is not None
    return [e for e in office.server.events(str(chain.id)) if e["action_name"] == name]


def test_the_chain_tells_who_did_what(office: Office) -> None:
    """An agent that is run in a tool has the agent around it as its parent, and joins its chain;
    arguments are recorded with their defaults; usage follows each model call."""
    helper = govern(agent("helper", [("write_note", {})], tools=[tool("write_note", lambda: "ok")]))

    async def ask() -> str:
        """Asks."""
        return str((await helper.run("go")).output)

    clerk = govern(agent("clerk", [("ask", {})], tools=[Tool(ask)]), "names")
    assert clerk.run_sync("go").output == "done"
    chain = last_chain()
    assert chain is not None
    assert chain.receipt is not None
    model = ["llm_call scripted-1", "llm_usage scripted-1"]
    assert office.story(chain.id) == [
        *(f"clerk: {step}" for step in model),
        "clerk: tool_call ask",
        *(f"helper: {step}" for step in model),
        "helper: tool_call write_note",
        *(f"helper: {step}" for step in model),
        *(f"clerk: {step}" for step in model),
    ]
    (note,) = events_of("write_note", office)
    assert (note["payload"], note["parent_agent_name"]) == ({"n": 0}, "clerk")
    assert office.receipt_is_valid(chain.receipt)


class _Around(WrapperToolset[Any]):
    """Adds a tool to a toolset and carries it out itself, as capabilities that run code do."""

    def __init__(self, wrapped: Any, own: FunctionToolset[Any]) -> None:
        super().__init__(wrapped)
        self._own = own

    async def for_run(self, ctx: Any) -> Any:
        return _Around(await self.wrapped.for_run(ctx), self._own)

    async def for_run_step(self, ctx: Any) -> Any:
        return _Around(await self.wrapped.for_run_step(ctx), self._own)

    async def get_tools(self, ctx: Any) -> dict[str, Any]:
        return {**await self.wrapped.get_tools(ctx), **await self._own.get_tools(ctx)}

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        if name in await self._own.get_tools(ctx):
            return await self._own.call_tool(name, tool_args, ctx, tool)
        return await super().call_tool(name, tool_args, ctx, tool)


class _Adding(AbstractCapability[Any]):
    def __init__(self, *tools: Any) -> None:
        self._own = FunctionToolset(list(tools))

    def get_wrapper_toolset(self, toolset: Any) -> Any:
        return _Around(toolset, self._own)


def test_a_tool_that_a_capability_adds_around_the_others_is_decided(office: Office) -> None:
    """A tool that a capability carries out itself is recorded and can be denied. The tools beneath
    it are recorded once."""
    bodies: list[str] = []
    added = [tool(n, partial(bodies.append, n)) for n in ("run_added", "denied_added")]
    beneath = [tool("write_note", lambda: bodies.append("write_note"))]
    script: list[Any] = [[("write_note", {})], [("run_added", {})], [("denied_added", {})]]
    clerk = agent("clerk", *script, tools=beneath, capabilities=[_Adding(*added)])
    with pytest.raises(countersign.ActionDeniedError):
        govern(clerk, "added").run_sync("go")
    assert bodies == ["write_note", "run_added"]
    for name in bodies:
        (event,) = events_of(name, office)
        assert event["outcome"]["outcome"] == "succeeded"
    (event,) = events_of("denied_added", office)
    assert event["status"] == "denied"


def test_a_denial_can_be_told_to_the_model(office: Office) -> None:
    """The tool's result is the true reason, the chain has the denial, and the run goes on."""
    bodies: list[str] = []
    tools = [tool("denied_wipe", lambda: bodies.append("wipe")), tool("write_note", lambda: "ok")]
    clerk = agent("clerk", [("denied_wipe", {})], [("write_note", {})], tools=tools)
    result = govern(clerk, "told", on_denial="tell_model").run_sync("go")
    assert bodies == []
    assert "This is never done." in str(result.all_messages())
    (event,) = events_of("denied_wipe", office)
    assert event["status"] == "denied"
    assert events_of("write_note", office)[0]["outcome"]["outcome"] == "succeeded"


def test_every_attempt_has_its_record(office: Office) -> None:
    """A tool that asks to be tried again, and a call id that is used again, permit nothing."""
    tries: list[int] = []

    def body() -> str:
        tries.append(1)
        if len(tries) < 2:
            raise ModelRetry("once more")
        return "ok"

    again: Any = [("write_note", {})]
    clerk = agent("clerk", again, again, tools=[tool("write_note", body)])
    govern(clerk, "attempts").run_sync("go")
    assert office.outcomes(last_chain().id) == [  # type: ignore[union-attr]
        ("failed", "ModelRetry"),
        ("succeeded", None),
    ]


def test_what_other_capabilities_make_of_the_arguments_is_recorded(office: Office) -> None:
    class Doubles(AbstractCapability[Any]):
        async def before_tool_execute(
            self, ctx: Any, *, call: Any, tool_def: Any, args: dict[str, Any]
        ) -> dict[str, Any]:
            return {"n": args["n"] * 2}

    clerk = Agent(
        scripted([("write_note", {"n": 4})]),
        name="clerk",
        tools=[tool("write_note", lambda: "ok")],
        capabilities=[Doubles()],
    )
    govern(clerk, "others").run_sync("go")
    assert events_of("write_note", office)[0]["payload"] == {"n": 8}


class Refund(BaseModel):
    order: int
    amount_usd: float = 5.0


def test_functions_as_output_and_toolsets_of_a_run(office: Office) -> None:
    """A function that makes the output is a tool as any other, and so are toolsets that are given
    to a run."""
    done: list[Refund] = []

    def denied_refund(refund: Refund) -> str:
        done.append(refund)
        return "refunded"

    clerk = Agent(TestModel(call_tools=[]), name="clerk", output_type=denied_refund)
    with pytest.raises(countersign.ActionDeniedError):
        govern(clerk, "output").run_sync("go")
    assert done == []

    extra = FunctionToolset([tool("denied_note", lambda: done.append(Refund(order=1)))])
    plain = agent("clerk", [("denied_note", {})])
    with pytest.raises(countersign.ActionDeniedError):
        govern(plain, "toolsets").run_sync("go", toolsets=[extra])
    assert done == []


def test_a_model_that_fails(office: Office) -> None:
    with pytest.raises(ConnectionError):
        govern(agent("clerk", ConnectionError("down")), "model").run_sync("go")
    (chain,) = office.chains("model")
    assert chain["status"] == "failed"
    assert office.outcomes(chain["id"], "llm_call") == [("failed", "ConnectionError")]


def test_a_denial_surfaces_though_another_error_came_after_it(office: Office) -> None:
    """A tool swallows the denial of a governed function, and something else fails later."""

    @countersign.governed
    def denied_transfer() -> None:
        raise AssertionError("it must not run")

    def body() -> str:
        try:
            denied_transfer()
        except countersign.ActionDeniedError:
            pass
        raise ValueError("something else")

    clerk = agent("clerk", [("write_note", {})], tools=[tool("write_note", body)])
    with pytest.raises(countersign.ActionDeniedError):
        govern(clerk, "later").run_sync("go")


def test_many_runs_wait_on_one_loop(office: Office) -> None:
    """Runs that wait hold no thread: twenty wait at once."""
    clerk = govern(
        agent("clerk", [("asked_pay", {})], tools=[tool("asked_pay", lambda: "paid")]), "many"
    )

    async def main() -> None:
        runs = [asyncio.create_task(clerk.run("go")) for _ in range(20)]
        await asyncio.to_thread(office.decide, "approve", 20)
        assert [run.output for run in await asyncio.gather(*runs)] == ["done"] * 20

    asyncio.run(main())


async def _break_events(clerk: Any) -> None:
    async with clerk.run_stream_events("go") as events:
        async for _ in events:
            break


async def _close_events(clerk: Any) -> None:
    async with clerk.run_stream_events("go") as events:
        async for _ in events:
            await events.aclose()


async def _close_generator(clerk: Any) -> None:
    async def items() -> AsyncIterator[Any]:
        async with clerk.run_stream_events("go") as events:
            async for event in events:
                yield event

    stream = items()
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]


async def _break_nodes(clerk: Any) -> None:
    async with clerk.iter("go") as run:
        async for _ in run:
            break


LEAVING = {
    "break": _break_events,
    "aclose": _close_events,
    "a generator around it": _close_generator,
    "iter": _break_nodes,
}


@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING.keys())
def test_whoever_leaves_a_stream_has_not_failed(office: Office, leave: Any) -> None:
    """The run ends with its chain completed, as with the other adapters, and nothing runs after
    it."""
    bodies: list[int] = []
    later = tool("write_note", lambda: bodies.append(1))
    clerk = govern(agent("clerk", "done", [("write_note", {})], tools=[later]), "left early")
    asyncio.run(leave(clerk))
    chain = office.chains("left early")[-1]
    assert (chain["status"], bodies) == ("completed", [])


@pytest.mark.parametrize("error", [KeyError, asyncio.CancelledError])
def test_an_error_of_whoever_reads_a_stream_fails_the_run(
    office: Office, error: type[BaseException]
) -> None:
    """It leaves the run as an exception: the chain has its type, not that of the cancelled task."""
    clerk = govern(agent("clerk", "done"), "reader failed")

    async def main() -> None:
        async with clerk.run_stream_events("go") as events:
            async for _ in events:
                raise error("mine")

    with pytest.raises(error):
        asyncio.run(main())
    chain = office.chains("reader failed")[-1]
    assert (chain["status"], chain["error"]["type"]) == ("failed", error.__name__)


def test_an_agent_without_a_name_has_the_callers(office: Office) -> None:
    """Pydantic AI names an agent after the variable that holds it. The adapter's own is none."""
    helper = govern(Agent(scripted("done")), "unnamed")
    helper.run_sync("go")
    (chain,) = office.chains("unnamed")
    assert office.story(chain["id"])[0] == "helper: llm_call scripted-1"


def test_an_agent_with_a_blank_name_is_recorded_as_agent(office: Office) -> None:
    """Pydantic AI accepts such a name and the service does not. The run is governed."""
    assert govern(agent(" ", "done"), "blank").run_sync("go").output == "done"
    (chain,) = office.chains("blank")
    assert office.story(chain["id"])[0] == "agent: llm_call scripted-1"


def test_what_is_refused(office: Office) -> None:
    with pytest.raises(TypeError, match="govern takes an agent"):
        govern(object())  # type: ignore[arg-type]
    with pytest.raises(countersign.ConfigurationError, match="on_denial"):
        govern(agent("clerk"), on_denial="ignore")  # type: ignore[arg-type]


REALTIME: dict[str, Callable[[Any], Any]] = {
    "session": lambda realtime: realtime.session().__aenter__(),
    "answer_webrtc_offer": lambda realtime: realtime.answer_webrtc_offer("v=0"),
    "create_client_secret": lambda realtime: realtime.create_client_secret(),
}


@pytest.mark.parametrize("begin", REALTIME.values(), ids=REALTIME.keys())
def test_no_realtime_session_is_prepared(office: Office, begin: Callable[[Any], Any]) -> None:
    """Its tools would run without a decision: neither a session is opened, nor is the agent's
    configuration given to one that a browser opens."""
    clerk = govern(agent("clerk", tools=[tool("write_note", lambda: "ok")]), "realtime")

    async def main() -> None:
        with pytest.raises(countersign.ConfigurationError, match="cannot be governed"):
            await begin(clerk.realtime("openai:gpt-realtime"))

    asyncio.run(main())


def test_waiting_runs_hold_no_threads(office: Office) -> None:
    """Async runs that wait for people wait on their event loop."""
    runs, threads = threads_of_waiting_runs(office, prepare)
    assert threads < runs / 4
