"""An MCP server that knows nothing of Countersign; each call is a line of the file it is given."""

from __future__ import annotations

import asyncio
import os
import sys

from mcp_servers import FileMarks, friendly


async def fail() -> str:
    raise ValueError("a secret text")


async def environment() -> str:
    return " ".join(os.environ)


async def main() -> None:
    server = friendly(FileMarks(sys.argv[1]))
    server.add_tool(fail, name="fail")
    server.add_tool(environment, name="environment")
    await server.run_stdio_async()


if __name__ == "__main__":
    asyncio.run(main())
