"""Denials that something tries to swallow: none gets lost, and no later tool runs."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy
from office import Office
from scripted_agents import (
    QUESTION,
    Marks,
    ScriptedModel,
    agent,
    agent_with,
    approving_after_denial,
)

import countersign
from countersign.adapters import last_chain
from countersign.adapters.langgraph import govern

Node = Callable[[Any], Any]

eager = RetryPolicy(
    initial_interval=0.001, max_attempts=3, jitter=False, retry_on=lambda error: True
)


def line(**nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    """A graph of nodes, one after the other."""
    builder = StateGraph(MessagesState)
    builder.add_sequence(list(nodes.items()))
    builder.add_edge(START, next(iter(nodes)))
    return builder


def calling(*tools: Any, config: Any = None) -> Node:
    def node(state: Any) -> Any:
        for tool in tools:
            tool.invoke({"n": 1}, config)
        return {}

    return node


def acalling(*tools: Any) -> Node:
    async def node(state: Any) -> Any:
        for tool in tools:
            await tool.ainvoke({"n": 1})
        return {}

    return node


def swallowing(*tools: Any) -> Node:
    def node(state: Any) -> Any:
        for tool in tools:
            try:
                tool.invoke({"n": 1})
            except Exception:
                pass
        return {}

    return node


def denied(graph: Any) -> None:
    """The denial comes out of a sync and of an async call."""
    with pytest.raises(countersign.ActionDeniedError):
        graph.invoke(QUESTION)
    with pytest.raises(countersign.ActionDeniedError):
        asyncio.run(graph.ainvoke(QUESTION))


def test_an_except_clause_of_a_node(office: Office) -> None:
    marks = Marks()
    tools = marks.tools("denied_tool", "look_up")
    graph = govern(line(one=swallowing(*tools), two=calling(tools[1])).compile())
    denied(graph)
    seen = []
    with pytest.raises(countersign.ActionDeniedError):
        seen += list(graph.stream(QUESTION))
    with pytest.raises(countersign.ActionDeniedError):
        seen.append(next(graph.stream(QUESTION)))
    assert (marks, seen) == ([], [])
    chain = last_chain()
    assert chain is not None
    assert office.story(chain.id)[-1] == "one: tool_call denied_tool"  # nothing after it


def test_a_retry_policy(office: Office) -> None:
    marks, attempts = Marks(), []
    tool = marks.tool("denied_tool")

    def node(state: Any) -> Any:
        attempts.append(1)
        return calling(tool)(state)

    builder = StateGraph(MessagesState)
    builder.add_node("one", node, retry_policy=eager)
    builder.add_edge(START, "one")
    denied(govern(builder.compile()))
    assert (marks, len(attempts)) == ([], 2)  # one for each of the calls


def test_a_tool_node_that_answers_errors_as_text(office: Office) -> None:
    marks = Marks()
    tools = marks.tools("denied_tool", "look_up")
    model = ScriptedModel(script=[["denied_tool"], ["look_up"]])

    def think(state: Any) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)

    def handle(error: Exception) -> str:
        marks.append("handled")
        return "try something else"

    builder.add_node("act", ToolNode(tools, handle_tool_errors=handle))
    builder.add_edge(START, "think")
    builder.add_conditional_edges(
        "think", lambda state: "act" if state["messages"][-1].tool_calls else END, ["act", END]
    )
    builder.add_edge("act", "think")
    denied(govern(builder.compile()))
    assert marks == []


def test_fallbacks_and_retries_of_a_tool(office: Office) -> None:
    marks = Marks()
    no, other = marks.tools("denied_tool", "look_up")
    denied(govern(line(one=calling(no.with_fallbacks([other]))).compile()))
    denied(govern(line(one=calling(no.with_retry(stop_after_attempt=3))).compile()))
    assert marks == []


def test_fallbacks_and_retries_of_the_governed_graph(office: Office) -> None:
    marks = Marks()
    graph = govern(agent(marks, ["denied_tool"]))
    denied(graph.with_fallbacks([agent(marks, ["look_up"])]))
    denied(graph.with_retry(stop_after_attempt=2))
    denied(graph | RunnableLambda(lambda state: marks.tool("look_up").invoke({"n": 1})))
    assert marks == []


def test_tools_called_at_once(office: Office) -> None:
    marks = Marks()
    names = ["asked_tool", "denied_tool"]
    graph = govern(agent(marks, names, ["look_up"]))
    # The one that waits is released after the other one was denied, and does not run.
    with pytest.raises(countersign.ActionDeniedError):
        approving_after_denial(office, lambda: graph.invoke(QUESTION))
    with pytest.raises(countersign.ActionDeniedError):
        approving_after_denial(office, lambda: asyncio.run(graph.ainvoke(QUESTION)))
    assert marks == []


def test_parallel_branches(office: Office) -> None:
    # One word for each run: both branches have begun, and the second one calls after the denial.
    marks, begun, gone = Marks(), queue.SimpleQueue[None](), queue.SimpleQueue[None]()
    no, late = marks.tools("denied_tool", "look_up")

    def first(state: Any) -> Any:
        begun.get(timeout=30)
        try:
            return calling(no)(state)
        finally:
            gone.put(None)

    def second(state: Any) -> Any:
        begun.put(None)
        gone.get(timeout=30)
        return calling(late)(state)

    builder = StateGraph(MessagesState)
    for name, node in (("first", first), ("second", second)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    denied(govern(builder.compile()))
    assert marks == []


def test_subgraphs_and_agents_within_tools(office: Office) -> None:
    marks = Marks()
    nested = govern(
        line(helper=agent(marks, ["denied_tool"]), late=calling(marks.tool("x"))).compile()
    )
    denied(nested)
    helper = agent(marks, ["denied_tool"], name="helper")

    def delegate(n: int) -> str:
        try:
            helper.invoke(QUESTION)
        except Exception:
            pass
        return "fine"

    tool = Marks().tool("delegate", delegate)
    chief = create_agent(
        ScriptedModel(script=[["delegate"], ["look_up"]]), [tool, marks.tool("look_up")]
    )
    denied(govern(chief, "delegated"))
    assert marks == []


def test_agents_are_named_with_their_parents(office: Office) -> None:
    marks = Marks()
    helper = agent(marks, ["look_up"], name="helper")
    chief = agent_with(
        Marks().tool("delegate", lambda n: helper.invoke(QUESTION) and "fine"), name="chief"
    )
    govern(line(desk=chief).compile(name="office")).invoke(QUESTION)
    chain = last_chain()
    assert chain is not None
    told = {
        e["action_name"]: (e["agent_name"], e.get("parent_agent_name"))
        for e in office.server.events(chain.id)
        if e["action_type"] == "tool_call"
    }
    assert told == {"delegate": ("chief", "desk"), "look_up": ("helper", "chief")}
    entered = next(e for e in office.server.events(chain.id) if e["action_type"] == "state_update")
    assert (entered["agent_name"], entered["parent_agent_name"]) == ("desk", "office")
    assert entered["payload"] == {"node": "desk", "step": 1}


def test_a_governed_graph_within_a_governed_one_is_part_of_its_run(office: Office) -> None:
    marks = Marks()
    inner = govern(agent(marks, ["denied_tool"]), "the inner one")
    outer = line(inner=inner, late=calling(marks.tool("look_up"))).compile()
    denied(govern(outer, "the outer one"))
    assert marks == []
    assert office.chains("the inner one") == []
    assert len(office.chains("the outer one")) == 2


def test_callbacks_that_leave_the_handler_out(office: Office) -> None:
    marks = Marks()
    tool = marks.tool("denied_tool")
    configs: list[Any] = [{"callbacks": []}, {"callbacks": None}, {"configurable": {}}]
    for config in configs:
        denied(govern(line(one=calling(tool, config=config)).compile()))
    with pytest.raises(countersign.ActionDeniedError):
        asyncio.run(govern(line(one=acalling(tool)).compile()).ainvoke(QUESTION))
    assert marks == []


def test_a_sync_tool_called_on_the_loop(office: Office) -> None:
    marks = Marks()
    tool = marks.tool("denied_tool")

    async def node(state: Any) -> Any:
        tool.invoke({"n": 1})
        return {}

    with pytest.raises(countersign.ActionDeniedError):
        asyncio.run(govern(line(one=node).compile()).ainvoke(QUESTION))
    assert marks == []


def test_an_entered_node_and_a_model_call_can_be_denied(office: Office) -> None:
    marks = Marks()

    class Denied(ScriptedModel):
        def _get_ls_params(self, stop: Any = None, **kwargs: Any) -> Any:
            return {"ls_model_name": "denied-model"}

        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            marks.append("model")
            return super()._generate(*args, **kwargs)

    denied(govern(create_agent(Denied(script=[]), [])))
    assert marks == []


def test_arguments_that_change_while_somebody_decides(office: Office) -> None:
    marks: list[Any] = []
    given: dict[str, Any] = {"items": ["a"]}

    from langchain_core.tools import tool

    @tool
    def asked_order(items: list[str]) -> str:
        """Orders things."""
        marks.append(list(items))
        return "ordered"

    def run() -> None:
        govern(line(one=lambda state: asked_order.invoke(given) and {}).compile()).invoke(QUESTION)

    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    office.waiting()
    given["items"].append("b")
    office.decide("approve")
    thread.join(60)
    assert marks == []
    assert isinstance(failed[0], countersign.PolicyViolationError)
    assert "changed" in str(failed[0])
