"""What governing costs: (governed run - ungoverned run) against the same events sent by hand."""

# ruff: noqa: E402 - the tests' own parts are found first
from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / part) for part in ("", "adapters")]

from office import Office

import countersign
from server import Server

__all__ = ["arguments", "measure", "service"]

LIMIT = 1.3
"""Of what the events cost by hand: more than that is the adapter's own."""


def arguments(text: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


@contextmanager
def service(binary: str) -> Iterator[Office]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(binary, Path(folder), None)
        server.start()
        try:
            office = Office(server)
            office.configure()
            yield office
            office.close()
            countersign.close()
        finally:
            server.kill()


def measure(
    governed: Callable[[], Any],
    ungoverned: Callable[[], Any],
    by_hand: Callable[[], Any],
    rounds: int,
) -> None:
    """Print the medians, and the ratio that is bounded: of the time that elapsed, and of what this
    process used, which a busy machine does not blur. The sides take turns, so that a busy moment
    hits all of them."""
    sides = {"governed": governed, "ungoverned": ungoverned, "events by hand": by_hand}
    clocks = {"elapsed": time.perf_counter, "this process": time.process_time}
    took: dict[str, dict[str, list[float]]] = {c: {name: [] for name in sides} for c in clocks}
    for turn in range(rounds + 1):
        for name, run in sides.items():
            began = {clock: now() for clock, now in clocks.items()}
            run()
            if turn:  # the first one warms up
                for clock, now in clocks.items():
                    took[clock][name].append(now() - began[clock])
    for clock, times in took.items():
        median = {name: statistics.median(times[name]) for name in sides}
        shown = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in median.items())
        ratio = (median["governed"] - median["ungoverned"]) / median["events by hand"]
        verdict = "within" if ratio <= LIMIT else "OVER"
        sys.stdout.write(f"{clock}: {shown}\n")
        sys.stdout.write(f"  (governed - ungoverned) / by hand = {ratio:.2f}: {verdict} {LIMIT}\n")
