"""An agent of the OpenAI Agents SDK whose model calls and tools are governed.

Start a service, which prints an API key once, and then, in another terminal, run this file. Both
from the repository's root:

    make run        # with a release: countersign serve --data ./data

    pip install './sdk/python[openai-agents]'
    export COUNTERSIGN_API_KEY='<API_KEY>'
    python examples/python/openai_agents_agent.py

The key that is printed is an admin's. A key of role agent is enough for all but the verification at
the end, which takes role member. The public index has another package called countersign.

The model follows a script: no network, no model key.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agents import Agent, ModelResponse, RunConfig, Usage, function_tool
from agents.models.interface import Model
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

import countersign
from countersign.adapters import last_chain
from countersign.adapters.openai_agents import GovernedRunner

SCRIPT: list[tuple[str, dict[str, Any]]] = [
    ("look_up_order", {"order": 7}),
    ("refund_order", {"order": 7, "amount_usd": 42.0}),
]


class ScriptedModel(Model):
    """Asks for one tool after the other, and then says that it is done."""

    def __init__(self) -> None:
        self._turn = 0

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        turn, self._turn = self._turn, self._turn + 1
        said: ResponseFunctionToolCall | ResponseOutputMessage
        if turn < len(SCRIPT):
            name, arguments = SCRIPT[turn]
            said = ResponseFunctionToolCall(
                call_id=f"call-{turn}",
                type="function_call",
                name=name,
                arguments=json.dumps(arguments),
            )
        else:
            text = ResponseOutputText(
                text="Order 7 is refunded.", type="output_text", annotations=[]
            )
            said = ResponseOutputMessage(
                id="said", type="message", role="assistant", status="completed", content=[text]
            )
        usage = Usage(requests=1, input_tokens=100, output_tokens=20, total_tokens=120)
        return ModelResponse(output=[said], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


@function_tool
def look_up_order(order: int) -> str:
    """Say what was ordered."""
    return f"order {order}: 3 lamps, 42.00 USD"


@function_tool
def refund_order(order: int, amount_usd: float) -> str:
    """Give money back."""
    print(f"refunded {amount_usd:.2f} USD")
    return f"order {order} is refunded"


async def main() -> None:
    countersign.init(environment="development")

    clerk = Agent("clerk", model=ScriptedModel(), tools=[look_up_order, refund_order])
    runner = GovernedRunner("complaints", metadata={"ticket": "OPS-7"})
    config = RunConfig(tracing_disabled=True)
    result = await runner.run(clerk, "Please refund order 7.", run_config=config)
    print(result.final_output)

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
