"""What governing costs an agent's run, and what waiting costs its event loop.

    $(scripts/adapter-environment mcp newest) bench/adapters.py --binary BINARY mcp

It takes the adapters' names, whose frameworks must be installed, and starts a service of its own.

The cost: (governed run - ungoverned run) / the same events and outcomes sent by hand. The sides
take turns, so that a busy moment hits all of them. What counts is this process's own time, in the
quickest round of each side: other programs can only add to it.

With ``--waits 200`` so many async runs are started, one after the other, once with a tool that
needs no approval and once with one that does: what waiting adds to the 99th percentile of the
event loop's lag, and how many threads there were. Other programs add to the lag too. So it also
tells for how long the loop's thread was busy between two looks at it: without them, the lag is no
longer than that.
"""

# ruff: noqa: E402 - the tests' own parts are found first
from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / part) for part in ("", "adapters")]

from office import Office

import countersign
from server import Server

LIMIT = 1.3
"""Of what the events cost by hand: more than that is the adapter's own."""
LAG_LIMIT = 0.005
"""Seconds that waiting may add to the 99th percentile of the loop's lag."""
Prepare = Callable[[Sequence[str], "str | None"], Callable[[], object]]
"""Makes a run that calls the tools, in the chain of that name, or ungoverned without one."""
Event = dict[str, Any]


def runs_of(name: str) -> Any:
    return import_module(f"{name.replace('-', '_')}_runs")


def ways_of(name: str) -> Iterator[tuple[str, Prepare, Callable[[list[Event]], None]]]:
    """The ways in which an adapter's runs are made, with the same way of sending by hand."""
    runs = runs_of(name)

    def prepare(tools: Sequence[str], chain_name: str | None) -> Callable[[], object]:
        run = runs.prepare(tools, chain_name)

        async def main() -> None:
            await run()

        return lambda: asyncio.run(main())

    yield name, prepare, send_async
    if hasattr(runs, "prepare_sync"):
        yield f"{name}, sync", runs.prepare_sync, send_sync


# -- the cost of a run ---------------------------------------------------------------------


def send_sync(events: list[Event]) -> None:
    with countersign.Chain("by hand") as chain:
        for event in events:
            decision = chain.record_agent_action_sync(*action_of(event), **details_of(event))
            if event.get("outcome"):
                chain.record_outcome_sync(decision, "succeeded")


def send_async(events: list[Event]) -> None:
    async def main() -> None:
        async with countersign.Chain("by hand") as chain:
            for event in events:
                decision = await chain.record_agent_action(*action_of(event), **details_of(event))
                if event.get("outcome"):
                    await chain.record_outcome(decision, "succeeded")

    asyncio.run(main())


def action_of(event: Event) -> tuple[str, str, str, Any]:
    return event["agent_name"], event["action_type"], event["action_name"], event["payload"]


def details_of(event: Event) -> dict[str, Any]:
    return {name: event.get(name) for name in ("parent_agent_name", "metadata")}


def cost(
    office: Office, prepare: Prepare, send: Callable[[list[Event]], None], calls: int, rounds: int
) -> dict[str, Any]:
    tools = ["plain"] * calls
    prepare(tools, "sample")()
    events = office.server.events(office.chains("sample")[-1]["id"])
    sides: dict[str, Callable[[], Callable[[], object]]] = {
        "governed": lambda: prepare(tools, "governed"),
        "ungoverned": lambda: prepare(tools, None),
        "by hand": lambda: lambda: send(events),
    }
    done: list[dict[str, float]] = []
    spoiled = 0
    while len(done) <= rounds:
        try:
            done.append({side: cpu_seconds(work()) for side, work in sides.items()})
        except countersign.BackendUnavailableError:
            # On a busy machine the service's answers come too late to count.
            spoiled += 1
            if spoiled > rounds:
                raise
    del done[0]  # it warms up
    least = {side: min(took[side] for took in done) for side in sides}
    middle = {side: statistics.median(took[side] for took in done) for side in sides}
    return {
        "events": len(events),
        "cpu_ms": {side: seconds * 1e3 for side, seconds in least.items()},
        "ratio": ratio_of(least),
        "ratio_of_medians": ratio_of(middle),
        "rounds": done,
        "spoiled_rounds": spoiled,
    }


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def ratio_of(took: dict[str, float]) -> float:
    return (took["governed"] - took["ungoverned"]) / took["by hand"]


# -- waiting runs --------------------------------------------------------------------------


