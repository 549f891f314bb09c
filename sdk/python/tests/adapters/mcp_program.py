"""A governed MCP server as a program of its own; each mark is a line of the file it is given."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from mcp_servers import Marks, friendly

import countersign
from countersign.adapters.mcp import MCPAdapter


class FileMarks(Marks):
    async def run(self, name: str, **arguments: Any) -> str:
        self._write(name)
        return await super().run(name, **arguments)

    def _write(self, name: str) -> None:
        with Path(sys.argv[1]).open("a") as file:
            file.write(f"{name}\n")


async def main() -> None:
    countersign.init()
    server = friendly(FileMarks())
    MCPAdapter(chain_name="mcp-program", agent_name="helper").install(server)
    await server.run_stdio_async()


if __name__ == "__main__":
    asyncio.run(main())
