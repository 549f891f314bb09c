"""An agent executor of LangChain whose model calls and tools are governed.

Start a service, which prints an API key once, and then, in another terminal, run this file. Both
from the repository's root:

    make run        # with a release: countersign serve --data ./data

    pip install './sdk/python[langchain]' langchain-classic
    export COUNTERSIGN_API_KEY='<API_KEY>'
    python examples/python/langchain_agent.py

The key that is printed is an admin's. A key of role agent is enough for all but the verification at
the end, which takes role member. The public index has another package called countersign.

The model follows a script: no network, no model key.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from langchain_classic.agents import AgentExecutor, create_tool_calling_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.tools import tool

import countersign
from countersign.adapters import last_chain
from countersign.adapters.langchain import govern

SCRIPT = [
    {"name": "look_up_order", "args": {"order": 7}, "id": "call-1"},
    {"name": "refund_order", "args": {"order": 7, "amount_usd": 42.0}, "id": "call-2"},
]


class ScriptedModel(BaseChatModel):
    """Asks for one tool after the other, and then says that it is done."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        said = AIMessage(
            "" if turn < len(SCRIPT) else "Order 7 is refunded.",
            tool_calls=SCRIPT[turn : turn + 1],
            response_metadata={"model_name": "gpt-4o"},
            usage_metadata={"input_tokens": 100, "output_tokens": 20, "total_tokens": 120},
        )
        return ChatResult(generations=[ChatGeneration(message=said)])


@tool
def look_up_order(order: int) -> str:
    """Say what was ordered."""
    return f"order {order}: 3 lamps, 42.00 USD"


@tool
def refund_order(order: int, amount_usd: float) -> str:
    """Give money back."""
    print(f"refunded {amount_usd:.2f} USD")
    return f"order {order} is refunded"


def build() -> AgentExecutor:
    prompt = ChatPromptTemplate.from_messages(
        [("user", "{input}"), MessagesPlaceholder("agent_scratchpad")]
    )
    tools = [look_up_order, refund_order]
    agent = create_tool_calling_agent(ScriptedModel(), tools, prompt)
    return AgentExecutor(agent=agent, tools=tools)


async def main() -> None:
    countersign.init(environment="development")

    executor = govern(build(), metadata={"ticket": "OPS-7"})
    result = await executor.ainvoke({"input": "Please refund order 7."})
    print(result["output"])

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
