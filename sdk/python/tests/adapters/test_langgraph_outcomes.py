"""What became of an action stands in its record, and every run of a body has a record."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt
from office import Office
from scripted_agents import (
    QUESTION,
    Marks,
    agent,
    agent_with,
    approving,
    approving_after_denial,
)

import countersign
from countersign.adapters import _run_chains, _threads
from countersign.adapters.langchain import GovernanceMiddleware
from countersign.adapters.langgraph import govern
from countersign.testing import FakeService, RecordedCall

THREAD: Any = {"configurable": {"thread_id": "1"}}


def _invoke(graph: Any, given: Any, config: Any = None) -> Any:
    return graph.invoke(given, config)


def _ainvoke(graph: Any, given: Any, config: Any = None) -> Any:
    return asyncio.run(graph.ainvoke(given, config))


Call = Callable[..., Any]
both = pytest.mark.parametrize("call", [_invoke, _ainvoke])


def outcomes(office: Office, name: str, kind: str = "tool_call") -> list[Any]:
    return office.outcomes(office.chains(name)[-1]["id"], kind)


def graph_of(node: Any, **options: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("one", node, **options)
    builder.add_edge(START, "one")
    return builder


def failing(error: BaseException) -> Callable[[int], Any]:
    def body(n: int) -> Any:
        raise error

    return body


@both
def test_success_is_recorded(office: Office, call: Call, request: pytest.FixtureRequest) -> None:
    """A tool and a model call that return have succeeded."""
    name = request.node.name
    call(govern(agent(Marks(), ["look_up"]), name), QUESTION)
    assert outcomes(office, name) == [("succeeded", None)]
    assert outcomes(office, name, "llm_call") == [("succeeded", None)] * 2


@both
def test_a_failure_is_recorded_by_its_type(
    office: Office, call: Call, request: pytest.FixtureRequest
) -> None:
    """A tool that raises has failed. The error's text is not sent: it may hold anything."""
    name = request.node.name
    tool = Marks().tool("look_up", failing(LookupError("card 4111")))
    with pytest.raises(LookupError):
        call(govern(agent_with(tool), name), QUESTION)
    assert outcomes(office, name) == [("failed", "LookupError")]


def test_a_failure_that_a_tool_handles_is_recorded(office: Office) -> None:
    """A tool that makes a text of its own error has failed all the same."""
    from langchain_core.tools import ToolException

    tool = Marks().tool("look_up", failing(ToolException("card 4111")))
    tool.handle_tool_error = True
    govern(agent_with(tool), "handled").invoke(QUESTION)
    assert outcomes(office, "handled") == [("failed", "handled by the tool")]


def test_a_denial_within_a_tool_is_its_failure(office: Office) -> None:
    """A tool whose own call was denied has failed; what was denied has no outcome."""
    marks = Marks()
    inner = marks.tool("denied_tool")
    outer = marks.tool("delegate", lambda n: inner.invoke({"n": n}))
    with pytest.raises(countersign.ActionDeniedError):
        govern(agent_with(outer), "denied within").invoke(QUESTION)
    assert outcomes(office, "denied within") == [("failed", "ActionDeniedError"), None]


@both
def test_a_tool_that_is_allowed_after_a_denial_has_failed(
    office: Office, call: Call, request: pytest.FixtureRequest
) -> None:
    """A tool that was released after the run had been denied is not carried out, and its record
    says so."""
    name, marks = request.node.name, Marks()
    graph = govern(agent(marks, ["asked_tool", "denied_tool"]), name)
    with pytest.raises(countersign.ActionDeniedError):
        approving_after_denial(office, lambda: call(graph, QUESTION))
    assert marks == []
    told = outcomes(office, name)
    assert len(told) == 2
    assert ("failed", "ActionDeniedError") in told
    assert None in told


def test_a_tool_whose_arguments_changed_has_failed(office: Office) -> None:
    """A tool that was released for other arguments is not carried out, and its record says so."""
    from langchain_core.tools import tool

    given = {"items": ["a"]}
    marks = []

    @tool
    def asked_order(items: list[str]) -> str:
        """Orders things."""
        marks.append(items)
        return "ordered"

    graph = govern(graph_of(lambda state: asked_order.invoke(given) and {}).compile(), "changed")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(graph.invoke, QUESTION)
        office.waiting()
        given["items"].append("b")
        office.decide("approve")
        with pytest.raises(countersign.PolicyViolationError):
            running.result(60)
    assert marks == []
    assert outcomes(office, "changed") == [("failed", "PolicyViolationError")]


