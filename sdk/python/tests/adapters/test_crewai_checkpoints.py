"""Crews of CrewAI that go on from a checkpoint."""

# With and without the framework's types.
# mypy: disallow-subclassing-any=False, disallow-untyped-decorators=False, warn-unused-ignores=False

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crewai_scripts import Crew, ScriptedModel, agent, task
from office import Office

import countersign
from countersign.adapters.crewai import govern

# After the scripts, which keep CrewAI from asking questions at its import.
from crewai import TaskOutput  # isort: skip
from crewai.agents.agent_builder import base_agent  # isort: skip
from crewai.state.checkpoint_config import CheckpointConfig  # isort: skip
from crewai.state.runtime import RuntimeState  # isort: skip
from crewai.tools import BaseTool  # isort: skip

pytestmark = pytest.mark.filterwarnings("ignore")

MARKS: list[str] = []
LINES: list[Any] = []


class Wipe(BaseTool):
    """A checkpoint names a tool's class: it is not one of a function."""

    name: str = "denied_wipe"
    description: str = "Wipes everything."

    def _run(self, amount: int = 0) -> str:
        MARKS.append(self.name)
        return "done"


class Plain(Wipe):
    name: str = "plain"


class RestoredModel(ScriptedModel):
    """Says the lines of the test, wherever it was made."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.lines = LINES


@pytest.fixture
def chain_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test's chains have."""
    return str(request.node.name)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointConfig:
    """A checkpoint of a crew whose first task is done."""
    monkeypatch.setitem(
        base_agent._LLM_TYPE_REGISTRY, "base", f"{__name__}.{RestoredModel.__name__}"
    )
    MARKS.clear()
    crew = new_crew()
    crew._kickoff_event_id = "begun"
    crew.tasks[0].output = TaskOutput(description="do first", agent="clerk", raw="a word")
    state = RuntimeState(root=[crew])
    return CheckpointConfig(
        location=str(tmp_path), restore_from=state.checkpoint(str(tmp_path)), on_events=[]
    )


def new_crew() -> Crew:
    clerk = agent("clerk", RestoredModel(), [Wipe(), Plain()])
    return Crew(agents=[clerk], tasks=[task("first", clerk), task("second", clerk)])


def streamed(crew: Crew, saved: CheckpointConfig) -> None:
    restored = crew.from_checkpoint(saved)
    restored.stream = True
    for _ in restored.kickoff():
        pass


WAYS: dict[str, Callable[[Crew, CheckpointConfig], Any]] = {
    "kickoff": lambda crew, saved: crew.kickoff(from_checkpoint=saved),
    "kickoff, by place": lambda crew, saved: crew.kickoff(None, None, saved),
    "kickoff_async": lambda crew, saved: asyncio.run(crew.kickoff_async(from_checkpoint=saved)),
    "akickoff": lambda crew, saved: asyncio.run(crew.akickoff(from_checkpoint=saved)),
    "from_checkpoint": lambda crew, saved: crew.from_checkpoint(saved).kickoff(),
    "fork": lambda crew, saved: crew.fork(saved, "another").kickoff(),
    "stream": streamed,
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


@every_way
def test_what_a_restored_crew_does_is_recorded(
    office: Office,
    chain_name: str,
    saved: CheckpointConfig,
    way: Callable[[Crew, CheckpointConfig], Any],
) -> None:
    """A governed crew that goes on from a checkpoint is governed as before, in a chain of its own,
    and does only what is left to do."""
    LINES[:] = [[("plain", {})], "done"]
    way(govern(new_crew(), chain_name), saved)
    assert MARKS == ["plain"]
    (chain,) = office.chains(chain_name)
    assert chain["status"] == "completed"
    story = office.story(chain["id"])
    assert story.count("clerk: state_update enter_task") == 1
    assert story.count("clerk: tool_call plain") == 1


@every_way
def test_a_restored_crew_does_nothing_that_is_denied(
    office: Office,
    chain_name: str,
    saved: CheckpointConfig,
    way: Callable[[Crew, CheckpointConfig], Any],
) -> None:
    """A denied tool of a restored crew does not run, and its kickoff raises the denial."""
    LINES[:] = [[("denied_wipe", {})], [("plain", {})], "done"]
    with pytest.raises(countersign.ActionDeniedError, match="This is never done"):
        way(govern(new_crew(), chain_name), saved)
    assert MARKS == []
    (chain,) = office.chains(chain_name)
    assert chain["status"] == "failed"


@pytest.mark.parametrize("name", ["from_checkpoint", "fork"])
def test_the_class_of_a_governed_crew_restores_nothing(saved: CheckpointConfig, name: str) -> None:
    """It does not know how the crew is to be governed, and says what to do instead."""
    kind = type(govern(new_crew()))
    with pytest.raises(TypeError, match=f"govern what Crew.{name} returns"):
        getattr(kind, name)(saved)
