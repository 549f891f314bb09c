"""Sessions with a server of the MCP SDK, for what is measured of many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bodies import Around, unchanged
from mcp_servers import Marks, client_of, friendly, is_error, text_of

import countersign
from countersign.adapters.mcp import MCPAdapter

__all__ = ["prepare"]


def prepare(
    tools: Sequence[str], chain_name: str | None, around: Around = unchanged
) -> Callable[[], Awaitable[Any]]:
    """A client that calls the tools in turn; without a chain's name, ungoverned."""
    marks = Marks()
    marks.run = around(marks.run)  # type: ignore[method-assign]
    server = friendly(marks)
    if chain_name is not None:
        MCPAdapter(chain_name=chain_name, agent_name="helper").install(server)

    async def run() -> None:
        async with client_of(server) as client:
            for n, name in enumerate(tools):
                result = await client.call_tool(name, {"amount": n})
                if is_error(result):
                    raise countersign.BackendUnavailableError(text_of(result))

    return run
