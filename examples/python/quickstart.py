"""From nothing to a verified receipt.

Start a service, which prints an API key once, and then, in another terminal, run this file. Both
from the repository's root:

    countersign serve --data ./data

    pip install ./sdk/python
    export COUNTERSIGN_API_KEY='<API_KEY>'
    python examples/python/quickstart.py

The key that is printed is an admin's. A key of role agent is enough for all but the verification at
the end, which takes role member. The package called countersign on the public index is another.
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
    print(f"{receipt['receipt_number']}: {receipt['total_actions']} actions")
    try:
        result = await countersign.verify_receipt_v2(str(receipt["receipt_id"]))
    except countersign.APIError as error:
        if error.code != "forbidden":
            raise
        print("not verified: `countersign keys create --role member` makes a key that may")
        return
    print(f"verification: {result.overall_status}")


if __name__ == "__main__":
    asyncio.run(main())
