"""The package ``fastmcp``, which has servers of its own on the second major of the SDK.

Its calls come through the SDK's low-level server, and then through ``FastMCP.call_tool``: once to
run its middleware, and once more, inside of that, to run the tool. The second is held, so that what
middleware makes of the arguments is what is recorded. This module does not import it.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["Registry", "contexts", "is_fastmcp", "tool_errors"]


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

    async def defaults_of(self, name: str) -> dict[str, Any]:
        """The defaults of a tool that is registered here, from its schema. Those of mounted and
        remote servers are not looked up."""
        try:
            tool = await self._server.local_provider._get_tool(name)
        except Exception:
            return {}
        properties = (getattr(tool, "parameters", None) or {}).get("properties", {})
        return {own: given["default"] for own, given in properties.items() if "default" in given}
