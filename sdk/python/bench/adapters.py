"""What governing costs an agent's run, and what waiting costs its event loop.

    $(scripts/adapter-environment mcp newest) bench/adapters.py --binary BINARY mcp

It takes the adapters' names, whose frameworks must be installed, and starts a service of its own.

The cost: (governed run - ungoverned run) / the same events and outcomes sent by hand, in two ways.
"By hand" sends them in a loop that does nothing else, so that everything is in the processor's
caches. "In place" sends them from within the tools of an ungoverned run, as somebody without the
adapter would, and counts what that adds to the run. The sides take turns, so that a busy moment
hits all of them. What counts is this process's own time, in the quickest round of each side: other
programs can only add to it.

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
from contextlib import contextmanager, nullcontext
from functools import wraps
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / part) for part in ("", "adapters")]

from bodies import unchanged
from office import Office

import countersign
from server import Server

LIMIT = 1.3
"""Of what the events cost by hand: more than that is the adapter's own."""
LAG_LIMIT = 0.005
"""Seconds that waiting may add to the 99th percentile of the loop's lag."""
Event = dict[str, Any]


class InPlace:
    """Events that the bodies of tools send. Each body records its own call and what came before
    it, the last one also what came after it."""

    def __init__(self, events: list[Event]) -> None:
        self.chain = countersign.Chain("in place")
        shares: list[tuple[list[Event], Event, list[Event]]] = []
        others: list[Event] = []
        for event in events:
            if event["action_type"] == "tool_call":
                shares.append((others, event, []))
                others = []
            else:
                others.append(event)
        shares[-1][2].extend(others)
        self._shares = iter(shares)

    def around(self, body: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(body)
        async def sending(*args: Any, **kwargs: Any) -> Any:
            before, own, after = next(self._shares)
            await send(self.chain, before)
            decision = await record(self.chain, own)
            result = await body(*args, **kwargs)
            await self.chain.record_outcome(decision, "succeeded")
            await send(self.chain, after)
            return result

        @wraps(body)
        def sending_sync(*args: Any, **kwargs: Any) -> Any:
            before, own, after = next(self._shares)
            send_sync(self.chain, before)
            decision = record_sync(self.chain, own)
            result = body(*args, **kwargs)
            self.chain.record_outcome_sync(decision, "succeeded")
            send_sync(self.chain, after)
            return result

        return sending if iscoroutinefunction(body) else sending_sync


Prepare = Callable[[Sequence[str], "str | None", "InPlace | None"], Callable[[], object]]
"""Makes a run that calls the tools, in the chain of that name, or ungoverned without one."""
ByHand = Callable[[list[Event]], None]


def runs_of(name: str) -> Any:
    return import_module(f"{name.replace('-', '_')}_runs")


def ways_of(name: str) -> Iterator[tuple[str, Prepare, ByHand]]:
    """The ways in which an adapter's runs are made, with the same way of sending by hand."""
    runs = runs_of(name)

    def prepare(tools: Sequence[str], chain: str | None, hand: InPlace | None) -> Any:
        run = runs.prepare(tools, chain, hand.around if hand else unchanged)

        async def main() -> None:
            async with hand.chain if hand else nullcontext():
                await run()

        return lambda: asyncio.run(main())

    def prepare_sync(tools: Sequence[str], chain: str | None, hand: InPlace | None) -> Any:
        run = runs.prepare_sync(tools, chain, hand.around if hand else unchanged)

        def main() -> None:
            with hand.chain if hand else nullcontext():
                run()

        return main

    yield name, prepare, by_hand
    if hasattr(runs, "prepare_sync"):
        yield f"{name}, sync", prepare_sync, by_hand_sync


# -- the cost of a run ---------------------------------------------------------------------


def by_hand(events: list[Event]) -> None:
    async def main() -> None:
        async with countersign.Chain("by hand") as chain:
            await send(chain, events)

    asyncio.run(main())


def by_hand_sync(events: list[Event]) -> None:
    with countersign.Chain("by hand") as chain:
        send_sync(chain, events)


async def send(chain: countersign.Chain, events: list[Event]) -> None:
    for event in events:
        decision = await record(chain, event)
        if event.get("outcome"):
            await chain.record_outcome(decision, "succeeded")


def send_sync(chain: countersign.Chain, events: list[Event]) -> None:
    for event in events:
        decision = record_sync(chain, event)
        if event.get("outcome"):
            chain.record_outcome_sync(decision, "succeeded")


async def record(chain: countersign.Chain, event: Event) -> countersign.PolicyDecision:
    return await chain.record_agent_action(*action_of(event), **details_of(event))


def record_sync(chain: countersign.Chain, event: Event) -> countersign.PolicyDecision:
    return chain.record_agent_action_sync(*action_of(event), **details_of(event))


def action_of(event: Event) -> tuple[str, str, str, Any]:
    return event["agent_name"], event["action_type"], event["action_name"], event["payload"]


def details_of(event: Event) -> dict[str, Any]:
    return {name: event.get(name) for name in ("parent_agent_name", "metadata")}


def cost(office: Office, prepare: Prepare, send: ByHand, calls: int, rounds: int) -> dict[str, Any]:
    tools = ["plain"] * calls
    prepare(tools, "sample", None)()
    events = office.server.events(office.chains("sample")[-1]["id"])

    def measured() -> dict[str, float]:
        hand = InPlace(events)
        took = {
            "governed": cpu_seconds(prepare(tools, "governed", None)),
            "ungoverned": cpu_seconds(prepare(tools, None, None)),
            "by hand": cpu_seconds(lambda: send(events)),
            "in place": cpu_seconds(prepare(tools, None, hand)),
        }
        # Frameworks swallow what tools raise: a side that sent less would flatter the adapter.
        assert told(office.server.events(str(hand.chain.id))) == told(events)
        return took

    done: list[dict[str, float]] = []
    spoiled = 0
    while len(done) <= rounds:
        try:
            done.append(measured())
        except countersign.BackendUnavailableError:
            # On a busy machine the service's answers come too late to count.
            spoiled += 1
            if spoiled > rounds:
                raise
    del done[0]  # it warms up
    least = {side: min(took[side] for took in done) for side in done[0]}
    middle = {side: statistics.median(took[side] for took in done) for side in done[0]}
    return {
        "events": len(events),
        "cpu_ms": {side: seconds * 1e3 for side, seconds in least.items()},
        "ratios": ratios_of(least),
        "ratios_of_medians": ratios_of(middle),
        "rounds": done,
        "spoiled_rounds": spoiled,
    }


def told(events: list[Event]) -> list[Any]:
    """What a chain tells: its actions, and which of them have an outcome."""
    return [(*action_of(event), bool(event.get("outcome"))) for event in events]


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def ratios_of(took: dict[str, float]) -> dict[str, float]:
    added = took["governed"] - took["ungoverned"]
    return {
        "by hand": added / took["by hand"],
        "in place": added / (took["in place"] - took["ungoverned"]),
    }


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
    ratios = ", ".join(
        f"{ratio:.2f} of {side} ({'within' if ratio <= LIMIT else 'OVER'} {LIMIT}; by the medians "
        f"{found['ratios_of_medians'][side]:.2f})"
        for side, ratio in found["ratios"].items()
    )
    return f"{way:18} {found['events']:4} events  {sides}  cost {ratios}"


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
