"""What governing costs: a governed run against the same actions recorded by hand.

    python bench/adapters.py --binary ../../bin/countersign [--calls 100] [--rounds 5]

Starts a service of its own. Both sides run the same graph with the same tools. On one side it
is governed; on the other each tool records itself, and what the adapter records besides (nodes
and model calls) is recorded by hand too. The ratio of the medians is the adapter's overhead.
"""

# ruff: noqa: E402 - the tests' own parts are found first
from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / part) for part in ("", "adapters")]

from langchain.agents import create_agent
from office import Office
from scripted_agents import QUESTION, Marks, ScriptedModel

import countersign
from countersign.adapters import last_chain
from countersign.adapters.langgraph import govern
from server import Server

OPTIONS: Any = {"recursion_limit": 1000}


def graph_of(calls: int, body: Callable[[int], Any] | None = None) -> Any:
    """An agent that calls a tool so often, ten at a time."""
    tool = Marks().tool("look_up", body)
    return create_agent(ScriptedModel(script=[["look_up"] * 10] * (calls // 10)), [tool])


def others_of(office: Office, calls: int) -> list[dict[str, Any]]:
    """What the adapter records of a run besides the tool calls."""
    govern(graph_of(calls)).invoke(QUESTION, OPTIONS)
    chain = last_chain()
    assert chain is not None
    return [e for e in office.server.events(chain.id) if e["action_type"] != "tool_call"]


def by_hand(calls: int, others: list[dict[str, Any]]) -> Callable[[], None]:
    """The same graph with actions recorded by hand: the tool calls from within the graph, the
    others one after the other."""

    def run() -> None:
        with countersign.Chain("by hand") as chain:

            def record(n: int) -> str:
                chain.record_agent_action_sync("agent", "tool_call", "look_up", {"n": n})
                return "fine"

            for event in others:
                chain.record_agent_action_sync(
                    event["agent_name"],
                    event["action_type"],
                    event["action_name"],
                    event["payload"],
                    metadata=event.get("metadata"),
                )
            graph_of(calls, record).invoke(QUESTION, OPTIONS)

    return run


def medians(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Each side's median, the sides taking turns so that a busy moment hits all of them."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, run in sides.items():
            began = time.perf_counter()
            run()
            if turn:  # the first one warms up
                took[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(given.binary, Path(folder), None)
        server.start()
        try:
            office = Office(server)
            office.configure()
            governed = govern(graph_of(given.calls))
            others = others_of(office, given.calls)
            sides = {
                "governed": lambda: governed.invoke(QUESTION, OPTIONS),
                "all of it by hand": by_hand(given.calls, others),
                "the tools by hand": by_hand(given.calls, []),
                "ungoverned": lambda: graph_of(given.calls).invoke(QUESTION, OPTIONS),
            }
            took = medians(sides, given.rounds)
            office.close()
            countersign.close()
        finally:
            server.kill()
    for name, seconds in took.items():
        ratio = took["governed"] / seconds
        sys.stdout.write(f"{name:20} {seconds * 1e3:8.1f} ms   governed / this = {ratio:.2f}\n")


if __name__ == "__main__":
    main()
