"""The OpenAI Agents SDK in the matrix. Run as a program, it is the process that is killed."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from typing import Any

from openai_agents_scripts import agent, tool  # isort: skip
from matrix import Framework, Work, replay
from sync_loops import in_own_loop

import countersign
from countersign.adapters.openai_agents import GovernedRunner

__all__ = ["FRAMEWORK"]


@dataclass
class Made:
    work: Work
    chain_name: str

    @property
    def runner(self) -> GovernedRunner:
        return GovernedRunner(self.chain_name)

    def worker(self, name: str = "clerk") -> Any:
        """Calls one tool after the other."""
        tools = [tool(name, functools.partial(self.work.run, name)) for name in self.work.tools]
        return agent(name, *([(tool.name, {})] for tool in tools), tools=tools)

    def manager(self) -> Any:
        """Has the worker as a tool."""
        ask = self.worker().as_tool("ask_clerk", "asks the clerk")
        return agent("chief", [("ask_clerk", {"input": "go"})], tools=[ask])

    def switch(self) -> Any:
        """Hands over to the worker."""
        return agent("desk", [("transfer_to_clerk", {})], handoffs=[self.worker()])


def _run(made: Made, starting: Any) -> Any:
    return asyncio.run(made.runner.run(starting, "go"))


def _streamed(made: Made, starting: Any) -> Any:
    async def main() -> Any:
        result = made.runner.run_streamed(starting, "go")
        return [event async for event in result.stream_events()]

    return asyncio.run(main())


def _within(made: Made) -> Any:
    async def main() -> Any:
        async with countersign.governed_run(made.chain_name):
            try:
                await made.runner.run(made.worker(), "go")
            except Exception:  # as many programs do
                return None

    return asyncio.run(main())


FRAMEWORK = Framework(
    "openai_agents",
    Made,
    {
        "run": lambda made: _run(made, made.worker()),
        "run_sync": lambda made: in_own_loop(lambda: made.runner.run_sync(made.worker(), "go")),
        "run_streamed": lambda made: _streamed(made, made.worker()),
        "agent as tool": lambda made: _run(made, made.manager()),
        "agent as tool, streamed": lambda made: _streamed(made, made.manager()),
        "handoff": lambda made: _run(made, made.switch()),
        "within governed_run": _within,
    },
    quick=("run", "run_sync", "run_streamed", "agent as tool"),
    program=__file__,
)

if __name__ == "__main__":
    replay(FRAMEWORK)
