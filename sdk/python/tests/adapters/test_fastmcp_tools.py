"""Tools of a governed server of fastmcp that come to another server, or are run by the program."""

# mypy: disallow-subclassing-any=False, disallow-untyped-decorators=False, warn-unused-ignores=False

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server import create_proxy
from fastmcp.tools import Tool
from mcp_servers import Marks
from office import Office

import countersign
from countersign.adapters.mcp import MCPAdapter

pytestmark = [
    pytest.mark.filterwarnings("ignore:Field .lifespan. has an incomplete definition"),
]


@pytest.fixture
def chain_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test's chains have."""
    return str(request.node.name)


def server_of(marks: Marks) -> Any:
    server: Any = FastMCP("tools")
    for tool in ("plain", "denied_wipe"):
        server.tool(_named(tool, marks), name=tool)
    return server


def _named(tool: str, marks: Marks) -> Any:
    async def body(amount: int = 7) -> str:
        marks.append((tool, amount))
        return f"{tool} done"

    return body


async def _mounted(server: Any) -> Any:
    other: Any = FastMCP("other")
    other.mount(server)
    return other


async def _added(server: Any) -> Any:
    other: Any = FastMCP("other")
    for name in ("plain", "denied_wipe"):
        other.add_tool(await server.get_tool(name))
    return other


async def _listed(server: Any) -> Any:
    other: Any = FastMCP("other")
    for tool in await server.list_tools():
        other.add_tool(tool)
    return other


async def _provided(server: Any) -> Any:
    other: Any = FastMCP("other")
    other.add_provider(server.local_provider)
    return other


async def _transformed(server: Any) -> Any:
    other: Any = FastMCP("other")
    for name in ("plain", "denied_wipe"):
        other.add_tool(Tool.from_tool(await server.get_tool(name), description="another"))
    return other


async def _proxied(server: Any) -> Any:
    return create_proxy(server)


MOVES: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "mount": _mounted,
    "get_tool": _added,
    "list_tools": _listed,
    "add_provider": _provided,
    "Tool.from_tool": _transformed,
    "create_proxy": _proxied,
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())
def test_a_governed_tool_stays_governed_on_another_server(
    office: Office, chain_name: str, move: Callable[[Any], Awaitable[Any]]
) -> None:
    """However it comes there, each call is recorded once, with its defaults and its outcome, and a
    denied one does not run. The other server itself is not governed."""
    marks = Marks()

    async def main() -> None:
        server = server_of(marks)
        async with MCPAdapter(chain_name=chain_name, agent_name="helper") as adapter:
            adapter.install(server)
            other = await move(server)
            other.tool(_named("denied_own", marks), name="denied_own")
            async with Client(other) as client:
                await client.call_tool("plain", {})
                with pytest.raises(ToolError, match="This is never done"):
                    await client.call_tool("denied_wipe", {"amount": 1})
                await client.call_tool("denied_own", {})

    asyncio.run(main())
    assert marks == [("plain", 7), ("denied_own", 7)]
    chains = [chain["id"] for chain in office.chains(chain_name)]  # a proxy has one for each call
    events = [event for chain in chains for event in office.server.events(chain)]
    assert [(e["action_name"], e["payload"]) for e in events] == [
        ("plain", {"amount": 7}),
        ("denied_wipe", {"amount": 1}),
    ]
    assert [o for chain in chains for o in office.outcomes(chain)] == [("succeeded", None), None]


@pytest.mark.parametrize("namespace", [None, "ours"])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_call_through_two_governed_servers_is_recorded_once(
    office: Office, chain_name: str, namespace: str | None, renamed: bool
) -> None:
    """The server that was called and the one that is mounted on it have one adapter: nobody is
    asked twice about one call. What the tool calls in its turn is recorded."""
    marks = Marks()

    async def main() -> str:
        inner = server_of(marks)

        async def plain_again(amount: int = 7) -> str:
            marks.append(("plain_again", amount))
            await inner.call_tool("plain", {"amount": amount})
            await inner.call_tool("plain", {"amount": amount})
            return "fine"

        inner.tool(plain_again)
        outer: Any = FastMCP("outer")
        names = {"plain_again": "plain_renamed"} if renamed else None
        outer.mount(inner, namespace, tool_names=names)
        async with MCPAdapter(chain_name=chain_name, agent_name="helper") as adapter:
            adapter.install(inner)
            adapter.install(outer)
            called = "plain_renamed" if renamed else "plain_again"
            called = f"{namespace}_{called}" if namespace else called
            async with Client(outer) as client:
                await client.call_tool(called, {"amount": 3})
        return called

    called = asyncio.run(main())
    assert marks == [("plain_again", 3), ("plain", 3), ("plain", 3)]
    (chain,) = office.chains(chain_name)
    names = [story.split()[-1] for story in office.story(chain["id"])]
    assert names == [called, "plain", "plain"]
    assert office.outcomes(chain["id"]) == [("succeeded", None)] * 3


def test_a_tool_that_the_program_runs_itself_is_governed(office: Office, chain_name: str) -> None:
    """A tool that the server gave out is held in its own ``run``, also within the body of another
    tool. Within its own call it is recorded once."""
    marks = Marks()

    async def main() -> None:
        server = server_of(marks)

        async def plain_outer() -> str:
            await (await server.get_tool("plain")).run({"amount": 2})
            with pytest.raises(countersign.ActionDeniedError):
                await (await server.get_tool("denied_wipe")).run({})
            return "fine"

        server.tool(plain_outer)
        async with MCPAdapter(chain_name=chain_name, agent_name="helper") as adapter:
            adapter.install(server)
            await (await server.get_tool("plain")).run({"amount": 1})
            await server.call_tool("plain_outer", {})

    asyncio.run(main())
    assert marks == [("plain", 1), ("plain", 2)]
    (chain,) = office.chains(chain_name)
    names = [story.split()[-1] for story in office.story(chain["id"])]
    assert names == ["plain", "plain_outer", "plain", "denied_wipe"]


def test_a_tool_made_of_another_is_one_call(office: Office, chain_name: str) -> None:
    """A transformed tool of the governed server runs the tool that it was made of: one action."""
    marks = Marks()

    async def main() -> None:
        server = server_of(marks)
        async with MCPAdapter(chain_name=chain_name, agent_name="helper") as adapter:
            adapter.install(server)
            server.add_tool(Tool.from_tool(await server.get_tool("plain"), name="plain_too"))
            async with Client(server) as client:
                await client.call_tool("plain_too", {"amount": 4})

    asyncio.run(main())
    assert marks == [("plain", 4)]
    (chain,) = office.chains(chain_name)
    assert [story.split()[-1] for story in office.story(chain["id"])] == ["plain_too"]
