"""The chains of an MCP server's sessions, over each transport."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from mcp_runs import prepare
from mcp_servers import Marks, friendly, in_thread, is_error
from mcp_transports import SHARED, TRANSPORTS, http, http_app, listening, until
from office import Office
from waits import threads_of_waiting_runs

import countersign
from countersign.adapters import _mcp_chains
from countersign.adapters.mcp import MCPAdapter

HERE = Path(__file__).parent
NIGHTLY = os.environ.get("COUNTERSIGN_NIGHTLY") == "1"


def transports(*on_each_commit: str) -> pytest.MarkDecorator:
    """Every transport at night, and some of them on each commit."""
    return pytest.mark.parametrize("transport", TRANSPORTS if NIGHTLY else on_each_commit)


pytestmark = [
    pytest.mark.filterwarnings("ignore:Field .lifespan. has an incomplete definition"),
    # The first major leaves streams of its own to the garbage collector.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <function Memory:pytest.PytestUnraisableExceptionWarning"
    ),
]


def governed(name: str, marks: Marks, **options: Any) -> tuple[MCPAdapter, Any]:
    adapter = MCPAdapter(chain_name=name, agent_name="helper", **options)
    server = friendly(marks)
    adapter.install(server)
    return adapter, server


@transports("http", "stateless http")
def test_each_session_is_a_chain(office: Office, transport: str) -> None:
    """Two clients, two chains, each completed when its client leaves. Calls without a session
    share a chain, completed when the server ends."""
    name = f"sessions {transport}"
    marks = Marks()

    async def completed(count: int) -> bool:
        chains = await in_thread(office.chains, name)
        return [c["status"] for c in chains] == ["completed"] * count

    async def main() -> MCPAdapter:
        adapter, server = governed(name, marks)
        async with TRANSPORTS[transport](server) as connect:
            for amount in (1, 2):
                async with connect() as client:
                    assert not is_error(await client.call_tool("plain", {"amount": amount}))
                    assert not is_error(await client.call_tool("plain", {"amount": amount}))
                if transport not in SHARED:
                    await until(lambda amount=amount: completed(amount))  # type: ignore[misc]
        await until(lambda: completed(1 if transport in SHARED else 2))
        return adapter

    adapter = asyncio.run(main())
    assert [a["amount"] for _, a in marks] == [1, 1, 2, 2]
    chains = office.chains(name)
    stories = [office.story(chain["id"]) for chain in chains]
    call = "helper: tool_call plain"
    assert stories == ([[call] * 4] if transport in SHARED else [[call] * 2] * 2)
    assert all(office.outcomes(c["id"])[0] == ("succeeded", None) for c in chains)
    assert adapter.last_chain is not None
    assert office.receipt_is_valid(adapter.last_chain.receipt)


@transports("http", "stateless http")
def test_a_server_can_be_served_again(office: Office, transport: str) -> None:
    """What a program serves anew has chains of its own. Of the first major, every call without a
    session was refused then: their session had ended for good."""
    name = f"again {transport}"
    marks = Marks()

    async def main() -> None:
        _, server = governed(name, marks)
        for amount in (1, 2):
            async with TRANSPORTS[transport](server) as connect, connect() as client:
                assert not is_error(await client.call_tool("plain", {"amount": amount}))

    asyncio.run(main())
    assert [a["amount"] for _, a in marks] == [1, 2]
    assert [c["status"] for c in office.chains(name)] == ["completed"] * 2


def test_sessions_at_the_same_time_are_apart(office: Office) -> None:
    """What one client does stands in its own chain, and a denial in one is none in another."""
    marks = Marks()

    async def main() -> None:
        _, server = governed("apart", marks)
        async with http(server) as connect, connect() as one, connect() as other:
            results = await asyncio.gather(
                one.call_tool("denied_wipe", {}),
                other.call_tool("plain", {"amount": 1}),
                one.call_tool("plain", {"amount": 2}),
            )
            assert [is_error(result) for result in results] == [True, False, False]

    asyncio.run(main())
    stories = sorted(len(office.story(c["id"])) for c in office.chains("apart"))
    assert stories == [1, 2]


def test_a_successor_takes_over_before_the_limit(office: Office) -> None:
    """A chain of ten actions takes nine. The next one names it, and is completed in its turn."""
    marks = Marks()

    async def main() -> None:
        _, server = governed("successors", marks, max_actions=10, metadata={"desk": 3})
        async with TRANSPORTS["memory"](server) as connect, connect() as client:
            calls = [client.call_tool("plain", {"amount": n}) for n in range(20)]
            assert not any(is_error(result) for result in await asyncio.gather(*calls))

    asyncio.run(main())
    assert len(marks) == 20
    chains = office.chains("successors")
    assert [c["total_actions"] for c in chains] == [9, 9, 2]
    assert {c["status"] for c in chains} == {"completed"}
    before = [c["metadata"].get("predecessor_chain_id") for c in chains]
    assert before == [None, chains[0]["id"], chains[1]["id"]]
    assert {c["metadata"]["desk"] for c in chains} == {3}


def test_the_organizations_limit_counts(office: Office) -> None:
    """What the service tells of the limits in force is heeded without a word of the server's."""
    marks = Marks()

    async def main() -> None:
        _, server = governed("organization", marks)
        async with TRANSPORTS["memory"](server) as connect, connect() as client:
            for n in range(12):
                assert not is_error(await client.call_tool("plain", {"amount": n}))

    office._call("PATCH", "/v1/organization", {"auto_pause": {"max_events": 10}})
    try:
        asyncio.run(main())
    finally:
        office._call("PATCH", "/v1/organization", {"auto_pause": {"max_events": 10_000}})
    assert [c["total_actions"] for c in office.chains("organization")] == [9, 3]


