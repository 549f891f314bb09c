"""Arguments are recorded by what is in them, and an approval is for that alone."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from langchain_core.documents import Document
from langchain_core.tools import InjectedToolArg, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from office import Office
from pydantic import BaseModel, Field
from scripted_agents import QUESTION

import countersign
from countersign.adapters.langgraph import govern

THREAD: Any = {"configurable": {"thread_id": "1"}}


class Plain:
    def __init__(self, amount: Any) -> None:
        self.amount = amount


class Slotted:
    __slots__ = ("amount",)

    def __init__(self, amount: Any) -> None:
        self.amount = amount


@dataclass
class Data:
    amount: Any
    lines: list[Any] = field(default_factory=list)


class Model(BaseModel):
    amount: Any = Field(exclude=True)


def nested(amount: Any) -> Any:
    return {"orders": [Data(1, [Plain(amount)])]}


KINDS = [Plain, Slotted, Data, lambda amount: Model(amount=amount), nested]
NAMES = ["plain", "slots", "dataclass", "pydantic", "nested"]
each = pytest.mark.parametrize("make", KINDS, ids=NAMES)


def amount_in(value: Any) -> Any:
    """The amount that an object of these kinds holds."""
    if isinstance(value, dict):
        return amount_in(value["orders"][0].lines[0])
    return value.amount


def change(value: Any, amount: Any) -> None:
    """Give it another one."""
    if isinstance(value, dict):
        value = value["orders"][0].lines[0]
    value.amount = amount


def graph_of(node: Any, **options: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("one", node)
    builder.add_edge(START, "one")
    return builder.compile(**options)


def paying(ran: list[Any]) -> StructuredTool:
    def pay(order: Any) -> str:
        ran.append(amount_in(order))
        return "paid"

    return StructuredTool.from_function(pay, name="asked_pay", description="pays")


def payloads(office: Office, name: str) -> list[Any]:
    events = office.server.events(office.chains(name)[-1]["id"])
    return [e["payload"] for e in events if e["action_type"] == "tool_call"]


@each
def test_an_object_that_changes_during_the_wait_is_not_carried_out(
    office: Office, make: Any, request: pytest.FixtureRequest
) -> None:
    """Approved with 5, it must not run with 9,000."""
    ran: list[Any] = []
    order, name = make(5), request.node.name
    graph = govern(graph_of(lambda state: paying(ran).invoke({"order": order}) and {}), name)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(graph.invoke, QUESTION)
        office.waiting()
        change(order, 9000)
        office.decide("approve")
        with pytest.raises(countersign.PolicyViolationError):
            running.result(60)
    assert ran == []
    assert "5" in str(payloads(office, name))


@each
def test_a_replay_with_another_object_is_another_step(
    office: Office, make: Any, request: pytest.FixtureRequest
) -> None:
    """A resumed node that pays 9,000 where it had paid 5 does not find the approval of 5."""
    ran: list[Any] = []
    amounts, name = [5, 9000], request.node.name

    def node(state: Any) -> Any:
        paying(ran).invoke({"order": make(amounts.pop(0))})
        interrupt("go on?")
        return {}

    graph = govern(graph_of(node, checkpointer=InMemorySaver()), name)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(graph.invoke, QUESTION, THREAD)
        office.decide("approve")
        running.result(60)
        again = pool.submit(graph.invoke, Command(resume="yes"), THREAD)
        office.decide("deny")
        with pytest.raises(countersign.ActionDeniedError):
            again.result(60)
    assert ran == [5]


@each
def test_a_replay_with_the_same_object_finds_its_approval(
    office: Office, make: Any, request: pytest.FixtureRequest
) -> None:
    """An equal object, made again, is the same argument: nobody is asked twice."""
    ran: list[Any] = []

    def node(state: Any) -> Any:
        paying(ran).invoke({"order": make(5)})
        interrupt("go on?")
        return {}

    graph = govern(graph_of(node, checkpointer=InMemorySaver()), request.node.name)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(graph.invoke, QUESTION, THREAD)
        office.decide("approve")
        running.result(60)
    graph.invoke(Command(resume="yes"), THREAD)
    assert len(payloads(office, request.node.name)) == 1


def test_what_cannot_be_read_matches_nothing(office: Office) -> None:
    """A function has no content that a reviewer could see: its mark is its own."""

    def use(what: Any) -> str:
        return "used"

    tool = StructuredTool.from_function(use, name="look_up", description="uses")

    def node(state: Any) -> Any:
        for _ in range(2):
            tool.invoke({"what": object()})
        return {}

    govern(graph_of(node), "unreadable").invoke(QUESTION)
    first, second = (payload["what"] for payload in payloads(office, "unreadable"))
    assert first.startswith("<object ")
    assert first != second


@pytest.mark.parametrize("is_async", [False, True])
def test_defaults_are_recorded(office: Office, is_async: bool) -> None:
    """What a tool is carried out with stands in its record, also where nobody has said it."""

    def pay(
        n: int, amount: int = 9, account: Annotated[str, InjectedToolArg] = "secret-account"
    ) -> str:
        return "paid"

    async def apay(n: int, amount: int = 9, account: str = "") -> str:
        return "paid"

    tool = StructuredTool.from_function(
        pay, None if not is_async else apay, name="look_up", description="pays"
    )

    async def anode(state: Any) -> Any:
        await tool.ainvoke({"n": 1})

    name = f"defaults {is_async}"
    if is_async:
        asyncio.run(govern(graph_of(anode), name).ainvoke(QUESTION))
    else:
        govern(graph_of(lambda state: tool.invoke({"n": 1}) and {}), name).invoke(QUESTION)
    assert payloads(office, name) == [{"n": 1, "amount": 9}]


def test_a_document_is_an_argument(office: Office) -> None:
    """The framework's own data, given to a tool, is recorded."""

    def file(document: Any) -> str:
        return "filed"

    tool = StructuredTool.from_function(file, name="look_up", description="files")
    given = {"document": Document("a contract")}
    govern(graph_of(lambda state: tool.invoke(given) and {}), "documents").invoke(QUESTION)
    assert "a contract" in str(payloads(office, "documents"))
