"""The bodies of CrewAI's tools: each run has a record and an outcome, whoever starts it."""

# With and without the framework's types.
# mypy: disallow-subclassing-any=False, disallow-untyped-decorators=False, warn-unused-ignores=False

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from crewai_scripts import BaseTool, Crew, Marks, ScriptedModel, agent, crew_of, task, tool
from office import Office
from pydantic import BaseModel, Field

import countersign
from countersign.adapters.crewai import govern

pytestmark = pytest.mark.filterwarnings("ignore")

WAYS: dict[str, Callable[[Crew], Any]] = {
    "kickoff": lambda crew: crew.kickoff(),
    "kickoff_async": lambda crew: asyncio.run(crew.kickoff_async()),
    "akickoff": lambda crew: asyncio.run(crew.akickoff()),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
both_loops = pytest.mark.parametrize("native", [True, False], ids=["native", "react"])


@pytest.fixture
def chain_name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def calls(office: Office, name: str) -> list[tuple[str, Any, Any]]:
    """Name, payload and outcome of every tool call."""
    (chain,) = office.chains(name)
    return [
        (e["action_name"], e["payload"], (e.get("outcome") or {}).get("outcome"))
        for e in office.server.events(chain["id"])
        if e["action_type"] == "tool_call"
    ]


def crew_with(*tools: Any, native: bool = True, lines: Any = (), **settings: Any) -> Crew:
    clerk = agent("clerk", ScriptedModel(*lines, "done", native=native), list(tools))
    return Crew(agents=[clerk], tasks=[task("first", clerk, **settings)])


@every_way
@both_loops
def test_outcomes_are_recorded(
    office: Office, chain_name: str, way: Callable[[Crew], Any], native: bool
) -> None:
    """A tool that returns has succeeded, and so has a model call. Defaults are recorded."""
    marks = Marks()
    way(govern(crew_of(marks, [("plain", {})], "done", native=native), chain_name))
    assert marks == ["plain 0"]
    assert calls(office, chain_name) == [("plain", {"amount": 0}, "succeeded")]
    (chain,) = office.chains(chain_name)
    assert office.outcomes(chain["id"], "llm_call") == [("succeeded", None)] * 2


@every_way
@both_loops
def test_a_failure_is_recorded_by_its_type_and_a_retry_by_itself(
    office: Office, chain_name: str, way: Callable[[Crew], Any], native: bool
) -> None:
    """CrewAI tries some tools again: there are as many records as bodies that ran."""
    ran = []

    @tool("plain")
    def plain(amount: int = 0) -> str:
        """Does something harmless."""
        ran.append(amount)
        raise LookupError("card 4111")

    way(govern(crew_with(plain, lines=[[("plain", {"amount": 1})]], native=native), chain_name))
    (chain,) = office.chains(chain_name)
    assert ran
    assert office.outcomes(chain["id"]) == [("failed", "LookupError")] * len(ran)


@every_way
@pytest.mark.parametrize("method", ["run", "_run", "invoke"])
def test_a_tool_that_another_tool_runs_is_governed(
    office: Office, chain_name: str, way: Callable[[Crew], Any], method: str
) -> None:
    """A tool's own run() is decided on like a call of an agent."""
    marks = Marks()
    plain, _, wipe = marks.tools()

    @tool("deputy")
    def deputy() -> str:
        """Has others do it."""
        for it in (plain, wipe):
            if method == "invoke":
                it.to_structured_tool().invoke({"amount": 3})
            else:
                getattr(it, method)(amount=3)
        return "fine"

    with pytest.raises(countersign.ActionDeniedError):
        way(govern(crew_with(deputy, lines=[[("deputy", {})]]), chain_name))
    assert marks == ["plain 3"]
    assert calls(office, chain_name) == [
        ("deputy", {}, "failed"),
        ("plain", {"amount": 3}, "succeeded"),
        ("denied_wipe", {"amount": 3}, None),
    ]


def test_what_a_tool_has_done_in_a_thread_is_its_agents(office: Office, chain_name: str) -> None:
    """A thread that a tool starts acts for the agent of the tool: rules about the agent apply."""
    marks = Marks()
    plain, _, _ = marks.tools()

    @tool("deputy")
    def deputy() -> str:
        """Has threads do it."""
        with ThreadPoolExecutor() as pool:
            pool.submit(plain.run, amount=1).result(60)
        thread = threading.Thread(target=plain.run, kwargs={"amount": 2})
        thread.start()
        thread.join(60)
        return "fine"

    govern(crew_with(deputy, lines=[[("deputy", {})]]), chain_name).kickoff()
    assert marks == ["plain 1", "plain 2"]
    (chain,) = office.chains(chain_name)
    story = [told for told in office.story(chain["id"]) if "tool_call" in told]
    assert story == ["clerk: tool_call deputy"] + ["clerk: tool_call plain"] * 2


def test_a_tool_that_runs_itself_is_recorded_each_time(office: Office, chain_name: str) -> None:
    """The permit of a call is not good for the calls that its body makes."""
    marks = Marks()

    @tool("plain")
    def plain(amount: int = 0) -> str:
        """Counts down."""
        marks.leave(f"plain {amount}")
        return str(plain.run(amount=amount - 1)) if amount else "fine"

    govern(crew_with(plain, lines=[[("plain", {"amount": 2})]]), chain_name).kickoff()
    assert len(marks) == 3
    assert [given["amount"] for _, given, _ in calls(office, chain_name)] == [2, 1, 0]


def test_a_tool_that_a_guardrail_runs_is_governed(office: Office, chain_name: str) -> None:
    """Guardrails and callbacks run tools outside of any agent's loop."""
    marks = Marks()
    _, _, wipe = marks.tools()

    guardrail = lambda output: (bool(wipe.run(amount=1)), output)  # noqa: E731 - no annotations
    with pytest.raises(countersign.ActionDeniedError):
        govern(crew_with(wipe, guardrail=guardrail), chain_name).kickoff()
    assert marks == []
    assert [name for name, _, _ in calls(office, chain_name)] == ["denied_wipe"]


@every_way
@both_loops
def test_a_tool_over_its_limit_is_recorded_once(
    office: Office, chain_name: str, way: Callable[[Crew], Any], native: bool
) -> None:
    """What was not carried out says so, and lets nothing else through."""
    ran = []

    @tool("plain", max_usage_count=1)
    def plain(amount: int = 0) -> str:
        """Does something harmless."""
        ran.append(amount)
        return "fine"

    lines = [[("plain", {"amount": 1})], [("plain", {"amount": 2})]]
    way(govern(crew_with(plain, lines=lines, native=native), chain_name))
    assert ran == [1]
    recorded = [(given["amount"], outcome) for _, given, outcome in calls(office, chain_name)]
    assert recorded == [(1, "succeeded"), (2, "unknown")]


class Reference(BaseModel):
    """Arguments of which the tool itself makes one."""

    amount: int
    reference: str = Field(default_factory=lambda: uuid.uuid4().hex)


@every_way
@both_loops
def test_a_default_that_is_made_for_each_call_is_left_to_the_tool(
    office: Office, chain_name: str, way: Callable[[Crew], Any], native: bool
) -> None:
    """A call is recorded once, and not with another value than the one that the tool makes: that is
    not known yet. It was made twice before the tool ran, so that the call was taken for another
    one and recorded again."""
    ran: list[str] = []

    class Pay(BaseTool):
        name: str = "pay"
        description: str = "Pays something harmless."
        args_schema: type[BaseModel] = Reference

        def _run(self, amount: int, reference: str) -> str:
            ran.append(reference)
            return "done"

    way(govern(crew_with(Pay(), lines=[[("pay", {"amount": 1})]], native=native), chain_name))
    ((name, payload, outcome),) = calls(office, chain_name)
    assert (name, payload["amount"], outcome) == ("pay", 1, "succeeded")
    assert len(ran) == 1
    assert payload["reference"].startswith("<function")
