"""The two majors of the MCP SDK, and where each of them carries out a tool call."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import anyio
from mcp import types
from mcp.server.lowlevel import Server

from countersign import exceptions
from countersign.adapters._mcp_fastmcp import Registry, contexts, is_fastmcp, tool_errors
from countersign.adapters._mcp_sessions import (
    caller_in_first_major,
    caller_in_second_major,
    serve_scopes_in_first_major,
    serve_scopes_in_second_major,
)

try:
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # the first major; types are checked against the second
    from mcp.server.fastmcp import Context  # type: ignore[attr-defined, no-redef]
    from mcp.server.fastmcp import FastMCP as MCPServer  # type: ignore[attr-defined, no-redef]
    from mcp.server.fastmcp.exceptions import ToolError  # type: ignore[no-redef]

__all__ = [
    "cause_of",
    "defaults_of",
    "error_answer",
    "error_result",
    "is_context",
    "is_error",
    "parts_of",
    "serve_scopes",
    "shielded",
    "tool_error",
    "wrap_manager",
    "wrap_requests",
]

Gate = Callable[..., Awaitable[Any]]
"""Takes a call's name, its arguments and what carries it out with the arguments given; for a
request also its caller."""

_FIRST_MAJOR = MCPServer.__name__ == "FastMCP"
_METHOD = "tools/call"
_TIMEOUT = 10.0  # seconds


def parts_of(server: Any) -> tuple[Any, Any]:
    """The low-level server, and the registry of tools where the server has one."""
    if isinstance(server, MCPServer):
        if _FIRST_MAJOR:
            return server._mcp_server, server._tool_manager  # type: ignore[attr-defined]
        return server._lowlevel_server, server._tool_manager
    if isinstance(server, Server):
        return server, None
    if is_fastmcp(server):
        return server._mcp_server, Registry(server)
    kind = type(server)
    raise TypeError(
        f"cannot govern a {kind.__module__}.{kind.__qualname__}: install takes the SDK's own "
        f"{MCPServer.__name__} or low-level Server, or fastmcp's FastMCP (4.1 or later). For other "
        "servers, call handle_tool_call where they dispatch, or decorate their tools with tool()"
    )


def is_context(value: Any) -> bool:
    """Whether it is the SDK's own object, which is no argument of the call."""
    return isinstance(value, (Context, *contexts()))


async def defaults_of(manager: Any, name: str) -> dict[str, Any]:
    """The defaults of a registered tool's parameters, by the names that callers give."""
    if isinstance(manager, Registry):
        return await manager.defaults_of(name)
    tool = manager.get_tool(name) if manager is not None else None
    model = getattr(getattr(tool, "fn_metadata", None), "arg_model", None)
    return {
        field.alias or own: field.get_default(call_default_factory=False)
        for own, field in getattr(model, "model_fields", {}).items()
        if not field.is_required() and field.default_factory is None
    }


def is_error(result: Any) -> bool:
    """Whether a call was answered as a tool error."""
    answer = getattr(result, "root", result)
    # By its own name in each major: fastmcp warns of the other one.
    return bool(getattr(answer, "isError" if _FIRST_MAJOR else "is_error", False))


def cause_of(error: BaseException) -> BaseException:
    """What a tool raised: the SDK makes an error of its own of it."""
    made = isinstance(error, (ToolError, *tool_errors()))
    return error.__cause__ or error if made else error


def shielded() -> Any:
    """For what must be reported after a cancellation, and must not take long."""
    return anyio.move_on_after(_TIMEOUT, shield=True)


# -- gates -----------------------------------------------------------------------------


def serve_scopes(server: Any) -> None:
    """Have a low-level server tell when its sessions begin and end."""
    if _FIRST_MAJOR:
        serve_scopes_in_first_major(server)
    else:
        serve_scopes_in_second_major(server)


