"""A client that follows a script, in place of a model, and calls the tools of mcp_server.py.

It starts the server itself. How to run it is in the first lines of mcp_server.py.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

SERVER = Path(__file__).with_name("mcp_server.py")


async def main() -> None:
    program = StdioServerParameters(
        command=sys.executable, args=[str(SERVER)], env=dict(os.environ)
    )
    async with stdio_client(program) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        for tool, arguments in (
            ("look_up_order", {"order": 7}),
            ("refund_order", {"order": 7, "amount_usd": 42.0}),
        ):
            result = await session.call_tool(tool, arguments)
            print("\n".join(part.text for part in result.content if part.type == "text"))


if __name__ == "__main__":
    if not os.environ.get("COUNTERSIGN_API_KEY"):
        sys.exit("set COUNTERSIGN_API_KEY: the server needs it")
    asyncio.run(main())
