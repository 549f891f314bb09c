"""An agent of Pydantic AI whose model calls and tools are governed.

Start a service, which prints an API key once, and then, in another terminal, run this file. Both
from the repository's root:

    make run        # with a release: countersign serve --data ./data

    pip install './sdk/python[pydantic-ai]'
    export COUNTERSIGN_API_KEY='<API_KEY>'
    python examples/python/pydantic_ai_agent.py

The key that is printed is an admin's. A key of role agent is enough for all but the verification at
the end, which takes role member. The public index has another package called countersign.

The model follows a script: no network, no model key.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

import countersign
from countersign.adapters import last_chain
from countersign.adapters.pydantic_ai import govern

SCRIPT: list[tuple[str, dict[str, Any]]] = [
    ("look_up_order", {"order": 7}),
    ("refund_order", {"order": 7, "amount_usd": 42.0}),
]


def scripted(messages: list[ModelMessage], info: Any) -> ModelResponse:
    """Asks for one tool after the other, and then says that it is done."""
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    if turn < len(SCRIPT):
        return ModelResponse(parts=[ToolCallPart(*SCRIPT[turn])])
    return ModelResponse(parts=[TextPart("Order 7 is refunded.")])


def look_up_order(order: int) -> str:
    """Say what was ordered."""
    return f"order {order}: 3 lamps, 42.00 USD"


def refund_order(order: int, amount_usd: float) -> str:
    """Give money back."""
    print(f"refunded {amount_usd:.2f} USD")
    return f"order {order} is refunded"


async def main() -> None:
    countersign.init(environment="development")

    clerk = Agent(FunctionModel(scripted), name="clerk", tools=[look_up_order, refund_order])
    governed = govern(clerk, "complaints", metadata={"ticket": "OPS-7"})
    result = await governed.run("Please refund order 7.")
    print(result.output)

    chain = last_chain()
    if chain is None or chain.receipt is None:
        print("the service cannot be reached; the receipt comes when it can")
        return
    receipt = chain.receipt
    for line in receipt["events_summary"]:
        print(f"  {line['agent_name']}: {line['action_type']} {line['action_name']}")
    print(f"receipt {receipt['receipt_number']}: {receipt['total_actions']} actions")
    try:
        verified = await countersign.verify_receipt_v2(str(receipt["receipt_id"]))
    except countersign.APIError as error:
        if error.code != "forbidden":
            raise
        print("not verified: `countersign keys create --role member` makes a key that may")
        return
    print(f"verification: {verified.overall_status}")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except countersign.ConfigurationError as error:
        sys.exit(str(error))  # for example, that COUNTERSIGN_API_KEY is not set
