"""Measures the client against a service that it starts, and prints ratios within this one run.

Usage: python bench/bench.py COUNTERSIGN_BINARY
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import countersign
from countersign.testing import FakeService, example_api_key
from server import Server

SAFE = ("clerk", "tool_call", "look_up", {"query": "exchange rates", "limit": 10})


def median_us(work: Callable[[], object], times: int) -> float:
    """The median duration of one call in microseconds."""
    samples = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        samples.append(time.perf_counter() - began)
    return statistics.median(samples) * 1e6


def fast_path() -> None:
    """Local decisions, a hundred to a lease, which is what the service grants at most. What one
    costs is the processor time of the caller, which a busy machine blurs less than the clock."""
    decisions: list[float] = []
    leases: list[float] = []
    with FakeService(fast_path=True) as service:
        config = countersign.init(**service.settings(), offline_buffer_max_events=1000)
        with countersign.Chain("fast") as chain:
            for _ in range(50):
                # Brings a new lease; nothing waits for the service behind it.
                chain.record_agent_action_sync("clerk", "tool_call", "pay", {})
                calls, began = len(service.calls), time.perf_counter()
                for _ in range(100):
                    before = time.thread_time()
                    decision = chain.record_agent_action_sync(*SAFE)
                    decisions.append(time.thread_time() - before)
                    assert decision.decision_source == "local_fast_path"
                leases.append(time.perf_counter() - began)
                # What the background has sent meanwhile was not on the caller's path.
                sent = [c for c in service.calls[calls:] if not c.path.endswith("/batch")]
                assert not sent, "an action was decided by the service"
                countersign.flush(config=config)
    took, hundred = (statistics.median(samples) for samples in (decisions, leases))
    print(f"fast-path decision in the caller   {took * 1e6:8.1f} us   (at most 60)")
    print(f"100 safe actions under one lease   {hundred * 1e3:8.1f} ms   without a round trip")


def recorded_action(server: Server) -> None:
    server.config(enable_local_fast_path=False)
    body = {
        "agent_name": SAFE[0],
        "action_type": SAFE[1],
        "action_name": SAFE[2],
        "payload": SAFE[3],
    }
    headers = {"authorization": f"Bearer {server.key}"}
    with httpx.Client(trust_env=False, headers=headers) as client, countersign.Chain("b") as chain:
        url = f"{server.url}/v1/chains/{chain.id}/events"

        def bare() -> None:
            client.post(url, json=body).raise_for_status().json()

        def ours() -> None:
            chain.record_agent_action_sync(*SAFE)

        # Interleaved, so that what else the machine does weighs on both alike.
        rounds = [(median_us(bare, 100), median_us(ours, 100)) for _ in range(10)]
    bare_us, ours_us = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = ours_us / bare_us
    print(f"bare httpx POST                    {bare_us:8.1f} us")
    print(f"recorded action                    {ours_us:8.1f} us   {ratio:.2f} x (at most 1.5)")


def importing() -> None:
    with tempfile.TemporaryDirectory() as cache:
        # Compiled once for both, as an installed package is.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache

        def best(module: str) -> float:
            program = (
                "import time; began = time.process_time(); "
                f"import {module}; print(time.process_time() - began)"
            )
            command = [sys.executable, "-c", program]
            runs = [float(subprocess.check_output(command, env=environment)) for _ in range(15)]
            return min(runs) * 1e3

        httpx_ms, ours_ms = best("httpx"), best("countersign")
    print(f"import httpx                       {httpx_ms:8.1f} ms")
    print(
        f"import countersign                 {ours_ms:8.1f} ms   "
        f"{ours_ms / httpx_ms:.2f} x (at most 1.5)"
    )


def waits(crowd: int = 500) -> None:
    room = Path(__file__).parents[1] / "tests" / "waiting_room.py"
    command = [sys.executable, str(room), str(crowd)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        url = f"http://127.0.0.1:{int(service.stdout.readline())}"
        countersign.init(example_api_key(), backend_url=url, backend_timeout_seconds=60)

        async def main() -> None:
            async with countersign.Chain("crowd") as chain:
                began = time.perf_counter()
                await asyncio.gather(
                    *(chain.record_agent_action("a", "t", "pay", {"n": n}) for n in range(crowd))
                )
                took = time.perf_counter() - began
                print(
                    f"{crowd} approval waits at once         {took:8.2f} s    "
                    f"with {threading.active_count()} thread"
                )

        asyncio.run(main())
        service.kill()


def main() -> None:
    importing()
    fast_path()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(sys.argv[1], Path(folder), None)
        server.start()
        try:
            recorded_action(server)
        finally:
            countersign.close()
            server.kill()
    waits()


if __name__ == "__main__":
    main()
