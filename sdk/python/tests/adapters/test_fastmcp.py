"""Governed servers of the package fastmcp, with its own clients."""

# mypy: disallow-subclassing-any=False, disallow-untyped-decorators=False, warn-unused-ignores=False

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import Middleware
from fastmcp_runs import prepare
from mcp_servers import Marks, in_thread
from mcp_transports import listening, until
from office import Office
from waits import threads_of_waiting_runs

import countersign
from countersign.adapters.mcp import MCPAdapter

pytestmark = [
    pytest.mark.filterwarnings("ignore:Field .lifespan. has an incomplete definition"),
]


def governed(name: str, marks: Marks, **options: Any) -> tuple[MCPAdapter, Any]:
    server: Any = FastMCP("tools")
    for tool in ("plain", "asked_pay", "denied_wipe"):
        server.tool(_named(tool, marks), name=tool)
    adapter = MCPAdapter(chain_name=name, agent_name="helper", **options)
    adapter.install(server)
    return adapter, server


def _named(tool: str, marks: Marks) -> Any:
    async def body(amount: int = 7) -> str:
        marks.append((tool, amount))
        return f"{tool} done"

    return body


@asynccontextmanager
async def over_memory(server: Any) -> AsyncIterator[Any]:
    yield server


@asynccontextmanager
async def over_http(server: Any) -> AsyncIterator[Any]:
    async with listening(server.http_app()) as address:
        yield f"{address}/mcp"


@asynccontextmanager
async def over_sse(server: Any) -> AsyncIterator[Any]:
    async with listening(server.http_app(transport="sse")) as address:
        yield f"{address}/sse"


TRANSPORTS: dict[str, Any] = {"memory": over_memory, "http": over_http, "sse": over_sse}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_calls_are_governed(office: Office, transport: str) -> None:
    """Allowed, denied and asked for: recorded once, before the body, with defaults and outcomes.
    The chain is completed at the end."""
    name = f"fastmcp {transport}"
    marks = Marks()

    async def completed() -> bool:
        chains = await in_thread(office.chains, name)
        return [c["status"] for c in chains] == ["completed"]

    async def main() -> None:
        _, server = governed(name, marks)
        async with TRANSPORTS[transport](server) as target:
            async with Client(target) as client:
                await client.call_tool("plain", {})
                with pytest.raises(ToolError, match="This is never done"):
                    await client.call_tool("denied_wipe", {"amount": 1})
                assert marks == [("plain", 7)]
                paused = asyncio.create_task(client.call_tool("asked_pay", {"amount": 5}))
                await in_thread(office.waiting)
                assert marks == [("plain", 7)]
                await in_thread(office.decide, "approve")
                await paused
        await until(completed)

    asyncio.run(main())
    assert marks == [("plain", 7), ("asked_pay", 5)]
    (chain,) = office.chains(name)
    events = office.server.events(chain["id"])
    assert [e["payload"] for e in events] == [{"amount": 7}, {"amount": 1}, {"amount": 5}]
    done = ("succeeded", None)
    assert office.outcomes(chain["id"]) == [done, None, done]


def test_what_the_program_and_other_tools_call(office: Office) -> None:
    """Calls that do not come by the protocol are recorded too, each once."""
    marks = Marks()

    async def main() -> None:
        adapter, server = governed("fastmcp direct", marks)

        async def plain_outer() -> str:
            await server.call_tool("plain", {"amount": 2})
            return "fine"

        server.tool(plain_outer)
        await server.call_tool("plain", {"amount": 1})
        with pytest.raises(countersign.ActionDeniedError):
            await server.call_tool("denied_wipe", {})
        async with Client(server) as client:
            await client.call_tool("plain_outer", {})
        await adapter.aclose()

    asyncio.run(main())
    assert marks == [("plain", 1), ("plain", 2)]
    names = [
        [story.split()[-1] for story in office.story(chain["id"])]
        for chain in office.chains("fastmcp direct")
    ]
    assert names == [["plain", "denied_wipe"], ["plain_outer", "plain"]]


def test_what_middleware_makes_of_the_arguments_is_recorded(office: Office) -> None:
    """A call whose arguments were changed is another call."""
    marks = Marks()

    class Doubling(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            message = context.message
            doubled = {"amount": message.arguments["amount"] * 2}
            changed = message.model_copy(update={"arguments": doubled})
            return await call_next(context.copy(message=changed))

    async def main() -> None:
        _, server = governed("fastmcp doubled", marks)
        server.add_middleware(Doubling())
        async with Client(server) as client:
            await client.call_tool("plain", {"amount": 2})

    asyncio.run(main())
    assert marks == [("plain", 4)]
    (chain,) = office.chains("fastmcp doubled")
    events = office.server.events(chain["id"])
    assert [e["payload"] for e in events] == [{"amount": 2}, {"amount": 4}]


@pytest.mark.parametrize("masked", [False, True])
def test_a_denial_of_what_middleware_made_is_told_to_the_model(
    office: Office, masked: bool
) -> None:
    """It is a tool error with the reason, as a denial of the call itself is, also where the server
    keeps the text of errors to itself."""
    marks = Marks()

    class Redirecting(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            changed = context.message.model_copy(update={"name": "denied_wipe"})
            return await call_next(context.copy(message=changed))

    async def main() -> str:
        server: Any = FastMCP("tools", mask_error_details=masked)
        for name in ("plain", "denied_wipe"):
            server.tool(_named(name, marks), name=name)
        MCPAdapter(chain_name="fastmcp redirected", agent_name="helper").install(server)
        server.add_middleware(Redirecting())
        async with Client(server) as client:
            with pytest.raises(ToolError) as caught:
                await client.call_tool("plain", {"amount": 2})
        return str(caught.value)

    assert "This is never done." in asyncio.run(main())
    assert marks == []


def test_a_failure_is_recorded_by_its_type(office: Office) -> None:
    """fastmcp makes an error of its own of what a tool raises."""

    async def main() -> None:
        _, server = governed("fastmcp failed", Marks())

        async def plain_broken() -> str:
            raise LookupError("card 4111")

        server.tool(plain_broken)
        async with Client(server) as client:
            with pytest.raises(ToolError):
                await client.call_tool("plain_broken", {})

    asyncio.run(main())
    (chain,) = office.chains("fastmcp failed")
    assert office.outcomes(chain["id"]) == [("failed", "LookupError")]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_caller_is_told_and_may_give_up(office: Office, transport: str) -> None:
    """Its progress handler hears of the wait; when it leaves, the approval is cancelled."""
    told: list[str] = []
    marks = Marks()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    async def main() -> None:
        _, server = governed("fastmcp told", marks)
        async with TRANSPORTS[transport](server) as target:
            async with Client(target, progress_handler=hear) as client:
                call = asyncio.create_task(client.call_tool("asked_pay", {"amount": 5}))
                (approval,) = await in_thread(office.waiting)

                async def was_told() -> bool:
                    return bool(told)

                await until(was_told)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call

            async def cancelled() -> bool:
                path = f"/v1/approvals/{approval['id']}"
                return bool((await in_thread(office.server.get, path))["status"] == "cancelled")

            await until(cancelled)

    asyncio.run(main())
    assert marks == []
    assert re.search(r"asked_pay.* for \d+ s: http", told[0])


def test_waiting_runs_hold_no_threads(office: Office) -> None:
    """Async runs that wait for people wait on their event loop."""
    runs, threads = threads_of_waiting_runs(office, prepare)
    assert threads < runs / 4
