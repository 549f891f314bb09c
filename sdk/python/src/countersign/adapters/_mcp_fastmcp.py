"""The package ``fastmcp``, which has servers of its own on the second major of the SDK.

Its calls come through the SDK's low-level server, and then through ``FastMCP.call_tool``: once to
run its middleware, and once more, inside of that, to run the tool. The second is held, so that what
middleware makes of the arguments is what is recorded. A server also gives out its tools, as objects
that can be run, or be added to another server: those are held as well. This module does not import
it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable
from types import new_class
from typing import Any

__all__ = ["Registry", "contexts", "defaults_in", "forwarded_to", "is_fastmcp", "tool_errors"]

_GIVE_ONE = ("get_tool", "get_tool_by_hash", "get_app_tool")
_RUN = ("run", "_run")


def is_fastmcp(server: Any) -> bool:
    """Whether it is a server of ``fastmcp``, in a version that is built on the second major."""
    kind = _loaded("fastmcp.server.server", "FastMCP")
    return kind is not None and isinstance(server, kind) and hasattr(server, "_mcp_server")


def contexts() -> tuple[type[Any], ...]:
    """The type of the object that it gives to a tool that asks for it."""
    kind = _loaded("fastmcp.server.context", "Context")
    return (kind,) if kind is not None else ()


def tool_errors() -> tuple[type[Any], ...]:
    """What it makes of an error of a tool."""
    kind = _loaded("fastmcp.exceptions", "ToolError")
    return (kind,) if kind is not None else ()


def _loaded(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


class Registry:
    """The tools of a server, in the shape of the SDK's own registry."""

    def __init__(self, server: Any) -> None:
        self._server = server

    @property
    def call_tool(self) -> Any:
        return self._server.call_tool

    @call_tool.setter
    def call_tool(self, governed: Any) -> None:
        call_tool = self._server.call_tool

        async def held(name: str, arguments: Any = None, **named: Any) -> Any:
            if named.get("run_middleware", True):
                return await call_tool(name, arguments, **named)
            return await governed(name, arguments or {}, **named)

        self._server.call_tool = held

    def hold_tools(self, gate: Callable[..., Awaitable[Any]]) -> None:
        """Have the server, and its own provider, give out tools that are held at the gate."""

        @functools.cache
        def held(kind: Any) -> Any:
            own = {name: _held(getattr(kind, name), gate) for name in _RUN}
            content = {"__module__": kind.__module__, **own}
            return new_class(kind.__name__, (kind,), exec_body=lambda body: body.update(content))

        kinds: set[Any] = set()

        def hold(tool: Any) -> Any:
            if tool is None or type(tool) in kinds:
                return tool
            # A copy, since others may have the object too. Its own copies are held like it.
            copy = tool.model_copy()
            kinds.add(held(type(tool)))
            object.__setattr__(copy, "__class__", held(type(tool)))
            return copy

        for owner in (self._server, self._server.local_provider):
            for name in _GIVE_ONE:
                if hasattr(owner, name):
                    setattr(owner, name, _giving(getattr(owner, name), hold))
            several = _giving(owner.list_tools, lambda tools: [hold(tool) for tool in tools])
            owner.list_tools = several

    async def defaults_of(self, name: str) -> dict[str, Any]:
        """The defaults of a tool that is registered here, from its schema. Those of mounted and
        remote servers are not looked up."""
        try:
            tool = await self._server.local_provider._get_tool(name)
        except Exception:
            return {}
        return defaults_in(tool)


def defaults_in(tool: Any) -> dict[str, Any]:
    """The defaults of a tool's parameters, from its schema."""
    properties = (getattr(tool, "parameters", None) or {}).get("properties", {})
    return {own: given["default"] for own, given in properties.items() if "default" in given}


def forwarded_to(tool: Any) -> tuple[Any, str] | None:
    """The low-level server that the tool of a mounted server hands its calls on to, and the tool's
    name there."""
    while (parent := getattr(tool, "parent_tool", None)) is not None:
        tool = parent
    server, name = getattr(tool, "_server", None), getattr(tool, "_original_name", None)
    return (server._mcp_server, name) if is_fastmcp(server) and isinstance(name, str) else None


def _held(method: Any, gate: Callable[..., Awaitable[Any]]) -> Any:
    @functools.wraps(method)
    async def run(tool: Any, arguments: Any, *rest: Any, **named: Any) -> Any:
        async def carry_out(approved: Any) -> Any:
            return await method(tool, approved, *rest, **named)

        return await gate(tool, arguments, carry_out)

    return run


def _giving(give: Callable[..., Awaitable[Any]], hold: Callable[[Any], Any]) -> Any:
    @functools.wraps(give)
    async def given(*args: Any, **named: Any) -> Any:
        return hold(await give(*args, **named))

    return given
