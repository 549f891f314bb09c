"""An MCP server over standard input and output whose tool calls are governed.

Start a service, which prints an API key once, and then, in another terminal, have a client start
this file. Both from the repository's root:

    make run        # with a release: countersign serve --data ./data

    pip install './sdk/python[mcp]'
    export COUNTERSIGN_API_KEY='<API_KEY>'
    python examples/python/mcp_client.py

The key that is printed is an admin's. A key of role agent is enough for all but the verification at
the end, which takes role member. The public index has another package called countersign.

Each session is a chain: when the client leaves, the receipt is sealed and verified.
"""

from __future__ import annotations

import asyncio
import sys

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # version 1 of the SDK
    from mcp.server.fastmcp import FastMCP as MCPServer

import countersign
from countersign.adapters.mcp import MCPAdapter

server = MCPServer("order-desk")


@server.tool()
async def look_up_order(order: int) -> str:
    """Say what was ordered."""
    return f"order {order}: 3 lamps, 42.00 USD"


@server.tool()
async def refund_order(order: int, amount_usd: float) -> str:
    """Give money back."""
    return f"refunded {amount_usd:.2f} USD for order {order}"


def say(text: str) -> None:
    # Standard output belongs to the protocol.
    print(text, file=sys.stderr)


async def main() -> None:
    countersign.init(environment="development")
    adapter = MCPAdapter(chain_name="order-desk", agent_name="order-agent")
    adapter.install(server)
    await server.run_stdio_async()

    chain = adapter.last_chain
    if chain is None:
        return  # no tool was called
    if chain.receipt is None:
        say("the service cannot be reached; the receipt comes when it can")
        return
    receipt = chain.receipt
    say(f"receipt {receipt['receipt_number']}: {receipt['total_actions']} actions")
    try:
        result = await countersign.verify_receipt_v2(str(receipt["receipt_id"]))
    except countersign.APIError as error:
        if error.code != "forbidden":
            raise
        say("not verified: `countersign keys create --role member` makes a key that may")
        return
    say(f"verification: {result.overall_status}")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except countersign.ConfigurationError as error:
        sys.exit(str(error))  # for example, that COUNTERSIGN_API_KEY is not set
