"""The adapter for the OpenAI Agents SDK against the real service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from office import Office
from openai_agents_runs import prepare
from sync_loops import close_loop
from waits import threads_of_waiting_runs

from openai_agents_scripts import agent, tool  # isort: skip
from agents import Agent, LocalShellTool, RunConfig, RunHooks, Runner, function_tool, handoff
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner

import countersign
from countersign.adapters import last_chain, openai_agents
from countersign.adapters._agent_runs import current_agent_run
from countersign.adapters.openai_agents import GovernedRunner

# run_sync ends the generators of a loop that it uses again: whatever has one there is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:asynchronous generator .* was scheduled after")


@pytest.fixture(autouse=True)
def _loop_closed() -> Iterator[None]:
    yield
    close_loop()


def payloads(office: Office, name: str) -> list[Any]:
    events = office.server.events(str(last_chain().id))  # type: ignore[union-attr]
    return [e["payload"] for e in events if e["action_name"] == name]


def test_the_chain_tells_who_did_what(office: Office) -> None:
    """An agent that is a tool has the agent that called it as its parent; a handoff changes who
    acts; usage follows each model call."""
    helper = agent("helper", [("write_note", {"n": 3})], tools=[tool("write_note", lambda: "ok")])
    clerk = agent("clerk", [("ask", {"input": "x"})], tools=[helper.as_tool("ask", "asks")])
    desk = agent("desk", [("transfer_to_clerk", {})], handoffs=[clerk])
    result = GovernedRunner("names").run_sync(desk, "go")
    assert result.final_output == "done"
    chain = last_chain()
    assert chain is not None
    assert chain.receipt is not None
    model = ["llm_call scripted-1", "llm_usage scripted-1"]
    assert office.story(chain.id) == [
        *(f"desk: {step}" for step in model),
        "desk: state_update hand_off",
        *(f"clerk: {step}" for step in model),
        "clerk: tool_call ask",
        *(f"helper: {step}" for step in model),
        "helper: tool_call write_note",
        *(f"helper: {step}" for step in model),
        *(f"clerk: {step}" for step in model),
    ]
    events = office.server.events(str(chain.id))
    parents = {e["agent_name"]: e.get("parent_agent_name") for e in events}
    assert parents == {"desk": None, "clerk": None, "helper": "clerk"}
    assert payloads(office, "write_note") == [{"n": 3}]
    assert office.receipt_is_valid(chain.receipt)


@pytest.mark.parametrize("handed_off", [False, True], ids=["first", "handed off"])
@pytest.mark.parametrize("name", ["", " "], ids=["empty", "blank"])
def test_an_agent_without_a_name_is_recorded_as_agent(
    office: Office, name: str, handed_off: bool
) -> None:
    """The SDK accepts a blank name and the service does not: the run is governed all the same."""
    first = agent(name, [("write_note", {})], tools=[tool("write_note", lambda: "ok")])
    if handed_off:
        to_unnamed = handoff(first, tool_name_override="hand_over")
        first = agent("desk", [("hand_over", {})], handoffs=[to_unnamed])
    result = GovernedRunner("names").run_sync(first, "go")
    assert result.final_output == "done"
    events = office.server.events(str(last_chain().id))  # type: ignore[union-attr]
    assert [e["agent_name"] for e in events if e["action_name"] == "write_note"] == ["agent"]


def test_a_denial_can_be_told_to_the_model(office: Office) -> None:
    """The tool's result is the true reason, the chain has the denial, and the run goes on. An agent
    that is a tool tells its own model."""
    bodies: list[str] = []
    denied = tool("denied_wipe", lambda: bodies.append("wipe"))
    plain = tool("write_note", lambda: bodies.append("note"))
    helper = agent("helper", [("denied_wipe", {})], [("write_note", {})], tools=[denied, plain])
    boss = agent("boss", [("ask", {"input": "x"})], tools=[helper.as_tool("ask", "asks")])
    runner = GovernedRunner("told", on_denial="tell_model")
    assert runner.run_sync(boss, "go").final_output == "done"
    assert bodies == ["note"]
    assert "This is never done." in str(helper.model.heard[1])  # type: ignore[union-attr]
    chain = last_chain()
    assert chain is not None
    statuses = {e["action_name"]: e["status"] for e in office.server.events(str(chain.id))}
    assert statuses["denied_wipe"] == "denied"
    assert chain.receipt is not None


def test_outcomes(office: Office) -> None:
    """An error that the SDK makes a text of has failed, by its type; so has a model call."""

    @function_tool
    def fails() -> str:
        """Fails."""
        raise KeyError("the tool's secret")

    runner = GovernedRunner("outcomes")
    runner.run_sync(agent("clerk", [("fails", {})], tools=[fails]), "go")
    assert office.outcomes(last_chain().id) == [("failed", "KeyError")]  # type: ignore[union-attr]

    with pytest.raises(ConnectionError):
        runner.run_sync(agent("clerk", ConnectionError("down")), "go")
    chain = last_chain()
    assert chain is not None
    assert office.outcomes(chain.id, "llm_call") == [("failed", "ConnectionError")]
    assert [c["status"] for c in office.chains("outcomes")] == ["completed", "failed"]


def test_a_permit_belongs_to_one_call(office: Office) -> None:
    """A call that was allowed and never ran leaves its permit to no other call with the same
    input."""
    note = tool("write_note", lambda: "ok")

    @function_tool
    async def break_off() -> str:
        """Begins a call of the other tool that never comes to its body."""
        run: Any = current_agent_run()
        await run.hooks.on_tool_start(SimpleNamespace(tool_arguments="{}"), clerk, note)
        return "ok"

    clerk = agent("clerk", [("break_off", {})], [("write_note", {})], tools=[break_off, note])
    GovernedRunner("permits").run_sync(clerk, "go")
    assert len(payloads(office, "write_note")) == 2
    outcomes = [outcome for outcome, _ in office.outcomes(last_chain().id)]  # type: ignore[union-attr]
    assert outcomes == ["succeeded", "unknown", "succeeded"]


def test_an_approval_is_no_part_of_a_tools_time(office: Office) -> None:
    """A tool with a time-out waits for its reviewer as long as that takes; then its time begins."""

    @function_tool(name_override="asked_pay", timeout=0.2)
    async def asked_pay() -> str:
        """Pays."""
        return "paid"

    clerk = agent("clerk", [("asked_pay", {})], tools=[asked_pay])

    async def main() -> Any:
        running = asyncio.create_task(GovernedRunner("times").run(clerk, "go"))
        await asyncio.to_thread(office.waiting)
        await asyncio.sleep(0.4)  # longer than the tool may take
        await asyncio.to_thread(office.decide, "approve")
        return await running

    asyncio.run(main())
    assert "paid" in str(clerk.model.heard[1])  # type: ignore[union-attr]


def test_two_calls_with_the_same_arguments_are_two_records(office: Office) -> None:
    """What is allowed is one call: parallel calls that look the same each have a record."""
    bodies: list[int] = []
    note = tool("write_note", lambda: bodies.append(1))
    GovernedRunner("twice").run_sync(
        agent("clerk", [("write_note", {"n": 1}), ("write_note", {"n": 1})], tools=[note]), "go"
    )
    assert len(bodies) == 2
    assert office.outcomes(last_chain().id) == [("succeeded", None)] * 2  # type: ignore[union-attr]


def test_the_commands_of_a_shell_are_recorded(office: Office) -> None:
    """The gate of an executor learns what the hook does not tell."""
    from openai.types.responses.response_output_item import LocalShellCall, LocalShellCallAction

    ran: list[Any] = []

    async def executor(request: Any) -> str:
        ran.append(request.data.action.command)
        return "ok"

    shell = LocalShellTool(executor=executor)
    clerk: Agent[Any] = agent("clerk", tools=[shell])
    action = LocalShellCallAction(command=["ls"], env={}, type="exec")
    call = LocalShellCall(
        id="l", action=action, call_id="c", status="completed", type="local_shell_call"
    )
    model: Any = clerk.model
    said, turns = model._say, [[call]]
    model._say = lambda heard: turns.pop() if turns else said(heard)
    GovernedRunner("shell").run_sync(clerk, "go")
    assert ran == [["ls"]]
    (payload,) = payloads(office, "local_shell")
    assert payload["action"]["command"] == ["ls"]
    assert office.outcomes(last_chain().id) == [("succeeded", None)]  # type: ignore[union-attr]


def test_your_hooks_and_an_ungoverned_run(office: Office) -> None:
    """The hooks of the caller are called; outside of governed runs a tool that was governed once
    does what it did."""
    seen: list[str] = []

    class Mine(RunHooks[Any]):
        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            seen.append(tool.name)

    note = tool("denied_note", lambda: "noted")
    runner = GovernedRunner("mine")
    with pytest.raises(countersign.ActionDeniedError):
        runner.run_sync(
            agent("clerk", [("denied_note", {})], tools=[note]),
            "go",
            hooks=Mine(),
            run_config=RunConfig(tracing_disabled=True),
        )
    assert seen == []
    free = agent("free", [("denied_note", {})], tools=[note])
    assert Runner.run_sync(free, "go", hooks=Mine()).final_output == "done"
    assert seen == ["denied_note"]
    assert "noted" in str(free.model.heard[1])  # type: ignore[union-attr]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", ["own", "default", "subclass"])
def test_whatever_runner_a_tool_uses_is_part_of_the_run(
    office: Office, kind: str, streamed: bool
) -> None:
    """A tool that runs another agent with a runner of its own, or with one that it has made the
    default, runs it within the run: a denial there ends it."""
    ran: list[int] = []
    name = f"{kind} runner {streamed}"
    wipe = tool("denied_wipe", lambda: ran.append(1))
    runner = _Counting() if kind == "subclass" else AgentRunner()

    async def go() -> str:
        helper = agent("helper", [("denied_wipe", {})], tools=[wipe])
        chosen: Any = runner
        if kind == "default":
            set_default_agent_runner(runner)
            chosen = Runner
        if not streamed:
            return str((await chosen.run(helper, "go")).final_output)
        result = chosen.run_streamed(helper, "go")
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    deputy = function_tool(go, name_override="deputy")
    before = get_default_agent_runner()
    try:
        with pytest.raises(countersign.ActionDeniedError):
            GovernedRunner(name).run_sync(agent("clerk", [("deputy", {})], tools=[deputy]), "go")
    finally:
        set_default_agent_runner(before)
    assert ran == []
    if isinstance(runner, _Counting):
        assert runner.runs == 1
    (chain,) = office.chains(name)
    assert [told for told in office.story(chain["id"]) if "tool_call" in told] == [
        "clerk: tool_call deputy",
        "helper: tool_call denied_wipe",
    ]


class _Counting(AgentRunner):
    """A runner of somebody else's."""

    runs = 0

    async def run(self, *args: Any, **options: Any) -> Any:
        self.runs += 1
        return await super().run(*args, **options)

    def run_streamed(self, *args: Any, **options: Any) -> Any:
        self.runs += 1
        return super().run_streamed(*args, **options)


