"""The same as :mod:`countersign.adapters.mcp`."""

from countersign.adapters.mcp import MCPAdapter

__all__ = ["MCPAdapter"]
