"""A governed MCP server as a program of its own; each mark is a line of the file it is given."""

from __future__ import annotations

import asyncio
import sys

from mcp_servers import FileMarks, friendly

import countersign
from countersign.adapters.mcp import MCPAdapter


async def main() -> None:
    countersign.init()
    server = friendly(FileMarks(sys.argv[1]))
    MCPAdapter(chain_name="mcp-program", agent_name="helper").install(server)
    await server.run_stdio_async()


if __name__ == "__main__":
    asyncio.run(main())
