"""Graphs, governed, against the real service, in every way in which they can be called."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langgraph.pregel import Pregel
from langgraph_runs import prepare
from office import Office
from scripted_agents import QUESTION, Marks, agent, agent_with, approving
from waits import threads_of_waiting_runs
from ways import WAYS, Way

import countersign
from countersign.adapters import last_chain
from countersign.adapters.langgraph import govern
from countersign.langgraph import govern as alias

pytestmark = pytest.mark.filterwarnings(
    "ignore:astream_log is deprecated", "ignore:.*v3 streaming protocol"
)
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


NEWER_WAYS: list[str] = ["stream_events"] if "stream_events" in vars(Pregel) else []
"""What only the newer versions of the framework can do."""


def newest(office: Office, name: str) -> dict[str, Any]:
    return office.chains(name)[-1]


@ways
def test_allowed_calls_run_and_are_listed_in_order(
    office: Office, way: Way, request: pytest.FixtureRequest
) -> None:
    marks, name = Marks(), request.node.name
    way(govern(agent(marks, ["look_up"], name="clerk"), name, {"ticket": 7}), QUESTION)
    assert marks == ["look_up"]
    chain = newest(office, name)
    assert chain["status"] == "completed"
    assert chain["metadata"] == {"ticket": 7}
    assert office.story(chain["id"]) == [
        "clerk: state_update enter_node",
        "clerk: llm_call scripted-1",
        "clerk: llm_usage scripted-1",
        "clerk: state_update enter_node",
        "clerk: tool_call look_up",
        "clerk: state_update enter_node",
        "clerk: llm_call scripted-1",
        "clerk: llm_usage scripted-1",
    ]


@ways
def test_a_denied_tool_does_not_run_and_the_denial_is_raised(
    office: Office, way: Way, request: pytest.FixtureRequest
) -> None:
    marks, name = Marks(), request.node.name
    graph = govern(agent(marks, ["denied_tool"], ["look_up"]), name)
    with pytest.raises(countersign.ActionDeniedError) as caught:
        way(graph, QUESTION)
    assert type(caught.value) is countersign.ActionDeniedError
    assert caught.value.decision is not None
    assert marks == []
    chain = newest(office, name)
    assert chain["status"] == "failed"
    assert office.story(chain["id"])[-1] == "LangGraph: tool_call denied_tool"


@ways
def test_an_approval_releases_the_tool_exactly_once(
    office: Office, way: Way, request: pytest.FixtureRequest
) -> None:
    marks, name = Marks(), request.node.name
    graph = govern(agent(marks, ["asked_tool"]), name)
    approving(office, lambda: way(graph, QUESTION))
    assert marks == ["asked_tool"]
    chain = newest(office, name)
    assert chain["status"] == "completed"
    assert office.story(chain["id"]).count("LangGraph: tool_call asked_tool") == 1


@ways
def test_a_reviewers_no_keeps_the_tool_from_running(
    office: Office, way: Way, request: pytest.FixtureRequest
) -> None:
    marks = Marks()
    graph = govern(agent(marks, ["asked_tool"]), request.node.name)
    with pytest.raises(countersign.ActionDeniedError):
        approving(office, lambda: way(graph, QUESTION), how="deny")
    assert marks == []


def test_the_newest_kind_of_event_stream(office: Office) -> None:
    marks = Marks()
    for _ in NEWER_WAYS:
        events = govern(agent(marks, ["look_up"])).stream_events(QUESTION, version="v3")
        assert list(events)
        assert marks == ["look_up"]
        denied = govern(agent(marks, ["denied_tool"])).stream_events(QUESTION, version="v3")
        with pytest.raises(countersign.ActionDeniedError):
            list(denied)
        asyncio.run(_newest_events(marks))
    assert marks == ["look_up"] * len(NEWER_WAYS)


async def _newest_events(marks: Marks) -> None:
    events = await govern(agent(marks, ["denied_tool"])).astream_events(QUESTION, version="v3")
    with pytest.raises(countersign.ActionDeniedError):
        async for _ in events:
            pass


def test_the_receipt_is_there_after_the_run_and_verifies(office: Office) -> None:
    govern(agent(Marks(), ["look_up"])).invoke(QUESTION)
    chain = last_chain()
    assert chain is not None
    assert chain.receipt is not None
    assert chain.name == "langgraph_workflow"
    receipt_id = chain.receipt["receipt_id"]
    assert office.server.get(f"/v1/receipts/{receipt_id}/verify")["valid"] is True


def test_what_a_model_took_is_counted(office: Office) -> None:
    govern(agent(Marks(), ["look_up"])).invoke(QUESTION)
    chain = last_chain()
    assert chain is not None
    usage = [e for e in office.server.events(chain.id) if e["action_type"] == "llm_usage"]
    assert [e["metadata"] for e in usage] == [
        {"model": "scripted-1", "input_tokens": 10, "output_tokens": 1}
    ] * 2


def test_a_stream_that_is_left_early_completes_its_chain(office: Office) -> None:
    marks = Marks()
    items = govern(agent(marks, ["look_up"]), "left early").stream(QUESTION)
    next(items)
    items.close()
    assert newest(office, "left early")["status"] == "completed"
    assert marks == []


def test_the_consumer_of_a_stream_is_not_part_of_the_run(office: Office) -> None:
    marks = Marks()
    inner = govern(agent(marks, ["look_up"]), "within")
    for _ in govern(agent(marks, ["look_up"]), "around").stream(QUESTION):
        inner.invoke(QUESTION)
    assert len(office.chains("around")) == 1
    assert len(office.chains("within")) == 3


def test_an_error_of_the_graph_marks_the_chain_as_failed(office: Office) -> None:
    def fail(n: int) -> str:
        raise KeyError("no such thing")

    graph = agent_with(Marks().tool("look_up", fail))
    with pytest.raises(KeyError):
        govern(graph, "broken").invoke(QUESTION)
    assert newest(office, "broken")["status"] == "failed"


def test_the_kill_switch_stops_a_run_before_anything_happens(office: Office) -> None:
    marks = Marks()
    graph = govern(agent(marks, ["look_up"]))
    office.kill_switch(active=True)
    try:
        with pytest.raises(countersign.KillSwitchActiveError):
            graph.invoke(QUESTION)
    finally:
        office.kill_switch(active=False)
    assert marks == []
    graph.invoke(QUESTION)
    assert marks == ["look_up"]


def test_runs_that_wait_for_approval_do_not_block_others_on_the_same_loop(office: Office) -> None:
    marks = Marks()
    waiting = govern(agent(marks, ["asked_tool"]))
    free = govern(agent(marks, ["look_up"]))
    crowd = 40  # more than an event loop has threads

    async def main() -> None:
        held: list[asyncio.Future[object]] = []
        while len(held) < crowd:  # a few at a time: an answer that comes too late is a refusal
            held += [asyncio.ensure_future(waiting.ainvoke(QUESTION)) for _ in range(4)]
            await asyncio.to_thread(office.waiting, len(held))
        await free.ainvoke(QUESTION)
        assert marks == ["look_up"]
        await asyncio.to_thread(office.decide, "approve", crowd)
        await asyncio.gather(*held)

    asyncio.run(main())
    assert sorted(marks) == ["asked_tool"] * crowd + ["look_up"]


def test_a_run_that_waits_in_a_thread_does_not_block_others(office: Office) -> None:
    marks = Marks()
    waiting = govern(agent(marks, ["asked_tool"]))
    done = threading.Event()

    def run() -> None:
        waiting.invoke(QUESTION)
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    office.waiting()
    govern(agent(marks, ["look_up"])).invoke(QUESTION)
    assert not done.is_set()
    office.decide("approve")
    thread.join(60)
    assert marks == ["look_up", "asked_tool"]


def test_a_batch_is_one_chain_for_each_run(office: Office) -> None:
    marks = Marks()
    govern(agent(marks, ["look_up"]), "batched").batch([QUESTION] * 3)
    assert [c["status"] for c in office.chains("batched")] == ["completed"] * 3
    assert marks == ["look_up"] * 3


def test_a_governed_graph_is_what_the_graph_was(office: Office) -> None:
    graph = agent(Marks(), ["look_up"], name="clerk")
    governed = govern(graph)
    assert isinstance(governed, type(graph))
    assert governed.name == "clerk"
    assert governed.get_graph().nodes.keys() == graph.get_graph().nodes.keys()
    assert type(graph) is not type(governed)
    assert alias is govern


def test_copies_are_governed_too(office: Office) -> None:
    marks = Marks()
    governed = govern(agent(marks, ["denied_tool"]))
    for made in (governed.copy(), governed.with_config(run_name="x"), govern(governed)):
        with pytest.raises(countersign.ActionDeniedError):
            made.invoke(QUESTION)
    assert marks == []


def test_the_original_stays_as_it_was(office: Office) -> None:
    marks = Marks()
    graph = agent(marks, ["denied_tool"])
    govern(graph)
    graph.invoke(QUESTION)
    assert marks == ["denied_tool"]


def test_what_cannot_be_governed_is_refused_clearly() -> None:
    from langgraph.graph import MessagesState, StateGraph

    with pytest.raises(TypeError, match="compile"):
        govern(StateGraph(MessagesState))  # type: ignore[type-var]
    with pytest.raises(TypeError, match="takes a compiled graph"):
        govern(object())  # type: ignore[type-var]


def test_waiting_runs_hold_no_threads(office: Office) -> None:
    """Async runs that wait for people wait on their event loop."""
    runs, threads = threads_of_waiting_runs(office, prepare)
    assert threads < runs / 4