def test_a_call_that_waits_keeps_its_chain(office: Office) -> None:
    """It is decided and carried out in the chain that it was recorded in, which is completed
    after that; the others go on in the successor."""
    marks = Marks()

    async def main() -> None:
        _, server = governed("waits", marks, max_actions=2)
        async with TRANSPORTS["memory"](server) as connect, connect() as client:
            paused = asyncio.create_task(client.call_tool("asked_pay", {"amount": 5}))
            await in_thread(office.waiting)
            assert not is_error(await client.call_tool("plain", {"amount": 1}))
            first, second = await in_thread(office.chains, "waits")
            assert (first["status"], second["status"]) == ("active", "active")
            await in_thread(office.decide, "approve")
            assert not is_error(await paused)
            first, _ = await in_thread(office.chains, "waits")
            assert first["status"] == "completed"

    asyncio.run(main())
    assert [office.outcomes(c["id"]) for c in office.chains("waits")] == [[("succeeded", None)]] * 2


def test_a_chain_ends_before_its_time_is_over(office: Office) -> None:
    """The client's own time limit is one of the limits."""
    marks = Marks()

    async def main() -> None:
        countersign.init(
            api_key=office.key, backend_url=office.server.url, chain_timeout_seconds=3600
        )
        adapter, server = governed("timed", marks)
        async with TRANSPORTS["memory"](server) as connect, connect() as client:
            for amount in (1, 2):
                assert not is_error(await client.call_tool("plain", {"amount": amount}))
                for session in adapter._sessions.values():
                    assert session._part is not None
                    session._part.began -= 3300  # seconds

    asyncio.run(main())
    assert [c["total_actions"] for c in office.chains("timed")] == [1, 1]


def test_a_paused_chain_is_not_left(office: Office) -> None:
    """Only an admin lets a paused session go on: a successor would be a way around it."""
    marks = Marks()

    async def main() -> None:
        _, server = governed("paused", marks)
        async with TRANSPORTS["memory"](server) as connect, connect() as client:
            assert not is_error(await client.call_tool("plain", {"amount": 0}))
            # The limit that the chain was opened under is the only one that the server knows.
            await in_thread(
                office._call, "PATCH", "/v1/organization", {"auto_pause": {"max_events": 2}}
            )
            try:
                results = [await client.call_tool("plain", {"amount": n}) for n in range(4)]
            finally:
                restored = {"auto_pause": {"max_events": 10_000}}
                await in_thread(office._call, "PATCH", "/v1/organization", restored)
            assert [is_error(result) for result in results] == [False, True, True, True]

    asyncio.run(main())
    assert len(office.chains("paused")) == 1


@transports("http")
def test_a_caller_is_told_that_its_call_waits(office: Office, transport: str) -> None:
    """Progress notifications say where it can be decided, and for how long it waits."""
    told: list[tuple[float, str]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message or ""))

    async def main() -> None:
        _, server = governed("told", Marks())
        async with TRANSPORTS[transport](server) as connect, connect() as client:
            call = client.call_tool("asked_pay", {"amount": 5}, progress_callback=hear)
            paused = asyncio.create_task(call)
            await in_thread(office.waiting)

            async def was_told() -> bool:
                return bool(told)

            await until(was_told)
            await in_thread(office.decide, "approve")
            assert not is_error(await paused)

    asyncio.run(main())
    said = r"Waiting for a person to decide tool_call 'asked_pay' by 'helper' for \d+ s: http\S+"
    assert re.fullmatch(said, told[0][1])
    assert [value for value, _ in told] == sorted({value for value, _ in told})


