"""Crews of CrewAI, governed, against the real service."""

# With and without the framework's types.
# mypy: disallow-subclassing-any=False, disallow-untyped-decorators=False, warn-unused-ignores=False

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from crewai_scripts import (
    MODEL,
    BaseLLM,
    Crew,
    InterceptionPoint,
    Marks,
    Process,
    ScriptedModel,
    agent,
    crew_of,
    hierarchy_of,
    scoped_hooks,
    task,
    tool,
)
from crewai_ways import WAYS
from office import Office

import countersign
from countersign.adapters import last_chain
from countersign.adapters.crewai import govern
from countersign.crewai import govern as alias

# CrewAI warns of itself in many places; what this package raises is asserted below.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def only_here(self: socket.socket, address: Any) -> Any:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1"):
            raise AssertionError(f"a connection to {address[0]} was tried")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", only_here)


every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
both_loops = pytest.mark.parametrize("native", [True, False], ids=["native", "text"])


@pytest.fixture
def chain_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test's chains have."""
    return str(request.node.name)


@pytest.fixture
def reviewer() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@every_way
@both_loops
def test_a_denied_tool_does_not_run_and_nothing_after_it(
    office: Office, chain_name: str, way: Callable[[Crew], Any], native: bool
) -> None:
    marks = Marks()
    crew = crew_of(marks, [("denied_wipe", {})], [("plain", {})], "done", native=native)
    with pytest.raises(countersign.ActionDeniedError, match="This is never done"):
        way(govern(crew, chain_name))
    assert marks == []
    (chain,) = office.chains(chain_name)
    assert chain["status"] == "failed"
    assert office.story(chain["id"])[-1] == "clerk: tool_call denied_wipe"


@every_way
@both_loops
def test_an_approval_releases_a_tool_once(
    office: Office,
    chain_name: str,
    reviewer: ThreadPoolExecutor,
    way: Callable[[Crew], Any],
    native: bool,
) -> None:
    marks = Marks()
    crew = crew_of(marks, [("asked_pay", {"amount": 5})], "done", native=native)
    seen: list[list[str]] = []

    def review() -> Any:
        office.waiting()
        seen.append(list(marks))
        return office.decide("approve")

    decided = reviewer.submit(review)
    way(govern(crew, chain_name))
    assert [a["payload"] for a in decided.result()] == [{"amount": 5}]
    assert seen == [[]]
    assert marks == ["asked_pay 5"]
    (chain,) = office.chains(chain_name)
    assert chain["status"] == "completed"


@every_way
@both_loops
def test_what_happens_is_recorded_in_order(
    office: Office, chain_name: str, way: Callable[[Crew], Any], native: bool
) -> None:
    marks = Marks()
    crew = crew_of(marks, [("plain", {"amount": 1})], "done", native=native)
    way(govern(crew, chain_name, {"order": 7}))
    assert marks == ["plain 1"]
    (chain,) = office.chains(chain_name)
    assert chain["metadata"] == {"order": 7}
    model_call = [f"clerk: llm_call {MODEL}", f"clerk: llm_usage {MODEL}"]
    assert office.story(chain["id"]) == [
        "clerk: state_update enter_task",
        *model_call,
        "clerk: tool_call plain",
        *model_call,
    ]
    receipt = office.server.get(f"/v1/chains/{chain['id']}/receipt")
    assert [e["action_type"] for e in receipt["events_summary"]] == [
        "state_update",
        "llm_call",
        "llm_usage",
        "tool_call",
    ]
    assert receipt["cumulative_metrics"]["estimated_cost_usd"] > 0
    usage = [e["metadata"] for e in office.server.events(chain["id"]) if "llm_usage" in str(e)]
    assert usage[0] == {"model": MODEL, "input_tokens": 100, "output_tokens": 20}


def test_the_last_chain_has_the_receipt(office: Office) -> None:
    govern(crew_of(Marks(), "done")).kickoff()
    chain = last_chain()
    assert chain is not None
    assert chain.name == "crewai_workflow"
    assert chain.receipt is not None

    async def main() -> Any:
        await govern(crew_of(Marks(), "done"), "another").kickoff_async()
        return last_chain()

    assert asyncio.run(main()).receipt["receipt_number"] != chain.receipt["receipt_number"]


