"""Servers and clients of both majors of the MCP SDK, told apart here alone."""

# With and without the framework's types.
# mypy: disallow-subclassing-any=False, disallow-untyped-decorators=False, warn-unused-ignores=False

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mcp
from mcp import types
from mcp.server.lowlevel import Server

FIRST_MAJOR = find_spec("mcp.server.mcpserver") is None
Friendly: Any = (
    import_module("mcp.server.fastmcp").FastMCP
    if FIRST_MAJOR
    else import_module("mcp.server.mcpserver").MCPServer
)
TOOLS = ("plain", "asked_pay", "denied_wipe")


class Marks(list[Any]):
    """What the bodies of tools have left behind."""

    async def run(self, name: str, **arguments: Any) -> str:
        self.append((name, arguments))
        return f"{name} done"


class FileMarks(Marks):
    """Marks that are lines of a file, for a server that is a program of its own."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = Path(path)

    async def run(self, name: str, **arguments: Any) -> str:
        self._write(name)
        return await super().run(name, **arguments)

    def _write(self, name: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{name}\n")


def friendly(marks: Marks) -> Any:
    """The SDK's own server with registered tools."""
    server = Friendly("tools")
    for name in TOOLS:
        add_tool(server, marks, name)
    return server


def add_tool(server: Any, marks: Marks, name: str) -> None:
    async def body(amount: int = 0, items: list[str] | None = None) -> str:
        return await marks.run(name, amount=amount, items=items)

    server.add_tool(body, name=name)


def low_level(marks: Marks) -> Any:
    """A low-level server whose handler is registered."""
    server: Any = Server("tools")
    schema = {"type": "object"}
    tools = [types.Tool.model_validate({"name": name, "inputSchema": schema}) for name in TOOLS]
    if FIRST_MAJOR:

        async def listed() -> Any:
            return tools

        server.list_tools()(listed)
    else:

        async def on_list_tools(context: Any, params: Any) -> Any:
            return types.ListToolsResult(tools=tools)

        server.add_request_handler("tools/list", types.PaginatedRequestParams, on_list_tools)
    register(server, marks)
    return server


def register(server: Any, marks: Marks) -> None:
    """Give a low-level server its handler of calls."""

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        return [types.TextContent(type="text", text=await marks.run(name, **arguments))]

    handle(server, call)


def handle(server: Any, call: Callable[[str, dict[str, Any]], Awaitable[Any]]) -> None:
    """Register a function as the handler of calls. It returns content, or a result."""
    if FIRST_MAJOR:
        server.call_tool(validate_input=False)(call)
        return

    async def on_call_tool(context: Any, params: Any) -> Any:
        result = await call(params.name, params.arguments or {})
        if isinstance(result, types.CallToolResult):
            return result
        return types.CallToolResult(content=result)

    server.add_request_handler("tools/call", types.CallToolRequestParams, on_call_tool)


@asynccontextmanager
async def client_of(server: Any) -> AsyncIterator[Any]:
    """A client in the same process."""
    if FIRST_MAJOR:
        memory: Any = import_module("mcp.shared.memory")
        async with memory.create_connected_server_and_client_session(server) as session:
            yield session
    else:
        sdk: Any = mcp
        async with sdk.Client(server) as client:
            yield client


@asynccontextmanager
async def client_of_program(
    command: str, args: list[str], env: dict[str, str]
) -> AsyncIterator[Any]:
    """A client of a server that runs as a program and speaks over its standard streams."""
    from mcp.client.stdio import StdioServerParameters, stdio_client

    program = StdioServerParameters(command=command, args=args, env=env)
    async with stdio_client(program) as (read, write), mcp.ClientSession(read, write) as session:
        await session.initialize()
        yield session


def is_error(result: Any) -> bool:
    return bool(result.isError if FIRST_MAJOR else result.is_error)


def text_of(result: Any) -> str:
    return "".join(part.text for part in result.content)


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """What the reviewer does meanwhile."""
    return await asyncio.to_thread(function, *args)
