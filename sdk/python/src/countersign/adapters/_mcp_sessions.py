"""When the sessions of an MCP server begin and end, in both majors of the SDK.

In the first, a session is one ``run`` of the low-level server; a stateless one is one request. In
the second, a connection that began with a handshake has a stack of its own for its end. One without
a handshake, and a call over HTTP that has no session, belong to the lifespan that serves them.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import anyio
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from countersign.adapters._mcp_caller import Caller, SessionLifetime

__all__ = [
    "caller_in_first_major",
    "caller_in_second_major",
    "serve_scopes_in_first_major",
    "serve_scopes_in_second_major",
]

_TIMEOUT = 10.0  # seconds for what is reported at the end of a session
_KEY = "countersign"


async def _end(scope: SessionLifetime) -> None:
    with anyio.move_on_after(_TIMEOUT, shield=True):
        await scope.end()


# -- the first major -------------------------------------------------------------------

_RUN: ContextVar[SessionLifetime | None] = ContextVar("countersign_mcp_run", default=None)
_MANAGED: weakref.WeakKeyDictionary[Any, SessionLifetime] = weakref.WeakKeyDictionary()
"""The lifetime of the requests without a session, by server."""


def serve_scopes_in_first_major(server: Any) -> None:
    run = server.run
    signature = inspect.signature(run)

    @wraps(run)
    async def scoped(*args: Any, **kwargs: Any) -> Any:
        is_one_request = signature.bind(*args, **kwargs).arguments.get("stateless")
        scope = _MANAGED[server] if is_one_request else SessionLifetime()
        token = _RUN.set(scope)
        try:
            return await run(*args, **kwargs)
        finally:
            _RUN.reset(token)
            if not is_one_request:
                await _end(scope)

    server.run = scoped
    _MANAGED[server] = SessionLifetime()
    _watch_managers()


def _watch_managers() -> None:
    """Requests without a session are served by a manager of the SDK, whose end is theirs."""
    managed: Any = StreamableHTTPSessionManager.run
    if hasattr(managed, "_countersign"):
        return

    @wraps(managed)
    @asynccontextmanager
    async def run(manager: Any) -> AsyncIterator[None]:
        try:
            async with managed(manager):
                yield
        finally:
            if (scope := _MANAGED.get(manager.app)) is not None:
                _MANAGED[manager.app] = SessionLifetime()  # for the next manager
                await _end(scope)

    run._countersign = True  # type: ignore[attr-defined]
    manager_class: Any = StreamableHTTPSessionManager
    manager_class.run = run


def caller_in_first_major() -> Caller:
    from mcp.server.lowlevel.server import request_ctx  # type: ignore[attr-defined]

    context = request_ctx.get(None)
    if context is None:
        return Caller(None, None, None)
    token = getattr(context.meta, "progressToken", None)

    async def report(value: float, text: str) -> None:
        await context.session.send_progress_notification(
            token, value, message=text, related_request_id=str(context.request_id)
        )

    return Caller(_RUN.get(), report if token is not None else None, _disconnection(context))


# -- the second major ------------------------------------------------------------------


class _Lifespans:
    """The lifespans of a server that have begun, by what they gave. Two that gave the same object
    are one."""

    def __init__(self) -> None:
        self._open: dict[int, list[Any]] = {}  # the object, its scope, how many

    @asynccontextmanager
    async def entered(self, state: Any) -> AsyncIterator[None]:
        entry = self._open.setdefault(id(state), [state, SessionLifetime(), 0])
        entry[2] += 1
        try:
            yield
        finally:
            entry[2] -= 1
            if not entry[2]:
                del self._open[id(state)]
                await _end(entry[1])

    def scope(self, state: Any) -> SessionLifetime | None:
        entry = self._open.get(id(state))
        return entry[1] if entry is not None else None


_LIFESPANS = _Lifespans()


def serve_scopes_in_second_major(server: Any) -> None:
    lifespan = server.lifespan

    @asynccontextmanager
    async def scoped(app: Any) -> AsyncIterator[Any]:
        async with lifespan(app) as state, _LIFESPANS.entered(state):
            yield state

    server.lifespan = scoped


def caller_in_second_major(context: Any) -> Caller:
    session = context.session

    async def report(value: float, text: str) -> None:
        await session.report_progress(value, None, text)

    # It tells nobody who did not ask for it.
    return Caller(_scope_of(context), report, _disconnection(context))


def _scope_of(context: Any) -> SessionLifetime | None:
    connection = getattr(context.session, "_connection", None)
    if connection is None or not _has_handshake(connection):
        return _LIFESPANS.scope(context.lifespan_context)
    scope = connection.state.get(_KEY)
    if scope is None:
        scope = connection.state[_KEY] = SessionLifetime()
        connection.exit_stack.push_async_callback(_end, scope)
    return scope  # type: ignore[no-any-return]


def _has_handshake(connection: Any) -> bool:
    """Whether the connection lives as long as its client: others are of one request."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    is_modern = connection.protocol_version in MODERN_PROTOCOL_VERSIONS
    return bool(connection.has_standalone_channel) and not is_modern


# -- both ------------------------------------------------------------------------------


def _disconnection(context: Any) -> Callable[[], Awaitable[bool]] | None:
    """How to find out whether the client of a streamable HTTP request has gone. Every other
    transport says so itself; a client that can resume its stream may come back."""
    request = context.request
    if context.close_sse_stream is not None or not hasattr(request, "is_disconnected"):
        return None
    if "session_id" in request.query_params:
        return None  # the SSE transport: this request was answered when it came
    return request.is_disconnected  # type: ignore[no-any-return]