@pytest.mark.parametrize("kickoff", ["kickoff_for_each_async", "akickoff_for_each"])
def test_each_input_is_a_run_of_its_own(office: Office, chain_name: str, kickoff: str) -> None:
    marks = Marks()
    crew = crew_of(marks, [("plain", {})], [("plain", {})], "done", "done")
    asyncio.run(getattr(govern(crew, chain_name), kickoff)([{"n": "1"}, {"n": "2"}]))
    assert marks == ["plain 0", "plain 0"]
    assert [c["status"] for c in office.chains(chain_name)] == ["completed", "completed"]


@pytest.mark.parametrize("way", [WAYS["kickoff"], WAYS["akickoff"]], ids=["kickoff", "akickoff"])
def test_a_manager_delegates_and_both_are_named(
    office: Office, chain_name: str, way: Callable[[Crew], Any]
) -> None:
    marks = Marks()
    way(govern(hierarchy_of(marks, [[("plain", {"amount": 1})], "done"]), chain_name))
    assert marks == ["plain 1"]
    (chain,) = office.chains(chain_name)
    acts = [
        (e["agent_name"], e.get("parent_agent_name"), e["action_name"])
        for e in office.server.events(chain["id"])
        if e["action_type"] in ("tool_call", "state_update")
    ]
    assert acts == [
        ("chief", None, "enter_task"),
        ("chief", None, "delegate_work_to_coworker"),
        ("clerk", "chief", "enter_task"),
        ("clerk", "chief", "plain"),
    ]


@pytest.mark.parametrize("way", [WAYS["kickoff"], WAYS["akickoff"]], ids=["kickoff", "akickoff"])
def test_a_denial_below_a_manager_ends_the_run(office: Office, way: Callable[[Crew], Any]) -> None:
    marks = Marks()
    with pytest.raises(countersign.ActionDeniedError):
        way(govern(hierarchy_of(marks, [[("denied_wipe", {})], [("plain", {})], "done"])))
    assert marks == []


def test_an_approval_below_a_manager(office: Office, reviewer: ThreadPoolExecutor) -> None:
    marks = Marks()
    decided = reviewer.submit(office.decide, "approve")
    govern(hierarchy_of(marks, [[("asked_pay", {})], "done"])).kickoff()
    assert [a["agent_name"] for a in decided.result()] == ["clerk"]
    assert marks == ["asked_pay 0"]


def test_a_reviewer_who_denies_ends_the_run(office: Office, reviewer: ThreadPoolExecutor) -> None:
    marks = Marks()
    reviewer.submit(office.decide, "deny")
    with pytest.raises(countersign.ActionDeniedError):
        govern(crew_of(marks, [("asked_pay", {})], [("plain", {})], "done")).kickoff()
    assert marks == []


def test_the_kill_switch_ends_the_run(office: Office) -> None:
    marks = Marks()

    def activate() -> Any:
        office.kill_switch(active=True)
        return [("plain", {})]

    try:
        with pytest.raises(countersign.KillSwitchActiveError):
            govern(crew_of(marks, activate, "done")).kickoff()
    finally:
        office.kill_switch(active=False)
    assert marks == []


@both_loops
def test_what_was_approved_is_what_runs(
    office: Office, reviewer: ThreadPoolExecutor, native: bool
) -> None:
    """A hook of the user may change the arguments before they are recorded, not after."""
    marks = Marks()
    kept: list[dict[str, Any]] = []

    def change(context: Any) -> None:
        context.tool_input["amount"] = 6
        kept.append(context.tool_input)

    def review() -> Any:
        office.waiting()
        kept[0]["amount"] = 5000
        return office.decide("approve")

    decided = reviewer.submit(review)
    with scoped_hooks({InterceptionPoint.PRE_TOOL_CALL: [change]}):
        govern(crew_of(marks, [("asked_pay", {"amount": 5})], "done", native=native)).kickoff()
    assert [a["payload"] for a in decided.result()] == [{"amount": 6}]
    assert marks == ["asked_pay 6"]


def test_parallel_tools_are_each_governed(office: Office, chain_name: str) -> None:
    marks = Marks()
    turn = [("plain", {"amount": n}) for n in range(4)]
    govern(crew_of(marks, turn, "done"), chain_name).kickoff()
    assert sorted(marks) == [f"plain {n}" for n in range(4)]
    (chain,) = office.chains(chain_name)
    assert office.story(chain["id"]).count("clerk: tool_call plain") == 4
    marks.clear()
    turn = [("denied_wipe", {"amount": n}) for n in range(4)]
    with pytest.raises(countersign.ActionDeniedError):
        govern(crew_of(marks, turn, [("plain", {})], "done")).kickoff()
    assert marks == []


