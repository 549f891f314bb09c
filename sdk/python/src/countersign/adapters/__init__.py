"""Adapters that govern the agents of other frameworks before they act.

Each adapter is a module of its own and needs its framework, which an extra installs. From the
root of the project's repository: ``pip install './sdk/python[langgraph]'``, ``[langchain]``,
``[crewai]``, ``[mcp]``, ``[openai-agents]``, ``[pydantic-ai]``, ``[claude-agent]`` or, for the
first four, ``[all]``. The package called countersign on the public index is not this one.
"""

from __future__ import annotations

from countersign.adapters._shared import last_chain

__all__ = ["last_chain"]
