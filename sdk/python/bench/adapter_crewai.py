"""What governing a crew costs.

    python bench/adapter_crewai.py --binary ../../bin/countersign [--calls 20] [--rounds 7]

A scripted clerk calls one tool, again and again, with a model call before each.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import costs  # first: it finds the tests' own parts
from crewai_scripts import Marks, crew_of
from office import Office

import countersign
from countersign.adapters import last_chain
from countersign.adapters.crewai import govern


def crew(calls: int) -> Any:
    made = crew_of(Marks(), *[[("plain", {"amount": n})] for n in range(calls)], "done")
    made.agents[0].max_iter = calls + 5
    return made


def events_of(office: Office, calls: int) -> list[dict[str, Any]]:
    """What the adapter records of a run."""
    govern(crew(calls)).kickoff()
    chain = last_chain()
    assert chain is not None
    return office.server.events(str(chain.id))


def by_hand(events: list[dict[str, Any]]) -> None:
    with countersign.Chain("by hand") as chain:
        for event in events:
            decision = chain.record_agent_action_sync(
                event["agent_name"],
                event["action_type"],
                event["action_name"],
                event["payload"],
                metadata=event.get("metadata"),
            )
            if event.get("outcome"):
                chain.record_outcome_sync(decision, "succeeded")


def main() -> None:
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    given = costs.arguments(__doc__)
    with costs.service(given.binary) as office:
        events = events_of(office, given.calls)
        costs.measure(
            lambda: govern(crew(given.calls)).kickoff(),
            lambda: crew(given.calls).kickoff(),
            lambda: by_hand(events),
            given.rounds,
        )


if __name__ == "__main__":
    main()
