"""Runs of LangChain, for what is measured of many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bodies import Around, unchanged
from langchain_cases import executor
from scripted_agents import Marks

from countersign.adapters.langchain import govern

__all__ = ["prepare", "prepare_sync"]

_QUESTION = {"input": "go"}


def _executor(tools: Sequence[str], chain_name: str | None, around: Around) -> Any:
    marks = Marks(around)
    made = executor({name: marks.tool(name) for name in tools}, tools)
    made.max_iterations = len(tools) + 1
    return made if chain_name is None else govern(made, chain_name)


def prepare(
    tools: Sequence[str], chain_name: str | None, around: Around = unchanged
) -> Callable[[], Awaitable[Any]]:
    """An agent that calls the tools in turn; without a chain's name, ungoverned."""
    made = _executor(tools, chain_name, around)
    return lambda: made.ainvoke(_QUESTION)


def prepare_sync(
    tools: Sequence[str], chain_name: str | None, around: Around = unchanged
) -> Callable[[], Any]:
    made = _executor(tools, chain_name, around)
    return lambda: made.invoke(_QUESTION)
