"""The Claude Agent SDK in the matrix, with a stand-in for its CLI. Run as a program, it is the
process that is killed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from claude_agent_scripts import Call, transport
from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server, tool
from matrix import Framework, Work, replay

import countersign
from countersign.adapters.claude_agent import GovernedClient, query

__all__ = ["FRAMEWORK"]


@dataclass
class Made:
    work: Work
    chain_name: str

    def transport(self, **options: Any) -> Any:
        calls = [
            Call(name, call_id=f"toolu_{i}", **options) for i, name in enumerate(self.work.tools)
        ]
        return transport(calls, lambda name, given: self.work.run(name))

    def server(self) -> Any:
        def made(name: str) -> Any:
            @tool(name, "does something", {})
            async def run(arguments: dict[str, Any]) -> dict[str, Any]:
                text = await asyncio.to_thread(self.work.run, name)
                return {"content": [{"type": "text", "text": text}]}

            return run

        return create_sdk_mcp_server("desk", tools=[made(name) for name in self.work.tools])


async def _query(made: Made, options: Any = None, **call: Any) -> Any:
    messages = query(
        prompt="go",
        options=options,
        transport=made.transport(**call),
        chain_name=made.chain_name,
        agent_name="clerk",
    )
    return [message async for message in messages]


async def _client(made: Made) -> Any:
    client = GovernedClient(
        transport=made.transport(), chain_name=made.chain_name, agent_name="clerk"
    )
    async with client:
        await client.query("go")
        return [message async for message in client.receive_response()]


async def _mcp(made: Made) -> Any:
    options = ClaudeAgentOptions(mcp_servers={"desk": made.server()})
    return await _query(made, options, mcp="desk")


async def _within(made: Made) -> Any:
    async with countersign.governed_run(made.chain_name):
        try:
            await _query(made)
        except Exception:  # as many programs do
            return None


FRAMEWORK = Framework(
    "claude_agent",
    Made,
    {
        "query": lambda made: asyncio.run(_query(made)),
        "client": lambda made: asyncio.run(_client(made)),
        "subagent": lambda made: asyncio.run(_query(made, subagent="helper")),
        "MCP tool": lambda made: asyncio.run(_mcp(made)),
        "within governed_run": lambda made: asyncio.run(_within(made)),
    },
    quick=("query", "client", "MCP tool", "subagent"),
    program=__file__,
)

if __name__ == "__main__":
    replay(FRAMEWORK)