@both
def test_every_attempt_of_a_retried_tool_has_a_record(
    office: Office, call: Call, request: pytest.FixtureRequest
) -> None:
    """A body that is retried runs under a record of its own each time."""
    name, attempts = request.node.name, []

    def flaky(n: int) -> str:
        attempts.append(n)
        if len(attempts) < 3:
            raise ConnectionError("once more")
        return "fine"

    tool: Any = Marks().tool("look_up", flaky)
    tool = tool.with_retry(stop_after_attempt=3, wait_exponential_jitter=False)

    async def anode(state: Any) -> Any:
        await tool.ainvoke({"n": 1})

    node = anode if call is _ainvoke else lambda state: tool.invoke({"n": 1}) and {}
    call(govern(graph_of(node).compile(), name), QUESTION)
    failed = ("failed", "ConnectionError")
    assert outcomes(office, name) == [failed, failed, ("succeeded", None)]


def test_the_outcome_of_an_interrupted_tool_is_unknown_until_it_is_resumed(office: Office) -> None:
    """A body that asks its user something runs on under its own record."""
    tool = Marks().tool("asked_tool", lambda n: interrupt("go on?"))
    graph = graph_of(lambda state: tool.invoke({"n": 1}) and {})
    governed = govern(graph.compile(checkpointer=InMemorySaver()), "interrupted tool")
    approving(office, lambda: governed.invoke(QUESTION, THREAD))
    assert outcomes(office, "interrupted tool") == [
        ("unknown", "the run was interrupted before it ended")
    ]
    governed.invoke(Command(resume="yes"), THREAD)
    assert outcomes(office, "interrupted tool") == [("succeeded", None)]


def test_every_attempt_of_a_retried_node_has_records(office: Office) -> None:
    """What a retried node does again is recorded, and decided on, again."""
    marks, attempts = Marks(), []
    tool = marks.tool("look_up")

    def node(state: Any) -> Any:
        tool.invoke({"n": 1})
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError("once more")
        return {}

    policy = RetryPolicy(initial_interval=0.001, jitter=False)
    govern(graph_of(node, retry_policy=policy).compile(), "retried node").invoke(QUESTION)
    assert marks == ["look_up"] * 3
    assert outcomes(office, "retried node") == [("succeeded", None)] * 3


@both
def test_a_repeated_tool_call_id_is_no_permission(
    office: Office, call: Call, request: pytest.FixtureRequest
) -> None:
    """A model that gives its calls one id gets a record and an approval for each of them."""
    marks, name = Marks(), request.node.name
    tool = marks.tool("asked_tool")
    made = {"name": "asked_tool", "args": {"n": 1}, "id": "call-1", "type": "tool_call"}

    async def anode(state: Any) -> Any:
        for _ in range(3):
            await tool.ainvoke(made)

    def node(state: Any) -> Any:
        for _ in range(3):
            tool.invoke(made)

    graph = govern(graph_of(anode if call is _ainvoke else node).compile(), name)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call, graph, QUESTION)
        asked = [office.decide("approve")[0]["id"] for _ in range(2)]
        office.decide("deny")
        with pytest.raises(countersign.ActionDeniedError):
            running.result(60)
    assert len(set(asked)) == 2
    assert marks == ["asked_tool"] * 2
    assert outcomes(office, name) == [("succeeded", None)] * 2 + [None]


def test_a_resumed_step_finds_its_records_under_a_repeated_id(office: Office) -> None:
    """The nth call of a replayed node is the nth call of the node: nobody is asked again."""
    marks = Marks()
    tool = marks.tool("asked_tool")
    made = {"name": "asked_tool", "args": {"n": 1}, "id": "call-1", "type": "tool_call"}

    def node(state: Any) -> Any:
        for _ in range(2):
            tool.invoke(made)
        interrupt("go on?")
        return {}

    saver = InMemorySaver()
    governed = govern(graph_of(node).compile(checkpointer=saver), "resumed ids")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(governed.invoke, QUESTION, THREAD)
        for _ in range(2):
            office.decide("approve")
        running.result(60)
    governed.invoke(Command(resume="yes"), THREAD)
    assert outcomes(office, "resumed ids") == [("succeeded", None)] * 2


