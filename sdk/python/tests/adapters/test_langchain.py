"""Chains and agent executors, governed, against the real service, in every way of calling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_classic.agents import AgentExecutor, create_tool_calling_agent
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel
from langchain_runs import prepare
from office import Office
from scripted_agents import (
    QUESTION,
    Marks,
    ScriptedModel,
    agent,
    approving,
    approving_after_denial,
)
from waits import threads_of_waiting_runs
from ways import WAYS, Way

import countersign
from countersign.adapters import last_chain
from countersign.adapters.langchain import govern
from countersign.langchain import govern as alias
from countersign.testing import FakeService

pytestmark = pytest.mark.filterwarnings(
    "ignore:astream_log is deprecated", "ignore:The method .Chain", "ignore:.*langchain-classic"
)
PROMPT = ChatPromptTemplate.from_messages(
    [("user", "{input}"), MessagesPlaceholder("agent_scratchpad")]
)
GIVEN = {"input": "go"}


def executor(marks: Marks, *script: list[str], **options: Any) -> AgentExecutor:
    tools = marks.tools(*dict.fromkeys(name for turn in script for name in turn))
    made = create_tool_calling_agent(ScriptedModel(script=list(script)), tools, PROMPT)
    return AgentExecutor(agent=made, tools=tools, **options)


def sequence(marks: Marks, *script: list[str]) -> Runnable[Any, Any]:
    """A chain: a prompt, a model, and its tools, one after the other."""
    tools = {name: marks.tool(name) for turn in script for name in turn}
    steps: Any = RunnableLambda(lambda given: [("user", given["input"])]) | ScriptedModel(
        script=list(script)
    )
    for turn in script:
        for name in turn:
            steps = steps | RunnableLambda(lambda _: {"n": 1}) | tools[name]
    chain: Runnable[Any, Any] = steps | StrOutputParser()
    return chain


def binding(marks: Marks, *script: list[str]) -> Runnable[Any, Any]:
    return sequence(marks, *script).with_config(tags=["bound"])


MAKERS: dict[str, Callable[..., Any]] = {
    "AgentExecutor": executor,
    "RunnableSequence": sequence,
    "RunnableBinding": binding,
}
each = pytest.mark.parametrize("kind", MAKERS)
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def newest(office: Office, name: str) -> dict[str, Any]:
    return office.chains(name)[-1]


@each
@ways
def test_allowed_calls_run_and_are_listed_in_order(
    office: Office, kind: str, way: Way, request: pytest.FixtureRequest
) -> None:
    marks, name = Marks(), request.node.name
    way(govern(MAKERS[kind](marks, ["look_up"]), name), GIVEN)
    assert marks == ["look_up"]
    chain = newest(office, name)
    assert chain["status"] == "completed"
    assert office.story(chain["id"])[:3] == [
        f"{kind}: llm_call scripted-1",
        f"{kind}: llm_usage scripted-1",
        f"{kind}: tool_call look_up",
    ]


@each
@ways
def test_a_denied_tool_does_not_run_and_the_denial_is_raised(
    office: Office, kind: str, way: Way, request: pytest.FixtureRequest
) -> None:
    marks, name = Marks(), request.node.name
    with pytest.raises(countersign.ActionDeniedError) as caught:
        way(govern(MAKERS[kind](marks, ["denied_tool"], ["look_up"]), name), GIVEN)
    assert type(caught.value) is countersign.ActionDeniedError
    assert marks == []
    assert newest(office, name)["status"] == "failed"


@each
@ways
def test_an_approval_releases_the_tool_exactly_once(
    office: Office, kind: str, way: Way, request: pytest.FixtureRequest
) -> None:
    marks, name = Marks(), request.node.name
    governed = govern(MAKERS[kind](marks, ["asked_tool"]), name)
    approving(office, lambda: way(governed, GIVEN))
    assert marks == ["asked_tool"]
    story = office.story(newest(office, name)["id"])
    assert story.count(f"{kind}: tool_call asked_tool") == 1


def test_an_executor_step_by_step(office: Office) -> None:
    marks = Marks()
    assert list(govern(executor(marks, ["look_up"]), "steps").iter(GIVEN))
    assert marks == ["look_up"]
    assert newest(office, "steps")["status"] == "completed"
    no = govern(executor(marks, ["denied_tool"]))
    with pytest.raises(countersign.ActionDeniedError):
        list(no.iter(GIVEN))

    async def main() -> None:
        async for _ in no.iter(GIVEN):
            pass

    with pytest.raises(countersign.ActionDeniedError):
        asyncio.run(main())
    assert marks == ["look_up"]


def test_the_older_ways_of_calling_a_chain(office: Office) -> None:
    marks = Marks()
    no = govern(executor(marks, ["denied_tool"]))
    for call in (
        lambda: no(GIVEN),
        lambda: no.apply([GIVEN]),
        lambda: asyncio.run(no.acall(GIVEN)),
    ):
        with pytest.raises(countersign.ActionDeniedError):
            call()
    assert marks == []


def test_retries_and_fallbacks_do_not_swallow(office: Office) -> None:
    marks = Marks()
    no, other = marks.tools("denied_tool", "look_up")
    start: Any = RunnableLambda(lambda _: {"n": 1})
    makes = [
        govern(start | no.with_fallbacks([other])),
        govern(start | no.with_retry(stop_after_attempt=3)),
        govern(start | no).with_fallbacks([start | other]),
        govern(start | no).with_retry(stop_after_attempt=2),
        govern(start | no.with_fallbacks([RunnableLambda(lambda _: "fine")]) | start | other),
        govern(start) | no.with_fallbacks([other]),
    ]
    for made in makes:
        with pytest.raises(countersign.ActionDeniedError):
            made.invoke({})
        with pytest.raises(countersign.ActionDeniedError):
            asyncio.run(made.ainvoke({}))
    assert marks == []


def test_parallel_steps(office: Office) -> None:
    marks = Marks()
    asked, no = marks.tools("asked_tool", "denied_tool")
    start: Any = RunnableLambda(lambda _: {"n": 1})

    def once_asked(given: Any) -> Any:
        office.waiting()  # the other step: denied first, it would ask nobody
        return given

    later: Any = RunnableLambda(once_asked)
    both = govern(start | RunnableParallel(asked=asked, no=later | no))
    with pytest.raises(countersign.ActionDeniedError):
        approving_after_denial(office, lambda: both.invoke({}))
    assert marks == []


def test_an_executor_within_a_tool_of_another(office: Office) -> None:
    marks = Marks()
    inner = govern(executor(marks, ["denied_tool"]), "an inner executor")

    def delegate(n: int) -> str:
        try:
            inner.invoke(GIVEN)
        except Exception:
            pass
        return "fine"

    tools = [marks.tool("delegate", delegate), marks.tool("look_up")]
    made = create_tool_calling_agent(
        ScriptedModel(script=[["delegate"], ["look_up"]]), tools, PROMPT
    )
    with pytest.raises(countersign.ActionDeniedError):
        govern(AgentExecutor(agent=made, tools=tools), "an outer executor").invoke(GIVEN)
    assert marks == ["delegate"]
    assert office.chains("an inner executor") == []


def test_a_retriever_is_governed(office: Office) -> None:
    from langchain_core.retrievers import BaseRetriever

    marks = Marks()

    class DeniedRetriever(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            marks.append(query)
            return []

    retriever: Any = DeniedRetriever(name="denied_search")
    with pytest.raises(countersign.ActionDeniedError):
        govern(RunnableLambda(lambda _: "q") | retriever).invoke({})
    assert marks == []


def test_a_graph_is_governed_as_one_under_its_types_name(office: Office) -> None:
    marks = Marks()
    govern(agent(marks, ["look_up"]), "a graph").invoke(QUESTION)
    assert marks == ["look_up"]
    assert "CompiledStateGraph: tool_call look_up" in office.story(newest(office, "a graph")["id"])
    with pytest.raises(countersign.ActionDeniedError):
        govern(agent(marks, ["denied_tool"])).invoke(QUESTION)
    assert marks == ["look_up"]


def test_the_receipt_is_there_after_the_run_and_verifies(office: Office) -> None:
    asyncio.run(_main(office))


async def _main(office: Office) -> None:
    await govern(executor(Marks(), ["look_up"])).ainvoke(GIVEN)
    chain = last_chain()
    assert chain is not None
    assert chain.receipt is not None
    assert chain.name == "langchain_workflow"
    receipt_id = chain.receipt["receipt_id"]
    assert office.server.get(f"/v1/receipts/{receipt_id}/verify")["valid"] is True


def test_a_governed_chain_is_what_the_chain_was(office: Office) -> None:
    original = executor(Marks(), ["look_up"])
    governed = govern(original)
    assert isinstance(governed, AgentExecutor)
    assert governed.get_name() == "AgentExecutor"
    assert governed.tools == original.tools
    assert governed.max_iterations == original.max_iterations
    assert governed.model_copy().max_iterations == original.max_iterations
    assert type(original) is AgentExecutor
    assert alias is govern


def test_what_cannot_be_governed_is_refused_clearly() -> None:
    for given in (object(), Marks().tool("look_up")):
        with pytest.raises(TypeError, match=r"langchain\.govern takes"):
            govern(given)  # type: ignore[type-var]


def test_a_model_that_repeats_an_id_gets_a_record_for_each_call(office: Office) -> None:
    """An agent executor has no steps to tell calls apart by: each run of a body is recorded."""

    class Repeating(ScriptedModel):
        def _generate(self, messages: Any, *rest: Any, **named: Any) -> Any:
            result = super()._generate(messages, *rest, **named)
            message: Any = result.generations[0].message
            for call in message.tool_calls:
                call["id"] = "call-1"
            return result

    marks = Marks()
    tools = marks.tools("look_up")
    model = Repeating(script=[["look_up"]] * 3)
    made = AgentExecutor(agent=create_tool_calling_agent(model, tools, PROMPT), tools=tools)
    govern(made, "repeated id").invoke(GIVEN)
    assert marks == ["look_up"] * 3
    chain = newest(office, "repeated id")
    assert office.outcomes(chain["id"]) == [("succeeded", None)] * 3


def test_waiting_runs_hold_no_threads(office: Office) -> None:
    """Async runs that wait for people wait on their event loop."""
    runs, threads = threads_of_waiting_runs(office, prepare)
    assert threads < runs / 4


def test_a_hook_is_no_task_of_its_own() -> None:
    """An event loop takes longer to start a task than most hooks do: a governed run starts one for
    each outcome, which is reported even if the run is cancelled, and none for its hooks."""
    started = []

    def factory(loop: Any, work: Any, **options: Any) -> Any:
        started.append(work)
        return asyncio.Task(work, loop=loop, **options)

    async def tasks_of(run: Callable[[], Any]) -> int:
        asyncio.get_running_loop().set_task_factory(factory)
        started.clear()
        await run()
        return len(started)

    with FakeService() as service:
        countersign.init(**service.settings())
        tools = ["look_up"] * 5
        ungoverned = asyncio.run(tasks_of(prepare(tools, None)))
        governed = asyncio.run(tasks_of(prepare(tools, "tasks")))
        outcomes = sum("outcome" in event for event in service.events)
    assert outcomes >= len(tools)
    assert governed - ungoverned <= outcomes + 1  # and one that completes the chain


@pytest.mark.parametrize("way", ["a handler", "astream_events"])
def test_others_learn_of_a_call_while_a_reviewer_decides(office: Office, way: str) -> None:
    """A program shows what its agent waits for: its handlers, and those of a stream of events, are
    told of a call when it is made."""
    marks = Marks()
    told = asyncio.Event()

    class Telling(AsyncCallbackHandler):
        async def on_tool_start(self, *_: Any, **__: Any) -> None:
            told.set()

    async def use(made: Runnable[Any, Any]) -> None:
        if way == "a handler":
            await made.ainvoke(GIVEN, {"callbacks": [Telling()]})
            return
        async for event in made.astream_events(GIVEN, version="v2"):
            if event["event"] == "on_tool_start":
                told.set()

    async def main() -> None:
        run = asyncio.ensure_future(use(govern(executor(marks, ["asked_pay"]), "told")))
        (approval,) = await asyncio.to_thread(office.waiting, 1)
        await asyncio.wait_for(told.wait(), 30)
        assert marks == []
        await asyncio.to_thread(office.approve, approval)
        await run

    asyncio.run(main())
    assert marks == ["asked_pay"]
