"""MCP servers in the matrix. Run as a program, it is the process that is killed."""

# With and without the framework's types.
# mypy: disallow-untyped-decorators=False, warn-unused-ignores=False

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from matrix import Framework, Surfaced, Work, replay
from mcp import types
from mcp_servers import Friendly, Marks, handle, is_error, low_level, text_of
from mcp_transports import TRANSPORTS

from countersign.adapters.mcp import MCPAdapter

__all__ = ["FRAMEWORK"]


@dataclass
class Desk:
    """What a client calls, one tool after the other."""

    work: Work
    adapter: MCPAdapter

    async def run(self, name: str) -> str:
        return await asyncio.to_thread(self.work.run, name)

    def friendly(self) -> Any:
        server = Friendly("tools")
        for name in self.work.tools:
            server.add_tool(self._tool(name), name=name)
        self.adapter.install(server)
        return server

    def _tool(self, name: str) -> Any:
        async def body(amount: int = 0) -> str:
            return await self.run(name)

        return body

    def low_level(self) -> Any:
        server: Any = low_level(Marks())  # it lists tools, which the first major's client asks for

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return [types.TextContent(type="text", text=await self.run(name))]

        handle(server, call)
        self.adapter.install(server)
        return server

    async def call_each(self, call: Callable[[str], Awaitable[Any]]) -> None:
        """The client of a server: the first tool error is the last call."""
        for name in self.work.tools:
            result = await call(name)
            if isinstance(result, types.CallToolResult) and is_error(result):
                raise Surfaced(text_of(result))


def desk(work: Work, chain_name: str) -> Desk:
    return Desk(work, MCPAdapter(chain_name=chain_name, agent_name="clerk"))


def _over(transport: str, make: Callable[[Desk], Any]) -> Callable[[Desk], None]:
    async def main(desk: Desk) -> None:
        async with TRANSPORTS[transport](make(desk)) as connect, connect() as client:
            await desk.call_each(lambda name: client.call_tool(name, {"amount": 1}))

    return lambda desk: _run(main(desk))


def _run(main: Any) -> None:
    """Run it; what comes out of the task groups on the way is what went in."""
    try:
        asyncio.run(main)
    except BaseException as error:
        while (inner := getattr(error, "exceptions", None)) and len(inner) == 1:
            error = inner[0]
        raise error from None


def _by_the_program(desk: Desk) -> None:
    async def main() -> None:
        server = desk.friendly()
        async with desk.adapter:
            for name in desk.work.tools:
                await server.call_tool(name, {"amount": 1})

    _run(main())


def _by_a_handler(desk: Desk) -> None:
    async def main() -> None:
        async with desk.adapter as adapter:
            await desk.call_each(
                lambda name: adapter.handle_tool_call(name, {}, lambda _: desk.run(name))
            )

    _run(main())


def _by_a_function(desk: Desk) -> None:
    async def main() -> None:
        async with desk.adapter as adapter:
            for name in desk.work.tools:
                await adapter.tool(name)(desk.work.body(name))()

    _run(main())


FRAMEWORK = Framework(
    "mcp",
    desk,
    {
        **{f"tools over {name}": _over(name, Desk.friendly) for name in TRANSPORTS},
        "a handler over memory": _over("memory", Desk.low_level),
        "server.call_tool": _by_the_program,
        "handle_tool_call": _by_a_handler,
        "a function": _by_a_function,
    },
    quick=("tools over http", "a handler over memory", "tools over sse", "tools over memory"),
    program=__file__,
)

if __name__ == "__main__":
    replay(FRAMEWORK)