def interrupted_once(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Break off the first report of an outcome."""
    receive, broken_off = service._receive, [False]

    def interrupt(call: RecordedCall) -> Any:
        if call.path.endswith("/outcome") and not broken_off[0]:
            broken_off[0] = True
            raise error
        return receive(call)

    monkeypatch.setattr(service, "_receive", interrupt)


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize(
    ("call", "error"), [(_invoke, KeyboardInterrupt), (_ainvoke, asyncio.CancelledError)]
)
def test_an_interrupted_report_is_made_up_for(
    monkeypatch: pytest.MonkeyPatch, call: Call, error: type[BaseException], resumable: bool
) -> None:
    """An interrupt while an outcome is reported, such as Ctrl-C, does not lose it; nor does an
    event loop that ends then. It makes no difference whether the run can be resumed."""
    pay = Marks().tool("pay")
    both_ways = RunnableLambda(
        lambda state: pay.invoke({"n": 1}) and None, afunc=lambda state: _pay_async(pay)
    )
    graph = govern(graph_of(both_ways).compile(InMemorySaver() if resumable else None))
    with FakeService() as service:
        interrupted_once(service, monkeypatch, error)
        countersign.init(**service.settings())
        with suppress(BaseException):  # some versions make another error of a cancellation
            call(graph, QUESTION, THREAD)
        paid = [event for event in service.events if event["action_name"] == "pay"]
        assert [event.get("outcome") for event in paid] == ["succeeded"]


async def _pay_async(pay: Any) -> None:
    await pay.ainvoke({"n": 1})


def test_an_interrupted_report_to_a_chain_of_the_callers_is_made_up_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where a middleware records in a chain that the caller has opened."""
    with FakeService() as service:
        interrupted_once(service, monkeypatch, KeyboardInterrupt)
        countersign.init(**service.settings())
        with pytest.raises(KeyboardInterrupt), countersign.Chain("own") as chain:
            made = agent(Marks(), ["pay"], middleware=[GovernanceMiddleware(chain)])
            made.invoke(QUESTION)
        outcomes = [event["outcome"] for event in service.events if "outcome" in event]
        assert outcomes == ["succeeded"]


@pytest.mark.parametrize("resumable", [False, True])
def test_a_stream_that_is_collected_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch, resumable: bool
) -> None:
    """The garbage collector ends a forgotten stream in the middle of anything, such as the start of
    another run. Its chain is completed, or left to be resumed, by another thread."""

    class Collecting(set[Any]):
        def add(self, key: Any) -> None:
            gc.collect()
            super().add(key)

    def work() -> None:
        stream = graph.stream(QUESTION, THREAD)
        next(stream)
        forgotten = [stream]
        forgotten.append(forgotten)  # a cycle: only the collector ends it
        del stream, forgotten
        with monkeypatch.context() as collecting:
            collecting.setattr(_run_chains, "_IN_USE", Collecting(_run_chains._IN_USE))
            graph.invoke(QUESTION, {"configurable": {"thread_id": "2"}})

    builder = graph_of(lambda state: {})
    builder.add_node("two", lambda state: {})
    builder.add_edge("one", "two")
    graph = govern(builder.compile(InMemorySaver() if resumable else None))
    with FakeService() as service:
        countersign.init(**service.settings())
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        worker.join(60)
        assert not worker.is_alive(), "it waits for itself"
        assert _threads._at_work.acquire(timeout=60)
        _threads._at_work.release()
        first, second = (chain["status"] for chain in service.chains)
    assert (first, second) == ("active" if resumable else "completed", "completed")


def test_an_async_stream_that_is_collected_is_closed_once() -> None:
    """A forgotten stream that the garbage collector finds is closed by its event loop: its chain is
    completed, and the loop has no error to log."""
    faults: list[Any] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        stream = graph.astream(QUESTION)
        await anext(stream)
        forgotten = [stream]
        forgotten.append(forgotten)  # a cycle: only the collector ends it
        del stream, forgotten
        gc.collect()
        await asyncio.sleep(0)  # the loop makes tasks that close what was found
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        gc.collect()  # an error is logged when its task is collected

    builder = graph_of(lambda state: {})
    builder.add_node("two", lambda state: {})
    builder.add_edge("one", "two")
    graph = govern(builder.compile())
    with FakeService() as service:
        countersign.init(**service.serve())  # over a socket, so that closing has to wait
        asyncio.run(work())
        assert [chain["status"] for chain in service.chains] == ["completed"]
    assert faults == []