def test_a_runner_that_was_made_the_default_is_used(office: Office) -> None:
    """It runs the governed agent once, and what it calls is recorded once."""
    runner, before = _Counting(), get_default_agent_runner()
    set_default_agent_runner(runner)
    try:
        note = tool("note", lambda: "noted")
        GovernedRunner("their default").run_sync(agent("clerk", [("note", {})], tools=[note]), "go")
    finally:
        set_default_agent_runner(before)
    assert runner.runs == 1
    (chain,) = office.chains("their default")
    assert office.story(chain["id"]).count("clerk: tool_call note") == 1


def test_a_governed_function_in_a_tool_is_part_of_the_run(office: Office) -> None:
    @countersign.governed
    def denied_transfer(amount: int) -> str:
        return "sent"

    pay = tool("write_note", lambda: denied_transfer(5))
    clerk = agent("clerk", [("write_note", {})], tools=[pay])
    with pytest.raises(countersign.ActionDeniedError, match="denied_transfer"):
        GovernedRunner("functions").run_sync(clerk, "go")
    (chain,) = office.chains("functions")
    assert office.story(chain["id"])[-2:] == [
        "clerk: tool_call write_note",
        "clerk: tool_call denied_transfer",
    ]


def test_a_stream_that_is_left_early(office: Office) -> None:
    """The run goes on to its end by itself, and its chain with it."""

    async def main() -> None:
        clerk = agent("clerk", [("write_note", {})], tools=[tool("write_note", lambda: "ok")])
        result = GovernedRunner("left").run_streamed(clerk, "go")
        async for _ in result.stream_events():
            break
        assert result.run_loop_task is not None
        await asyncio.wait({result.run_loop_task})
        for _ in range(200):
            if office.chains("left")[0]["status"] == "completed":
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the chain is still open")

    asyncio.run(main())