async def _leave(client: Any, call: Any) -> None:
    """Leave while the call waits."""
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@transports("http")
def test_a_client_that_leaves_cancels_its_approval(office: Office, transport: str) -> None:
    """The client goes away while its call waits: nobody decides for nobody."""
    marks = Marks()

    async def main() -> str:
        _, server = governed("left", marks)
        async with TRANSPORTS[transport](server) as connect:
            async with connect() as client:
                call = asyncio.create_task(client.call_tool("asked_pay", {"amount": 5}))
                (approval,) = await in_thread(office.waiting)
                await _leave(client, call)
            path = f"/v1/approvals/{approval['id']}"

            async def cancelled() -> bool:
                return bool((await in_thread(office.server.get, path))["status"] == "cancelled")

            await until(cancelled)
        return path

    asyncio.run(main())
    assert marks == []


CLIENT = """
import asyncio, os, sys
sys.path[:0] = {paths!r}
from mcp_servers import client_of_program
from mcp_transports import http_client
def connect():
    if {address!r}.startswith("http"):
        return http_client({address!r})
    return client_of_program(sys.executable, [{program!r}, {address!r}], dict(os.environ))
async def main():
    async with connect() as client:
        await client.call_tool("asked_pay", {{"amount": 5}})
asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["http", "standard streams"] if NIGHTLY else ["http"])
def test_a_client_that_is_killed_cancels_its_approval(
    office: Office, tmp_path: Path, way: str
) -> None:
    """No notification, no goodbye: the connection is gone, and so is whoever asked."""
    marks, file = Marks(), tmp_path / "marks"
    file.touch()

    async def killed(address: str) -> None:
        script = CLIENT.format(
            paths=[str(HERE), str(HERE.parent)],
            address=address,
            program=str(HERE / "mcp_program.py"),
        )
        environment = {
            **os.environ,
            "COUNTERSIGN_API_KEY": office.key,
            "COUNTERSIGN_BACKEND_URL": office.server.url,
        }
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=environment)
        (approval,) = await in_thread(office.waiting)
        client.kill()
        await client.wait()

        async def cancelled() -> bool:
            path = f"/v1/approvals/{approval['id']}"
            return bool((await in_thread(office.server.get, path))["status"] == "cancelled")

        await until(cancelled)

    async def main() -> None:
        if way != "http":
            await killed(str(file))
            return
        _, server = governed("killed", marks)
        async with listening(http_app(server)) as address:
            await killed(address)

    asyncio.run(main())
    assert marks == []
    assert file.read_text() == ""


def test_calls_without_a_server_share_a_chain(office: Office) -> None:
    """Handlers and functions that no server calls are recorded until the adapter is closed."""

    async def main() -> None:
        async with MCPAdapter(chain_name="shared", agent_name="helper") as adapter:
            await adapter.handle_tool_call("plain", {"amount": 1}, lambda given: "fine")
            await adapter.tool("plain")(lambda amount: "fine")(2)

    asyncio.run(main())
    (chain,) = office.chains("shared")
    assert (chain["status"], chain["total_actions"]) == ("completed", 2)


def test_governed_functions_are_part_of_the_session(office: Office) -> None:
    """A tool's own governed functions are recorded in the chain of its caller."""
    marks = Marks()

    @countersign.governed
    async def plain_part(n: int) -> str:
        return "fine"

    async def main() -> None:
        _, server = governed("parts", marks)

        async def outer() -> str:
            return await plain_part(1)

        server.add_tool(outer, name="plain_outer")
        async with TRANSPORTS["memory"](server) as connect, connect() as client:
            assert not is_error(await client.call_tool("plain_outer", {}))

    asyncio.run(main())
    (chain,) = office.chains("parts")
    assert [s.split()[-1] for s in office.story(chain["id"])] == ["plain_outer", "plain_part"]


@pytest.mark.parametrize(
    "options",
    [{}, {"chain_name": "a", "max_actions": 0}, {"chain_name": "a", "max_seconds": -1}],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    """Neither a chain nor a name, or limits that are none."""
    with pytest.raises(countersign.ConfigurationError):
        MCPAdapter(agent_name="helper", **options)


def test_waiting_runs_hold_no_threads(office: Office) -> None:
    """Async runs that wait for people wait on their event loop."""
    runs, threads = threads_of_waiting_runs(office, prepare)
    assert threads < runs / 4


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_forked_worker_serves_calls_in_a_chain_of_its_own(office: Office, busy: bool) -> None:
    """The calls that have no session share a chain in each process, which completes it when it
    ends. Another thread of the parent may be looking one up at the fork."""
    name = f"forked {busy}"
    adapter = MCPAdapter(chain_name=name, agent_name="helper")

    async def call() -> Any:
        return await adapter.handle_tool_call("look_up", {}, lambda _: "found")

    assert asyncio.run(call()) == "found"
    with adapter._lock if busy else nullcontext():
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                if asyncio.run(call()) == "found":
                    _mcp_chains._close_all()
            finally:
                os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(c["status"] for c in office.chains(name)) == ["active", "completed"]
    asyncio.run(adapter.aclose())
    assert [c["status"] for c in office.chains(name)] == ["completed"] * 2
    assert [c["total_actions"] for c in office.chains(name)] == [1, 1]