async def lag_of(
    runs: Sequence[Callable[[], Awaitable[None]]], every: float
) -> tuple[float, float, int]:
    """The 99th percentiles of the loop's lag and of its own time while runs are started one after
    the other, and the most threads that there were."""
    lags: list[float] = []
    busy: list[float] = []
    threads = 0

    async def watch() -> None:
        nonlocal threads
        while True:
            began, worked = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.002)
            lags.append(time.perf_counter() - began - 0.002)
            busy.append(time.thread_time() - worked)
            threads = max(threads, threading.active_count())

    watching = asyncio.ensure_future(watch())
    tasks = []
    for run in runs:
        tasks.append(asyncio.ensure_future(run()))
        await asyncio.sleep(every)
    await asyncio.gather(*tasks)
    watching.cancel()
    return statistics.quantiles(lags, n=100)[98], statistics.quantiles(busy, n=100)[98], threads


def waits(office: Office, name: str, count: int, every: float) -> dict[str, Any]:
    prepare = runs_of(name).prepare

    def side(tool: str) -> tuple[float, float, int]:
        async def main() -> tuple[float, float, int]:
            return await lag_of([prepare([tool], "waits") for _ in range(count)], every)

        return asyncio.run(main())

    side("plain")  # warms up
    free, busy_free, threads_free = side("plain")
    with reviewer(office, count, every):
        waiting, busy_waiting, threads_waiting = side("asked_pay")
    return {
        "runs": count,
        "lag_p99_ms": free * 1e3,
        "lag_p99_waiting_ms": waiting * 1e3,
        "busy_p99_ms": busy_free * 1e3,
        "busy_p99_waiting_ms": busy_waiting * 1e3,
        "threads": threads_free,
        "threads_waiting": threads_waiting,
    }


@contextmanager
def reviewer(office: Office, count: int, every: float) -> Iterator[None]:
    """Approves everything, one after the other, once so many wait: in a process of its own, so
    that its work does not delay the loop."""
    given = {"url": office.server.url, "key": office.server.key, "count": count, "every": every}
    with subprocess.Popen(
        [sys.executable, __file__, "--review"], stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(given))
        process.stdin.close()
        try:
            yield
        finally:
            process.kill()


def review() -> None:
    import httpx

    given = json.load(sys.stdin)
    headers = {"authorization": f"Bearer {given['key']}"}
    with httpx.Client(base_url=given["url"], headers=headers, trust_env=False) as http:
        pending: list[Any] = []
        while len(pending) < given["count"]:
            time.sleep(0.2)
            answer = http.get("/v1/approvals?status=pending&limit=200").raise_for_status()
            pending = answer.json()["data"]
        for approval in pending:
            http.post(f"/v1/approvals/{approval['id']}/approve", json={}).raise_for_status()
            time.sleep(given["every"])


# ------------------------------------------------------------------------------------------


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--binary", required=True)
    parser.add_argument("--calls", type=int, default=20, help="tool calls of a run")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--waits", type=int, default=0, help="measure so many waiting runs too")
    parser.add_argument("--every", type=float, default=0.05, help="seconds between their starts")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    with service(given.binary) as office:
        for name in given.names:
            for way, prepare, send in ways_of(name):
                found[way] = cost(office, prepare, send, given.calls, given.rounds)
                show(given.json, cost_line(way, found[way]))
            if given.waits:
                found[f"{name}, waiting"] = waits(office, name, given.waits, given.every)
                show(given.json, waits_line(name, found[f"{name}, waiting"]))
    if given.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")


def show(quiet: bool, line: str) -> None:
    if not quiet:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def cost_line(way: str, found: dict[str, Any]) -> str:
    sides = "  ".join(f"{side} {ms:7.1f} ms" for side, ms in found["cpu_ms"].items())
    ratio = found["ratio"]
    verdict = "within" if ratio <= LIMIT else "OVER"
    return (
        f"{way:18} {found['events']:4} events  {sides}  cost {ratio:.2f}: {verdict} {LIMIT} "
        f"(by the medians {found['ratio_of_medians']:.2f})"
    )


def waits_line(name: str, found: dict[str, Any]) -> str:
    added = found["lag_p99_waiting_ms"] - found["lag_p99_ms"]
    verdict = "within" if added <= LAG_LIMIT * 1e3 else "OVER"
    return (
        f"{name:18} {found['runs']:4} runs    lag p99 {found['lag_p99_ms']:.1f} ms, waiting "
        f"{found['lag_p99_waiting_ms']:.1f} ms: {verdict} +{LAG_LIMIT * 1e3:g} ms; busy p99 "
        f"{found['busy_p99_ms']:.1f} ms, waiting {found['busy_p99_waiting_ms']:.1f} ms; threads "
        f"{found['threads']}, waiting {found['threads_waiting']}"
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--review"]:
        review()
    else:
        main()
