"""Writing to the state of a governed graph, which runs the conditions of its edges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import RunnableBinding
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import StateUpdate
from office import Office
from scripted_agents import QUESTION, Marks

import countersign
from countersign.adapters.langchain import govern as govern_chain
from countersign.adapters.langgraph import govern

THREAD: Any = {"configurable": {"thread_id": "1"}}


def graph_of(condition: Callable[[Any], str] | None, **options: Any) -> Any:
    """Two nodes; before the second, the graph waits for its user."""
    builder = StateGraph(MessagesState)
    builder.add_node("one", lambda state: {})
    builder.add_node("two", lambda state: {})
    builder.add_edge(START, "one")
    if condition is None:
        builder.add_edge("one", "two")
    else:
        builder.add_conditional_edges("one", condition, ["two", END])
    return builder.compile(checkpointer=InMemorySaver(), interrupt_before=["two"], **options)


WRITES: dict[str, Callable[[Any], Any]] = {
    "update_state": lambda graph: graph.update_state(THREAD, QUESTION, "one"),
    "bulk_update_state": lambda graph: graph.bulk_update_state(
        THREAD, [[StateUpdate(QUESTION, "one")]]
    ),
    "aupdate_state": lambda graph: asyncio.run(graph.aupdate_state(THREAD, QUESTION, "one")),
    "abulk_update_state": lambda graph: asyncio.run(
        graph.abulk_update_state(THREAD, [[StateUpdate(QUESTION, "one")]])
    ),
}
every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())


@pytest.fixture
def chain_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test's chains have."""
    return str(request.node.name)


def calls(office: Office, name: str) -> list[list[str]]:
    return [
        [told for told in office.story(c["id"]) if "tool_call" in told] for c in office.chains(name)
    ]


@every_write
def test_a_condition_does_nothing_that_is_denied(
    office: Office, chain_name: str, write: Callable[[Any], Any]
) -> None:
    """The condition of an edge runs when the state is written as the node before it. A tool that it
    calls is held there as in a run."""
    marks = Marks()
    denied = marks.tool("denied_tool")

    def condition(state: Any) -> str:
        denied.invoke({"n": 1})
        return "two"

    with pytest.raises(countersign.ActionDeniedError):
        write(govern(graph_of(condition), chain_name))
    assert marks == []
    assert [c["status"] for c in office.chains(chain_name)] == ["failed"]


@every_write
def test_a_graph_that_is_bound_is_no_way_around(
    office: Office, chain_name: str, write: Callable[[Any], Any]
) -> None:
    """What a governed binding hands on to the graph inside is governed too."""
    marks = Marks()
    denied = marks.tool("denied_tool")

    def condition(state: Any) -> str:
        denied.invoke({"n": 1})
        return "two"

    bound: Any = RunnableBinding(bound=graph_of(condition))
    with pytest.raises(countersign.ActionDeniedError):
        write(govern_chain(bound, chain_name))
    assert marks == []


@every_write
def test_each_write_to_an_interrupted_run_is_recorded_in_its_chain(
    office: Office, chain_name: str, write: Callable[[Any], Any]
) -> None:
    """The same tool with the same arguments has a record for each time that it runs, and the run
    goes on in the chain that it began in."""
    marks = Marks()
    tool = marks.tool("look_up")

    def condition(state: Any) -> str:
        tool.invoke({"n": 1})
        return "two"

    graph = govern(graph_of(condition), chain_name)
    graph.invoke(QUESTION, THREAD)
    write(graph)
    write(graph)
    assert [c["status"] for c in office.chains(chain_name)] == ["active"]
    graph.invoke(None, THREAD)
    assert [c["status"] for c in office.chains(chain_name)] == ["completed"]
    assert len(marks) == 3
    assert [len(told) for told in calls(office, chain_name)] == [3]


@every_write
def test_a_write_without_conditions_is_no_run(
    office: Office, chain_name: str, write: Callable[[Any], Any]
) -> None:
    """Nothing can be called: a chain is neither opened nor lost. An interrupted run goes on in its
    own."""
    graph = govern(graph_of(None), chain_name)
    graph.invoke(QUESTION, THREAD)
    write(graph)
    graph.invoke(None, THREAD)
    assert [c["status"] for c in office.chains(chain_name)] == ["completed"]
    write(graph)
    assert len(office.chains(chain_name)) == 1


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_write_that_fails_leaves_the_run_as_it_was(
    office: Office, chain_name: str, is_async: bool
) -> None:
    """A mistake in a write is raised, and is no failure of the run that waits."""
    graph = govern(graph_of(lambda state: "two"), chain_name)
    graph.invoke(QUESTION, THREAD)
    with pytest.raises(InvalidUpdateError):
        if is_async:
            asyncio.run(graph.aupdate_state(THREAD, QUESTION, "nobody"))
        else:
            graph.update_state(THREAD, QUESTION, "nobody")
    assert [c["status"] for c in office.chains(chain_name)] == ["active"]
    graph.invoke(None, THREAD)
    assert [c["status"] for c in office.chains(chain_name)] == ["completed"]
