"""An MCP server over standard input and output whose tool calls are governed.

Start a service, which prints an API key once, and have a client start this file:

    countersign serve --data ./data
    export COUNTERSIGN_API_KEY='<API_KEY>'
    pip install 'countersign[mcp]'
    python mcp_client.py

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


async def main() -> None:
    countersign.init(environment="development")

    async with countersign.Chain("order-desk") as chain:
        MCPAdapter(chain=chain, agent_name="order-agent").install(server)
        await server.run_stdio_async()

    if chain.receipt is None:
        print("the service cannot be reached; the receipt comes when it can", file=sys.stderr)
        return
    receipt = chain.receipt
    result = await countersign.verify_receipt_v2(str(receipt["receipt_id"]))
    # Standard output belongs to the protocol.
    print(f"{receipt['receipt_number']}: {receipt['total_actions']} actions", file=sys.stderr)
    print(f"verification: {result.overall_status}", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main())
