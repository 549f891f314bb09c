"""Servers of both majors of the MCP SDK over each of its transports, with their clients."""

# With and without the framework's types.
# mypy: disallow-untyped-decorators=False, warn-unused-ignores=False

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any

import mcp
import uvicorn
from mcp_servers import FIRST_MAJOR, client_of

Connect = Callable[[], AbstractAsyncContextManager[Any]]


def http_app(server: Any, *, stateless: bool = False) -> Any:
    if FIRST_MAJOR:
        server.settings.stateless_http = stateless
        server._session_manager = None  # it serves once, and a program may make another
        return server.streamable_http_app()
    return server.streamable_http_app(stateless_http=stateless)


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """Serve an application on a loopback port; gives its address."""
    config = uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def session_over(streams: Any) -> AsyncIterator[Any]:
    """A client that begins with a handshake."""
    async with streams as (read, write, *_), mcp.ClientSession(read, write) as session:
        await session.initialize()
        yield session


def http_client(address: str) -> AbstractAsyncContextManager[Any]:
    module: Any = import_module("mcp.client.streamable_http")
    return session_over(module.streamable_http_client(f"{address}/mcp"))


@asynccontextmanager
async def memory(server: Any) -> AsyncIterator[Connect]:
    yield lambda: client_of(server)


@asynccontextmanager
async def http(server: Any) -> AsyncIterator[Connect]:
    async with listening(http_app(server)) as address:
        yield lambda: http_client(address)


@asynccontextmanager
async def stateless_http(server: Any) -> AsyncIterator[Connect]:
    async with listening(http_app(server, stateless=True)) as address:
        yield lambda: http_client(address)


@asynccontextmanager
async def http_without_handshake(server: Any) -> AsyncIterator[Connect]:
    """The second major's own client: it has no session. With the first, the same as http."""
    async with listening(http_app(server)) as address:
        sdk: Any = mcp
        yield lambda: http_client(address) if FIRST_MAJOR else sdk.Client(f"{address}/mcp")


@asynccontextmanager
async def sse(server: Any) -> AsyncIterator[Connect]:
    module: Any = import_module("mcp.client.sse")
    async with listening(server.sse_app()) as address:
        yield lambda: session_over(module.sse_client(f"{address}/sse"))


Transport = Callable[[Any], AbstractAsyncContextManager[Connect]]
TRANSPORTS: dict[str, Transport] = {
    "memory": memory,
    "http": http,
    "http without handshake": http_without_handshake,
    "stateless http": stateless_http,
    "sse": sse,
}
SHARED = {"stateless http"} if FIRST_MAJOR else {"stateless http", "http without handshake"}
"""The transports whose calls have no session."""


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what another task does."""
    for _ in range(3000):
        if await condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come true")
