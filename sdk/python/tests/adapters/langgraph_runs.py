"""Runs of LangGraph, for what is measured of many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bodies import Around, unchanged
from scripted_agents import QUESTION, Marks, agent

from countersign.adapters.langgraph import govern

__all__ = ["prepare", "prepare_sync"]

_OPTIONS: Any = {"recursion_limit": 1000}


def _graph(tools: Sequence[str], chain_name: str | None, around: Around) -> Any:
    made = agent(Marks(around), *([name] for name in tools))
    return made if chain_name is None else govern(made, chain_name)


def prepare(
    tools: Sequence[str], chain_name: str | None, around: Around = unchanged
) -> Callable[[], Awaitable[Any]]:
    """An agent that calls the tools in turn; without a chain's name, ungoverned."""
    graph = _graph(tools, chain_name, around)
    return lambda: graph.ainvoke(QUESTION, _OPTIONS)


def prepare_sync(
    tools: Sequence[str], chain_name: str | None, around: Around = unchanged
) -> Callable[[], Any]:
    graph = _graph(tools, chain_name, around)
    return lambda: graph.invoke(QUESTION, _OPTIONS)