def test_waiting_runs_hold_no_threads(office: Office) -> None:
    """Async runs that wait for people wait on their event loop."""
    runs, threads = threads_of_waiting_runs(office, prepare)
    assert threads < runs / 4


def test_a_forked_process_is_no_part_of_the_run(office: Office) -> None:
    """The run would not learn of a denial there: a governed tool that is called there is refused,
    and so is what Runner starts."""
    bodies: list[str] = []
    note = tool("write_note", lambda: bodies.append("note"))

    @function_tool
    async def forks() -> str:
        """As after a fork."""
        run = current_agent_run()
        assert run is not None
        run._process += 1
        try:
            with pytest.raises(RuntimeError, match="another process"):
                await Runner.run(agent("helper", [("write_note", {})], tools=[note]), "go")
        finally:
            run._process -= 1
        return "refused"

    GovernedRunner("forked").run_sync(agent("clerk", [("forks", {})], tools=[forks]), "go")
    assert bodies == []
    assert office.outcomes(last_chain().id) == [("succeeded", None)]  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_is_not_held_up_by_what_the_parent_was_doing() -> None:
    """Another thread of the parent may be starting its first run at the fork."""
    with openai_agents._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if openai_agents._lock.acquire(timeout=5) else 1)
    assert os.waitpid(child, 0)[1] == 0
