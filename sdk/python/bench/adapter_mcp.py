"""What governing an MCP server costs.

    python bench/adapter_mcp.py --binary ../../bin/countersign [--calls 100] [--rounds 7]

A client in the same process calls one tool, again and again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import costs  # first: it finds the tests' own parts
from mcp_servers import Marks, client_of, friendly

import countersign
from countersign.adapters.mcp import MCPAdapter


def run(calls: int, *, governed: bool) -> None:
    async def main() -> None:
        server: Any = friendly(Marks())
        if governed:
            MCPAdapter(chain_name="bench", agent_name="helper").install(server)
        async with client_of(server) as client:
            for n in range(calls):
                await client.call_tool("plain", {"amount": n})

    asyncio.run(main())


def by_hand(calls: int) -> None:
    async def main() -> None:
        async with countersign.Chain("by hand") as chain:
            for n in range(calls):
                payload = {"amount": n, "items": None}
                decision = await chain.record_agent_action("helper", "tool_call", "plain", payload)
                await chain.record_outcome(decision, "succeeded")

    asyncio.run(main())


def main() -> None:
    logging.disable(logging.WARNING)
    given = costs.arguments(__doc__)
    with costs.service(given.binary):
        costs.measure(
            lambda: run(given.calls, governed=True),
            lambda: run(given.calls, governed=False),
            lambda: by_hand(given.calls),
            given.rounds,
        )


if __name__ == "__main__":
    main()