def test_tasks_in_threads_of_their_own_are_governed(office: Office, chain_name: str) -> None:
    marks = Marks()
    clerk = agent("clerk", ScriptedModel([("denied_wipe", {})], "done"), marks.tools())
    writer = agent("writer", ScriptedModel("done"))
    first = task("first", clerk, async_execution=True)
    crew = Crew(agents=[clerk, writer], tasks=[first, task("second", writer, context=[first])])
    with pytest.raises(countersign.ActionDeniedError):
        govern(crew, chain_name).kickoff()
    assert marks == []


def test_a_waiting_run_holds_up_no_other(office: Office) -> None:
    marks = Marks()

    async def main() -> None:
        waits = asyncio.create_task(govern(crew_of(marks, [("asked_pay", {})], "done")).akickoff())
        await asyncio.to_thread(office.waiting)
        await govern(crew_of(marks, [("plain", {})], "done")).akickoff()
        assert marks == ["plain 0"]
        await asyncio.to_thread(office.decide, "approve")
        await waits

    asyncio.run(main())
    assert marks == ["plain 0", "asked_pay 0"]


def test_model_calls_outside_of_the_loop_are_governed(office: Office, chain_name: str) -> None:
    """The tool's body calls models by itself: one that is allowed and one that is not."""
    marks = Marks()
    allowed, denied = ScriptedModel("fine"), ScriptedModel("never said")
    denied.model = "denied-model"

    @tool("ask_around")
    def ask_around() -> str:
        """Asks models."""
        asyncio.run(allowed.acall("hello"))
        marks.leave("asked")
        try:
            asyncio.run(denied.acall("hello"))
        except Exception:
            marks.leave("refused")
        return "done"

    clerk = agent("clerk", ScriptedModel([("ask_around", {})], "done"), [ask_around])
    with pytest.raises(countersign.ActionDeniedError):
        govern(Crew(agents=[clerk], tasks=[task("first", clerk)]), chain_name).kickoff()
    assert marks == ["asked", "refused"]
    assert (len(allowed.calls), denied.calls) == (1, [])
    (chain,) = office.chains(chain_name)
    assert office.story(chain["id"])[-1] == "clerk: llm_call denied-model"


def test_a_model_whose_class_is_loaded_during_the_run_is_governed(office: Office) -> None:
    """As a provider's client is, which CrewAI loads when it is first needed."""
    marks = Marks()

    @tool("load")
    def load() -> str:
        """Loads a model and asks it."""

        class Late(BaseLLM):
            def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
                if not self._invoke_before_llm_call_hooks([{"role": "user", "content": messages}]):
                    raise ValueError("blocked by a hook")
                return marks.leave("asked")

        late: Any = Late
        return str(late(model="denied-late").call("hello"))

    clerk = agent("clerk", ScriptedModel([("load", {})], "done"), [load])
    with pytest.raises(countersign.ActionDeniedError, match="denied-late"):
        govern(Crew(agents=[clerk], tasks=[task("first", clerk)])).kickoff()
    assert marks == []


def test_a_model_that_counts_by_the_class_above_is_counted_once(
    office: Office, chain_name: str
) -> None:
    """A model may override how its tokens are counted, and call what it overrides."""

    class Counting(ScriptedModel):
        def _track_token_usage_internal(self, usage_data: Any) -> None:
            super()._track_token_usage_internal(usage_data)

    counting: Any = Counting
    clerk = agent("clerk", counting("done"), [])
    govern(Crew(agents=[clerk], tasks=[task("first", clerk)]), chain_name).kickoff()
    (chain,) = office.chains(chain_name)
    events = office.server.events(chain["id"])
    usage = [e["metadata"] for e in events if e["action_type"] == "llm_usage"]
    assert usage == [{"model": MODEL, "input_tokens": 100, "output_tokens": 20}]


