"""An MCP server that knows nothing of Countersign; each call is a line of the file it is given."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp_servers import Marks, friendly


class FileMarks(Marks):
    async def run(self, name: str, **arguments: Any) -> str:
        self._write(name)
        return await super().run(name, **arguments)

    def _write(self, name: str) -> None:
        with Path(sys.argv[1]).open("a") as file:
            file.write(f"{name}\n")


async def fail() -> str:
    raise ValueError("a secret text")


async def environment() -> str:
    return " ".join(os.environ)


async def main() -> None:
    server = friendly(FileMarks())
    server.add_tool(fail, name="fail")
    server.add_tool(environment, name="environment")
    await server.run_stdio_async()


if __name__ == "__main__":
    asyncio.run(main())
