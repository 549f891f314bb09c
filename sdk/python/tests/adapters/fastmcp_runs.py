"""Sessions with a server of the package fastmcp, for what is measured of many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bodies import Around, unchanged
from fastmcp import Client, FastMCP

from countersign.adapters.mcp import MCPAdapter

__all__ = ["prepare"]


async def _body(amount: int = 0) -> str:
    return f"{amount} done"


def prepare(
    tools: Sequence[str], chain_name: str | None, around: Around = unchanged
) -> Callable[[], Awaitable[Any]]:
    """A client that calls the tools in turn; without a chain's name, ungoverned."""
    server: Any = FastMCP("tools")
    for name in dict.fromkeys(tools):
        server.tool(around(_body), name=name)
    if chain_name is not None:
        MCPAdapter(chain_name=chain_name, agent_name="helper").install(server)

    async def run() -> None:
        async with Client(server) as client:
            for n, name in enumerate(tools):
                await client.call_tool(name, {"amount": n})

    return run