def test_functions_that_a_model_calls_by_itself_are_governed(office: Office) -> None:
    marks = Marks()

    class Eager(ScriptedModel):
        def call(self, messages: Any, *args: Any, available_functions: Any = None, **_: Any) -> Any:
            return available_functions["denied_wipe"](amount=1)

    @tool("delegate_to_model")
    def delegate_to_model() -> str:
        """Leaves it to a model."""
        functions = {"denied_wipe": lambda amount: marks.leave(f"denied_wipe {amount}")}
        eager: Any = Eager
        return str(eager().call("go", available_functions=functions))

    clerk = agent("clerk", ScriptedModel([("delegate_to_model", {})], "done"), [delegate_to_model])
    with pytest.raises(countersign.ActionDeniedError, match="denied_wipe"):
        govern(Crew(agents=[clerk], tasks=[task("first", clerk)])).kickoff()
    assert marks == []


def test_a_crew_within_a_tool_is_part_of_the_run(office: Office, chain_name: str) -> None:
    marks = Marks()
    inner = govern(crew_of(marks, [("denied_wipe", {})], "done"), "inner")

    @tool("call_others")
    def call_others() -> str:
        """Has others do it."""
        try:
            return str(inner.kickoff())
        except Exception:
            return "they could not"

    clerk = agent(
        "head", ScriptedModel([("call_others", {})], [("plain", {})]), [call_others, *marks.tools()]
    )
    outer = govern(Crew(agents=[clerk], tasks=[task("first", clerk)]), chain_name)
    with pytest.raises(countersign.ActionDeniedError):
        outer.kickoff()
    assert marks == []
    (chain,) = office.chains(chain_name)
    assert "clerk: tool_call denied_wipe" in office.story(chain["id"])


def test_another_failure_is_raised_as_it_is_and_fails_the_chain(
    office: Office, chain_name: str
) -> None:
    def fail() -> Any:
        raise ZeroDivisionError("the model broke")

    with pytest.raises(ZeroDivisionError):
        govern(crew_of(Marks(), fail, fail, fail, fail), chain_name).kickoff()
    (chain,) = office.chains(chain_name)
    assert chain["status"] == "failed"
    # Attempts at a task are not recorded as tasks.
    assert office.story(chain["id"]).count("clerk: state_update enter_task") == 1


def test_the_crew_that_was_given_stays_as_it_was(office: Office, chain_name: str) -> None:
    marks = Marks()
    crew = crew_of(marks, [("denied_wipe", {})], "done", process=Process.sequential)
    governed = govern(crew, chain_name)
    assert isinstance(governed, Crew)
    assert governed.agents == crew.agents
    assert governed.fetch_inputs() == set()
    assert type(govern(governed)) is type(governed)
    crew.kickoff()
    assert marks == ["denied_wipe 0"]
    assert office.chains(chain_name) == []


def test_many_runs_side_by_side(office: Office, chain_name: str) -> None:
    marks = Marks()
    crews = [crew_of(marks, [("plain", {"amount": n})], "done") for n in range(4)]
    threads = [
        threading.Thread(target=govern(crew, chain_name).kickoff, daemon=True) for crew in crews
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(marks) == [f"plain {n}" for n in range(4)]
    assert [c["total_actions"] for c in office.chains(chain_name)] == [6] * 4


def test_the_evaluation_of_a_training_is_governed(
    office: Office, chain_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training is one run: the model that evaluates it, after the kickoffs, is asked no less
    under a decision than the agents are."""
    monkeypatch.chdir(tmp_path)  # where CrewAI keeps what was learnt
    monkeypatch.setattr("builtins.input", lambda *_: "well done")
    marks = Marks()
    verdict = json.dumps({"suggestions": ["go on"], "quality": 8.0, "final_summary": "fine"})
    crew = crew_of(marks, [("plain", {})], "done", "better", verdict, verdict)
    govern(crew, chain_name).train(1, "learnt.pkl")
    assert marks == ["plain 0"]
    (chain,) = office.chains(chain_name)
    assert chain["status"] == "completed"
    calls = office.story(chain["id"]).count(f"clerk: llm_call {MODEL}")
    evaluations = office.story(chain["id"]).count(f"crew: llm_call {MODEL}")
    model: Any = crew.agents[0].llm
    assert calls + evaluations == len(model.calls)
    assert evaluations > 0


def test_anything_but_a_crew_is_refused() -> None:
    with pytest.raises(TypeError, match=r"takes a crewai\.Crew, not a str"):
        govern("crew")  # type: ignore[arg-type]


def test_the_short_name_is_the_same_function() -> None:
    assert alias is govern
