"""From nothing to a verified receipt.

Start a service, which prints an API key once, and then, in another terminal, run this file. Both
from the repository's root:

    make run        # with a release: countersign serve --data ./data

    pip install ./sdk/python
    export COUNTERSIGN_API_KEY='<API_KEY>'
    python examples/python/quickstart.py

The key that is printed is an admin's. A key of role agent is enough too: then the receipt is
checked at the end as anyone can check it, by its id and without a key. The public index has another
package called countersign.
"""

from __future__ import annotations

import asyncio
import sys

import httpx

import countersign


async def look_up(invoice: int) -> dict[str, object]:
    return {"invoice": invoice, "amount_usd": 120.0}


async def pay(invoice: dict[str, object]) -> None:
    print(f"paid {invoice['amount_usd']} USD")


async def main() -> None:
    config = countersign.init(environment="development")

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
    receipt_id = str(receipt["receipt_id"])
    print(f"receipt {receipt['receipt_number']}: {receipt['total_actions']} actions")
    try:
        result = await countersign.verify_receipt_v2(receipt_id)
    except countersign.APIError as error:
        if error.code != "forbidden":
            raise
    else:
        print(f"verification: {result.overall_status}")
        return
    print("This is an agent's key. A key of role member also sees the result of each check.")
    async with httpx.AsyncClient(base_url=config.backend_url) as anyone:
        answer = await anyone.get(f"/v1/receipts/{receipt_id}/verify")
    verified = answer.raise_for_status().json()["valid"]
    print(f"public check of the receipt, by its id: {'verified' if verified else 'FAILED'}")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except countersign.ConfigurationError as error:
        sys.exit(str(error))  # for example, that COUNTERSIGN_API_KEY is not set
