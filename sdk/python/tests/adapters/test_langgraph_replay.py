"""Steps that a graph carries out again are recorded once, whoever carries them out."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt
from office import Office
from scripted_agents import QUESTION, Marks, agent, approving

import countersign
from countersign.adapters.langgraph import govern
from countersign.testing import FakeService

THREAD: Any = {"configurable": {"thread_id": "1"}}


def pausing(marks: Marks, *names: str, **options: Any) -> Any:
    """A graph that calls tools, asks its user something, and calls the last one again."""
    tools = marks.tools(*names)

    def node(state: Any) -> Any:
        for tool in tools:
            tool.invoke({"n": 1})
        answer = interrupt("go on?")
        tools[-1].invoke({"n": answer})
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("one", node)
    builder.add_edge(START, "one")
    return builder.compile(checkpointer=InMemorySaver(), **options)


def calls(office: Office, name: str) -> list[list[str]]:
    return [
        [told for told in office.story(c["id"]) if "tool_call" in told] for c in office.chains(name)
    ]


def statuses(office: Office, name: str) -> list[str]:
    return [chain["status"] for chain in office.chains(name)]


def test_an_interrupted_run_goes_on_in_its_chain(office: Office) -> None:
    graph = govern(pausing(Marks(), "look_up"), "interrupted")
    assert "__interrupt__" in graph.invoke(QUESTION, THREAD)
    assert statuses(office, "interrupted") == ["active"]
    graph.invoke(Command(resume=2), THREAD)
    assert statuses(office, "interrupted") == ["completed"]
    # Replayed once, recorded once; the call after the answer is another one.
    assert calls(office, "interrupted") == [["one: tool_call look_up"] * 2]


def test_an_interrupted_run_goes_on_in_another_process(office: Office) -> None:
    original = pausing(Marks(), "look_up")
    asyncio.run(govern(original, "moved").ainvoke(QUESTION, THREAD))
    office.configure()  # another configuration, and none of the first one's objects
    asyncio.run(govern(original, "moved").ainvoke(Command(resume=2), THREAD))
    assert statuses(office, "moved") == ["completed"]
    assert calls(office, "moved") == [["one: tool_call look_up"] * 2]


def test_an_approval_is_asked_for_once(office: Office) -> None:
    marks = Marks()
    graph = govern(pausing(marks, "asked_tool", "look_up"), "asked once")
    approving(office, lambda: list(graph.stream(QUESTION, THREAD)))
    list(graph.stream(Command(resume=2), THREAD))
    assert calls(office, "asked once")[0].count("one: tool_call asked_tool") == 1
    assert statuses(office, "asked once") == ["completed"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("given", ["first", "second", "both"])
def test_a_namespace_of_the_caller_changes_nothing(
    office: Office, given: str, is_async: bool
) -> None:
    """LangGraph ignores the namespace that the outermost call is given. The run goes on in its
    chain, and nobody is asked again."""
    name, marks = f"namespace {given} {is_async}", Marks()
    graph = govern(pausing(marks, "asked_tool", "look_up"), name)

    def call(what: Any, named: bool) -> Any:
        config: Any = {"configurable": {"thread_id": "1"}}
        if named:
            config["configurable"]["checkpoint_ns"] = "mine"
        return asyncio.run(graph.ainvoke(what, config)) if is_async else graph.invoke(what, config)

    approving(office, lambda: call(QUESTION, given != "second"))
    assert statuses(office, name) == ["active"]
    call(Command(resume=2), given != "first")
    assert statuses(office, name) == ["completed"]
    assert calls(office, name) == [
        ["one: tool_call asked_tool", "one: tool_call look_up", "one: tool_call look_up"]
    ]


def test_a_breakpoint_keeps_the_chain_open(office: Office) -> None:
    graph = govern(pausing(Marks(), "look_up", interrupt_before=["one"]), "breakpoint")
    graph.invoke(QUESTION, THREAD)
    assert statuses(office, "breakpoint") == ["active"]
    graph.invoke(None, THREAD)
    graph.invoke(Command(resume=2), THREAD)
    assert statuses(office, "breakpoint") == ["completed"]


def test_every_attempt_of_a_retried_node_is_asked_for(office: Office) -> None:
    """An approval is for one run of a body: a retried node asks again."""
    marks, attempts = Marks(), []
    tool = marks.tool("asked_tool")

    def node(state: Any) -> Any:
        tool.invoke({"n": 1})
        attempts.append(1)
        if len(attempts) < 2:
            raise ConnectionError("once more")
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("one", node, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    builder.add_edge(START, "one")
    graph = govern(builder.compile(), "retried")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(graph.invoke, QUESTION)
        first = office.decide("approve")
        second = office.decide("approve")
        running.result(60)
    assert [a["id"] for a in first] != [a["id"] for a in second]
    assert calls(office, "retried") == [["one: tool_call asked_tool"] * 2]


def test_the_same_call_made_twice_is_recorded_twice(office: Office) -> None:
    tool = Marks().tool("look_up")
    builder = StateGraph(MessagesState)
    builder.add_node("one", lambda state: [tool.invoke({"n": 1}) for _ in "ab"] and {})
    builder.add_edge(START, "one")
    govern(builder.compile(), "twice").invoke(QUESTION)
    assert calls(office, "twice") == [["one: tool_call look_up"] * 2]


def test_a_run_that_was_cut_off_goes_on_in_its_chain(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(BaseException):
        """What a killed process leaves: nothing after it happens."""

    tool, cut = Marks().tool("look_up"), [True]

    def node(state: Any) -> Any:
        tool.invoke({"n": 1})
        if cut.pop():
            raise Cut
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("one", node)
    builder.add_edge(START, "one")
    graph = builder.compile(checkpointer=InMemorySaver())
    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr(countersign.Chain, "__exit__", lambda self, *reason: None)
        govern(graph, "cut off").invoke(QUESTION, THREAD, durability="sync")
    assert statuses(office, "cut off") == ["active"]
    cut.append(False)
    govern(graph, "cut off").invoke(None, THREAD)
    assert statuses(office, "cut off") == ["completed"]
    assert calls(office, "cut off") == [["one: tool_call look_up"]]


def test_a_new_question_on_the_thread_is_a_new_chain(office: Office) -> None:
    graph = govern(pausing(Marks(), "look_up"), "asked again")
    for _ in range(2):
        graph.invoke(QUESTION, THREAD)
        graph.invoke(Command(resume=2), THREAD)
    assert statuses(office, "asked again") == ["completed"] * 2


def test_a_run_that_begins_at_an_old_checkpoint_is_a_new_chain(office: Office) -> None:
    graph = govern(pausing(Marks(), "look_up"), "forked")
    graph.invoke(QUESTION, THREAD)
    graph.invoke(Command(resume=2), THREAD)
    start = [s for s in graph.get_state_history(THREAD) if s.next == ("one",)][-1]
    graph.invoke(None, start.config)
    if graph.get_state(THREAD).next:  # older versions reuse the first answer
        graph.invoke(Command(resume=3), THREAD)
    assert statuses(office, "forked") == ["completed"] * 2


def test_a_checkpoint_among_those_around_is_no_permission_either(office: Office) -> None:
    """A call may name an old checkpoint in ``checkpoint_map`` alone. Whether LangGraph then does
    the step again depends on its version: no body runs under a record of the first time."""
    name, marks = "sent back by the map", Marks()
    looked, after = marks.tool("look_up"), marks.tool("look_after")

    def first(state: Any) -> Any:
        looked.invoke({"n": 1})
        interrupt("the first?")
        after.invoke({"n": 2})
        return {}

    builder = StateGraph(MessagesState)
    builder.add_sequence([("first", first), ("second", lambda state: interrupt("the second?"))])
    builder.add_edge(START, "first")
    graph = govern(builder.compile(checkpointer=InMemorySaver()), name)
    graph.invoke(QUESTION, THREAD)
    graph.invoke(Command(resume=1), THREAD)
    answered = next(s for s in graph.get_state_history(THREAD) if s.next == ("first",))
    around = {"": answered.config["configurable"]["checkpoint_id"]}
    before = sum(map(len, calls(office, name)))
    marks.clear()
    named = {"thread_id": "1", "checkpoint_ns": "", "checkpoint_map": around}
    graph.invoke(Command(resume=2), {"configurable": named})
    assert sum(map(len, calls(office, name))) - before == len(marks)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("form", ["its own", "of a subgraph"])
def test_going_back_to_an_old_checkpoint_is_no_permission(
    office: Office, is_async: bool, form: str
) -> None:
    """A run that still waits for its user is sent back to a question that was answered already.
    What it does from there on is done once more: each body has a record and an approval of its
    own, and a call that resumes that run finds them."""
    marks = Marks()
    asked, after = marks.tool("asked_tool"), marks.tool("asked_after")

    def first(state: Any) -> Any:
        asked.invoke({"n": 1})
        interrupt("the first?")
        after.invoke({"n": 2})
        return {}

    def second(state: Any) -> Any:
        interrupt("the second?")
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    name = f"sent back {is_async} {form}"
    graph = govern(builder.compile(checkpointer=InMemorySaver()), name)

    def call(given: Any, config: Any = THREAD) -> Any:
        if is_async:
            return asyncio.run(graph.ainvoke(given, config))
        return graph.invoke(given, config)

    approving(office, lambda: call(QUESTION))
    approving(office, lambda: call(Command(resume=1)))
    newest = graph.get_state(THREAD)
    assert newest.next == ("second",)
    answered = next(s for s in graph.get_state_history(THREAD) if s.next == ("first",))
    old = answered.config
    if form == "of a subgraph":  # whose snapshot names the checkpoints of the graphs around it
        around = {"": old["configurable"]["checkpoint_id"]}
        named = {"checkpoint_ns": "inner:1", "checkpoint_id": "inner", "checkpoint_map": around}
        old = {"configurable": {"thread_id": "1", **named}}
    marks.clear()
    with ThreadPoolExecutor(1) as pool:
        back = pool.submit(call, Command(resume=2), old)
        office.decide("approve")
        office.decide("approve")
        back.result(60)
    assert marks == ["asked_tool", "asked_after"]
    call(Command(resume=3))
    (chain,) = office.chains(name)
    assert chain["status"] == "completed"
    assert calls(office, name) == [
        ["first: tool_call asked_tool", "first: tool_call asked_after"] * 2
    ]


def test_the_newest_checkpoint_may_be_named(office: Office) -> None:
    """Resuming with the configuration that ``get_state`` returns is resuming: nobody is asked
    again."""
    marks = Marks()
    graph = govern(pausing(marks, "asked_tool", "look_up"), "named")
    approving(office, lambda: graph.invoke(QUESTION, THREAD))
    graph.invoke(Command(resume=2), graph.get_state(THREAD).config)
    assert calls(office, "named")[0].count("one: tool_call asked_tool") == 1
    assert statuses(office, "named") == ["completed"]


def test_a_governed_graph_in_one_that_is_not_goes_on_in_its_chain(office: Office) -> None:
    inner = pausing(Marks(), "look_up")
    inner.checkpointer = None
    builder = StateGraph(MessagesState)
    builder.add_node("part", govern(inner, "part"))
    builder.add_edge(START, "part")
    outer = builder.compile(checkpointer=InMemorySaver())
    outer.invoke(QUESTION, THREAD)
    assert statuses(office, "part") == ["active"]
    outer.invoke(Command(resume=2), THREAD)
    assert statuses(office, "part") == ["completed"]
    assert calls(office, "part") == [["one: tool_call look_up"] * 2]


def test_two_runs_at_once_in_one_step_have_a_chain_each(office: Office) -> None:
    marks = Marks()
    part = govern(agent(marks, ["asked_tool"]), "two at once")

    async def node(state: Any) -> Any:
        await asyncio.gather(part.ainvoke(QUESTION), part.ainvoke(QUESTION))
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("both", node)
    builder.add_edge(START, "both")
    outer = builder.compile()
    approving(office, lambda: asyncio.run(outer.ainvoke(QUESTION)), count=2)
    assert statuses(office, "two at once") == ["completed"] * 2
    assert marks == ["asked_tool"] * 2


# -- steps that the service was not asked about ---------------------------------------------------


@pytest.mark.parametrize("before", [True, False], ids=["lease", "no lease"])
@pytest.mark.parametrize("after", [True, False], ids=["then a lease", "then none"])
def test_a_safe_step_is_recorded_once_with_and_without_a_lease(before: bool, after: bool) -> None:
    """The leases end with new rules or settings, and runs that were interrupted go on."""
    marks = Marks()
    graph = pausing(marks, "get_rate")
    with FakeService(fast_path=True) as fake:
        countersign.init(**fake.settings(), enable_local_fast_path=before)
        govern(graph).invoke(QUESTION, THREAD)
        countersign.init(**fake.settings(), enable_local_fast_path=after)
        govern(graph).invoke(Command(resume=2), THREAD)
        assert [e["action_name"] for e in fake.events] == ["enter_node", "get_rate", "get_rate"]
        assert [c["status"] for c in fake.chains] == ["completed"]
    assert marks == ["get_rate"] * 3


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_step_that_the_fail_mode_decided_is_decided_anew(is_async: bool) -> None:
    """It was reported under its key as done. The service does not answer with that when it is
    asked whether the step may be done again."""
    marks = Marks()

    def call(graph: Any, what: Any) -> None:
        asyncio.run(graph.ainvoke(what, THREAD)) if is_async else graph.invoke(what, THREAD)

    with FakeService() as fake:
        config = countersign.init(**fake.settings())
        tool = marks.tool("get_rate")

        def node(state: Any) -> Any:
            if not marks:
                fake.go_offline()
            tool.invoke({"n": 1})
            fake.come_back()
            interrupt("go on?")
            interrupt("still?")
            return {}

        builder = StateGraph(MessagesState)
        builder.add_node("one", node)
        builder.add_edge(START, "one")
        graph = govern(builder.compile(checkpointer=InMemorySaver()))
        call(graph, QUESTION)
        assert countersign.flush(10, config=config)
        assert fake.events[-1]["decision_source"] == "offline_stub"
        for answer in (1, 2):  # the second time, the record of the first is found
            call(graph, Command(resume=answer))
        told = [(e["action_name"], e["decision_source"], e.get("outcome")) for e in fake.events]
        assert told == [
            ("enter_node", "backend_evaluation", None),
            ("get_rate", "offline_stub", "succeeded"),
            ("get_rate", "backend_evaluation", "succeeded"),
        ]
        assert [c["status"] for c in fake.chains] == ["completed"]
