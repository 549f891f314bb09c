"""From nothing to a verified receipt.

Start a service, which prints an API key once, and run this file:

    countersign serve --data ./data
    export COUNTERSIGN_API_KEY='<API_KEY>'
    python quickstart.py
"""

from __future__ import annotations

import asyncio

import countersign


async def look_up(invoice: int) -> dict[str, object]:
    return {"invoice": invoice, "amount_usd": 120.0}


async def pay(invoice: dict[str, object]) -> None:
    print(f"paid {invoice['amount_usd']} USD")


async def main() -> None:
    countersign.init(environment="development")

    async with countersign.Chain("invoice-run", metadata={"ticket": "OPS-7"}) as chain:
        # Record each action before it is carried out. What comes back is permission to go on;
        # a denial is an exception, and a question to a person is waited for.
        await chain.record_agent_action("clerk", "tool_call", "get_invoice", {"invoice": 7})
        invoice = await look_up(7)

        decision = await chain.record_agent_action("clerk", "tool_call", "pay_invoice", invoice)
        await pay(invoice)
        await chain.record_outcome(decision, "succeeded")

    if chain.receipt is None:
        print("the service cannot be reached; the receipt comes when it can")
        return
    receipt = chain.receipt
    result = await countersign.verify_receipt_v2(str(receipt["receipt_id"]))
    print(f"{receipt['receipt_number']}: {receipt['total_actions']} actions")
    print(f"verification: {result.overall_status}")


if __name__ == "__main__":
    asyncio.run(main())
