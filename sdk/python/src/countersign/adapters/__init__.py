"""Adapters that govern the agents of other frameworks before they act.

Each adapter is a module of its own and needs its framework, which an extra installs:
``pip install countersign[langgraph]``, ``[langchain]``, ``[crewai]``, ``[mcp]`` or ``[all]``.
"""

from __future__ import annotations

from countersign.adapters._shared import last_chain

__all__ = ["last_chain"]
