"""The tests of each adapter run in environments with its framework: scripts/test-adapters."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from server import Server

NEEDS = {
    "langgraph": "langgraph",
    "langchain": "langchain_classic",
    "crewai": "crewai",
    "mcp": "mcp",
    "openai_agents": "agents",
    "pydantic_ai": "pydantic_ai",
    "claude_agent": "claude_agent_sdk",
    "fastmcp": "fastmcp",
}
collect_ignore_glob = [
    pattern
    for name, module in NEEDS.items()
    if find_spec(module) is None
    for pattern in (f"test_{name}*.py", f"{name}_*.py")
]
if not all(find_spec(module) for module in ("langgraph", "langchain")):
    collect_ignore_glob += ["scripted_agents.py", "ways.py"]


@pytest.fixture(scope="session")
def open_office(shared_server: Server) -> Iterator[object]:
    from office import Office

    office = Office(shared_server)
    yield office
    office.close()


@pytest.fixture
def office(open_office: object) -> object:
    """A service with rules and a reviewer, with ``countersign.init`` called on it."""
    from office import Office

    assert isinstance(open_office, Office)
    open_office.configure()
    return open_office