def wrap_requests(server: Any, gate: Gate) -> None:
    """Hold ``tools/call`` at the gate. Handlers are wrapped when they are looked up, not when
    they are registered, so that one registered later is held too."""
    if _FIRST_MAJOR:
        server.request_handlers = _Handlers(server.request_handlers, gate)
        return
    registered = server.get_request_handler

    def get_request_handler(method: str) -> Any:
        entry = registered(method)
        if method != _METHOD or entry is None:
            return entry
        return dataclasses.replace(entry, handler=_second_major(entry.handler, gate))

    server.get_request_handler = get_request_handler


class _Handlers(MutableMapping[Any, Any]):
    """The first major's handlers by type of request; what it wraps stays the store, since
    other parts of the SDK hold on to it."""

    def __init__(self, handlers: MutableMapping[Any, Any], gate: Gate) -> None:
        self._handlers = handlers
        self._gate = gate

    def __getitem__(self, kind: Any) -> Any:
        handler = self._handlers[kind]
        return _first_major(handler, self._gate) if kind is types.CallToolRequest else handler

    def __setitem__(self, kind: Any, handler: Any) -> None:
        self._handlers[kind] = handler

    def __delitem__(self, kind: Any) -> None:
        del self._handlers[kind]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


def _first_major(handler: Callable[[Any], Awaitable[Any]], gate: Gate) -> Any:
    async def governed(request: Any) -> Any:
        request = request.model_copy(deep=True)

        async def carry_out(arguments: Any) -> Any:
            request.params.arguments = arguments
            return await handler(request)

        caller = caller_in_first_major()
        return await gate(request.params.name, request.params.arguments, carry_out, caller)

    return governed


def _second_major(handler: Callable[[Any, Any], Awaitable[Any]], gate: Gate) -> Any:
    async def governed(context: Any, params: Any) -> Any:
        params = params.model_copy(deep=True)

        async def carry_out(arguments: Any) -> Any:
            params.arguments = arguments
            # The context repeats the parameters as they came in.
            repeated = {**(context.params or {}), "arguments": arguments}
            return await handler(dataclasses.replace(context, params=repeated), params)

        caller = caller_in_second_major(context)
        return await gate(params.name, params.arguments, carry_out, caller)

    return governed


def wrap_manager(manager: Any, gate: Gate) -> None:
    """Hold the calls of a server's registered tools at the gate, whoever makes them."""
    call_tool = manager.call_tool

    async def governed(name: str, arguments: dict[str, Any], *rest: Any, **named: Any) -> Any:
        async def carry_out(approved: Any) -> Any:
            return await call_tool(name, approved, *rest, **named)

        return await gate(name, arguments, carry_out)

    manager.call_tool = governed


# -- denials ---------------------------------------------------------------------------


def error_result(denial: Exception) -> Any:
    """The denial as a result that the model reads."""
    content = [{"type": "text", "text": f"Not carried out: {denial}"}]
    return types.CallToolResult.model_validate({"content": content, "isError": True})


def error_answer(denial: Exception) -> Any:
    """The denial as what a handler of requests returns."""
    result = error_result(denial)
    if _FIRST_MAJOR:
        return types.ServerResult(result)  # type: ignore[operator]
    return result


def tool_error(denial: Exception) -> Exception:
    """The denial as an error that is both itself and what the SDK, or ``fastmcp``, answers as a
    tool error with its text; the text of other errors is kept from the model by the second major,
    and by a server of ``fastmcp`` whose middleware has called the tool."""
    kind = type(denial)
    if kind.__module__ != exceptions.__name__:
        return denial
    kinds = (kind, ToolError, *tool_errors())
    both = _TOOL_ERRORS.get(kinds)
    if both is None:
        both = _TOOL_ERRORS[kinds] = type(kind.__name__, kinds, {})
    error: Exception = both(*denial.args)
    return error


_TOOL_ERRORS: dict[tuple[type[Any], ...], Any] = {}
