"""Pydantic AI in the matrix. Run as a program, it is the process that is killed."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from matrix import Framework, Work, replay
from pydantic_ai import Tool
from pydantic_ai_scripts import agent, tool
from sync_loops import in_own_loop

import countersign
from countersign.adapters.pydantic_ai import govern

__all__ = ["FRAMEWORK"]


def governed_agent(work: Work, chain_name: str) -> Any:
    """An agent that calls one tool after the other."""
    tools = [tool(name, functools.partial(work.run, name)) for name in work.tools]
    return govern(agent("clerk", *([(name, {})] for name in work.tools), tools=tools), chain_name)


async def _stream(made: Any) -> Any:
    async with made.run_stream("go") as result:
        return [text async for text in result.stream_text()]


async def _stream_events(made: Any) -> Any:
    async with made.run_stream_events("go") as events:
        return [event async for event in events]


async def _iter(made: Any) -> Any:
    async with made.iter("go") as run:
        return [node async for node in run]


async def _agent_in_tool(made: Any) -> Any:
    async def ask() -> str:
        """Asks the clerk."""
        try:
            return str((await made.run("go")).output)
        except Exception:  # as many programs do
            return "all done"

    chief = agent("chief", [("ask", {})], tools=[Tool(ask, name="ask")])
    name = made._governance.chain_name
    return await govern(chief, name).run("go")


async def _within(made: Any) -> Any:
    async with countersign.governed_run(made._governance.chain_name):
        try:
            await made.run("go")
        except Exception:  # as many programs do
            return None


FRAMEWORK = Framework(
    "pydantic_ai",
    governed_agent,
    {
        "run": lambda made: asyncio.run(made.run("go")),
        "run_sync": lambda made: in_own_loop(lambda: made.run_sync("go")),
        "run_stream": lambda made: asyncio.run(_stream(made)),
        "run_stream_events": lambda made: asyncio.run(_stream_events(made)),
        "iter": lambda made: asyncio.run(_iter(made)),
        "agent in a tool": lambda made: asyncio.run(_agent_in_tool(made)),
        "within governed_run": lambda made: asyncio.run(_within(made)),
    },
    quick=("run", "run_sync", "run_stream", "agent in a tool"),
    program=__file__,
)

if __name__ == "__main__":
    replay(FRAMEWORK)
