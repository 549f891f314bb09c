"""Runs that are resumed: by their thread and step, whatever else has changed meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from matrix import NIGHTLY
from office import Office
from scripted_agents import QUESTION, Marks, approving

import countersign
from countersign.adapters.langgraph import govern

THREAD: Any = {"configurable": {"thread_id": "1"}}
RESUME: Any = Command(resume=2)


def pausing(marks: Marks) -> Any:
    """A graph whose first call is asked about, and whose second comes after an interrupt."""
    asked, noted = marks.tools("asked_tool", "write_note")

    def node(state: Any) -> Any:
        asked.invoke({"n": 1})
        noted.invoke({"n": interrupt("go on?")})
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("one", node)
    builder.add_edge(START, "one")
    return builder.compile(checkpointer=InMemorySaver())


def told(office: Office, name: str) -> list[tuple[Any, list[str]]]:
    """Each chain of that name: its status, and the tools that were recorded."""
    return [
        (
            chain["status"],
            [line.split()[-1] for line in office.story(chain["id"]) if "tool_call" in line],
        )
        for chain in office.chains(name)
    ]


WHOLE = [("completed", ["asked_tool", "write_note"])]


# -- streams that are left --------------------------------------------------------------------


def _leave(graph: Any) -> None:
    for chunk in graph.stream(QUESTION, THREAD):
        if "__interrupt__" in chunk:
            break


def _close(graph: Any) -> None:
    items = graph.stream(QUESTION, THREAD)
    while "__interrupt__" not in next(items):
        pass
    items.close()


def _aleave(graph: Any) -> None:
    async def main() -> None:
        async for chunk in graph.astream(QUESTION, THREAD):
            if "__interrupt__" in chunk:
                break

    asyncio.run(main())


def _aclose(graph: Any) -> None:
    async def main() -> None:
        items = graph.astream(QUESTION, THREAD)
        while "__interrupt__" not in await items.__anext__():
            pass
        await items.aclose()

    asyncio.run(main())


def _events(graph: Any) -> None:
    async def main() -> None:
        async for event in graph.astream_events(QUESTION, THREAD, version="v2"):
            if "__interrupt__" in str(event.get("data")):
                break

    asyncio.run(main())


def _raise(graph: Any) -> None:
    class Enough(Exception):
        pass

    try:
        for chunk in graph.stream(QUESTION, THREAD):
            if "__interrupt__" in chunk:
                raise Enough
    except Enough:
        pass


def _values(graph: Any) -> None:
    for chunk in graph.stream(QUESTION, THREAD, stream_mode="values"):
        if "__interrupt__" in chunk:
            break


LEAVE: dict[str, Callable[[Any], object]] = {
    "break": _leave,
    "close": _close,
    "async break": _aleave,
    "aclose": _aclose,
    "events": _events,
    "an error of the consumer": _raise,
    "values": _values,
    "whole": lambda graph: list(graph.stream(QUESTION, THREAD)),
}


@pytest.mark.parametrize("how", LEAVE if NIGHTLY else ["break", "async break", "aclose"])
def test_a_stream_that_is_left_at_an_interrupt_goes_on(how: str, office: Office) -> None:
    """Leaving the stream seals nothing. Resuming goes on in the chain and asks nobody again."""
    name = f"left by {how}"
    graph = govern(pausing(Marks()), name)
    approving(office, lambda: LEAVE[how](graph))
    assert told(office, name) == [("active", ["asked_tool"])]
    graph.invoke(RESUME, THREAD)
    assert told(office, name) == WHOLE


def test_a_stream_that_is_left_while_it_waits_goes_on(office: Office) -> None:
    """A consumer that is cancelled, as by a closed connection, leaves the question open."""
    name, marks = "cancelled", Marks()
    asked, noted = marks.tools("asked_tool", "write_note")

    async def node(state: Any) -> Any:
        await asked.ainvoke({"n": 1})
        await noted.ainvoke({"n": 1})
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("one", node)
    builder.add_edge(START, "one")
    graph = govern(builder.compile(checkpointer=InMemorySaver()), name)

    async def main() -> None:
        running = asyncio.ensure_future(graph.ainvoke(QUESTION, THREAD))
        await asyncio.to_thread(office.waiting)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert told(office, name) == [("active", ["asked_tool"])]
    (first,) = office.waiting()
    approving(office, lambda: asyncio.run(graph.ainvoke(None, THREAD)))
    assert told(office, name) == WHOLE
    assert marks == ["asked_tool", "write_note"]
    records = office.server.events(office.chains(name)[0]["id"])
    assert [r["approval_id"] for r in records if r.get("approval_id")] == [first["id"]]


def test_a_stream_that_is_left_and_cannot_be_resumed_is_over(office: Office) -> None:
    tool = Marks().tool("write_note")
    builder = StateGraph(MessagesState)
    builder.add_sequence(
        [("one", lambda state: tool.invoke({"n": 1}) and {}), ("two", lambda s: {})]
    )
    builder.add_edge(START, "one")
    next(govern(builder.compile(), "had enough").stream(QUESTION))
    assert told(office, "had enough") == [("completed", ["write_note"])]


# -- what may change between the calls -----------------------------------------------------------


CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "chain name": {"chain_name": "other"},
    "metadata": {"metadata": {"release": 2}},
    "no metadata": {"metadata": None},
    "threshold": {"init": {"financial_approval_threshold_usd": 5}},
    "allowlist": {"init": {"external_domains_allowlist": ["example.com"]}},
    "environment": {"init": {"environment": "staging"}},
    "timeout": {"init": {"default_approval_timeout_hours": 1}},
    "fallback approvers": {"init": {"fallback_approvers": ["ops@example.com"]}},
}


@pytest.mark.parametrize("change", CHANGES if NIGHTLY else ["metadata", "threshold"])
def test_a_redeployed_run_goes_on_in_its_chain(change: str, office: Office) -> None:
    """Name, metadata and settings are those of the chain, from its first call on."""
    name, marks = f"changed {change}", Marks()
    graph = pausing(marks)
    first = govern(graph, name, {"release": 1})
    approving(office, lambda: first.invoke(QUESTION, THREAD))
    new = CHANGES[change]
    settings = {"api_key": office.key, "backend_url": office.server.url, **new.get("init", {})}
    countersign.init(**settings)
    again = govern(graph, new.get("chain_name", name), new.get("metadata", {"release": 1}))
    again.invoke(RESUME, THREAD)
    assert told(office, name) == WHOLE
    assert told(office, "other") == []
    assert office.chains(name)[0]["metadata"] == {"release": 1}


@pytest.mark.parametrize("kind", ["rotated", "an admin's", "another agent's"])
def test_a_run_is_resumed_with_another_secret_or_key(
    kind: str, office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    """A rotated secret, and a key that may see the chain, go on in it. Another agent's key must
    not: the run goes on in a chain of its own, and the log says so."""
    name, marks = f"resumed with a key: {kind}", Marks()
    graph = pausing(marks)
    made = office._call("POST", "/v1/api-keys", {"name": "first", "role": "agent"})
    countersign.init(api_key=made["key"], backend_url=office.server.url)
    approving(office, lambda: govern(graph, name).invoke(QUESTION, THREAD))
    if kind == "rotated":
        path = f"/v1/api-keys/{made['key_id']}/rotate"
        new = office._call("POST", path, {})["key"]
    elif kind == "an admin's":
        new = office.server.key
    else:
        new = office._call("POST", "/v1/api-keys", {"name": "other", "role": "agent"})["key"]
    countersign.init(api_key=new, backend_url=office.server.url)
    if kind == "another agent's":
        approving(office, lambda: govern(graph, name).invoke(RESUME, THREAD))
        assert [status for status, _ in told(office, name)] == ["active", "completed"]
        assert "may not use the one that it began in" in caplog.text
        return
    govern(graph, name).invoke(RESUME, THREAD)
    found = told(office, name)
    assert found[0] == WHOLE[0]
    assert all(chain == ("failed", []) for chain in found[1:])
    assert marks.count("asked_tool") == 2  # replayed, under its one record


def test_a_part_of_something_is_resumed_too(office: Office) -> None:
    """What was made of a governed graph pauses and goes on as the graph does."""
    name = "a part"
    whole = govern(pausing(Marks()), name) | (lambda state: state)
    approving(office, lambda: whole.invoke(QUESTION, THREAD))
    assert told(office, name) == [("active", ["asked_tool"])]
    whole.invoke(RESUME, THREAD)
    assert told(office, name) == WHOLE


# -- outcomes of what was broken off ---------------------------------------------------------------


def test_a_body_whose_process_was_killed_is_unknown_until_it_ran_again(
    office: Office, tmp_path: Path
) -> None:
    """The first process dies inside the body. The resumed run finds the record, says that nobody
    knows how the body ended, and settles it when it has run again."""
    command = [sys.executable, __file__, str(tmp_path)]
    environment = {
        **os.environ,
        "COUNTERSIGN_API_KEY": office.key,
        "COUNTERSIGN_BACKEND_URL": office.server.url,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    first = subprocess.Popen(command, env=environment)
    assert first.wait(120) == -signal.SIGKILL
    (chain,) = office.chains("killed in a body")
    assert office.outcomes(chain["id"]) == [None]
    assert subprocess.run(command, env=environment, timeout=120).returncode == 0
    assert [c["status"] for c in office.chains("killed in a body")] == ["completed"]
    assert office.outcomes(chain["id"]) == [("succeeded", None)]
    (record,) = (e for e in office.server.events(chain["id"]) if e["action_type"] == "tool_call")
    reported = [e["outcome"] for e in record["entries"] if e["kind"] == "outcome"]
    assert reported == ["unknown", "succeeded"]


def _killed_in_a_body() -> None:
    from langgraph_cases import FileSaver

    folder = Path(sys.argv[1])
    countersign.init()

    def body(n: int) -> str:
        if not (folder / "ran").exists():
            (folder / "ran").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    tool = Marks().tool("write_note", body)
    builder = StateGraph(MessagesState)
    builder.add_node("one", lambda state: tool.invoke({"n": 1}) and {})
    builder.add_edge(START, "one")
    saver = FileSaver(folder / "checkpoints")
    graph = govern(builder.compile(checkpointer=saver), "killed in a body")
    given = None if graph.get_state(THREAD).next else QUESTION
    graph.invoke(given, THREAD, durability="sync")


if __name__ == "__main__":
    _killed_in_a_body()
