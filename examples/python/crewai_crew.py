"""A crew of CrewAI whose tools, model calls and tasks are governed.

Start a service, which prints an API key once, and then, in another terminal, run this file. Both
from the repository's root:

    make run        # with a release: countersign serve --data ./data

    pip install './sdk/python[crewai]'
    export COUNTERSIGN_API_KEY='<API_KEY>'
    python examples/python/crewai_crew.py

The key that is printed is an admin's. A key of role agent is enough for all but the verification at
the end, which takes role member. The public index has another package called countersign.

The models follow a script: no network, no model key.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# CrewAI reports its use to its makers unless it is told not to, before it is imported.
os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_TRACING_ENABLED", "false")

from crewai import Agent, BaseLLM, Crew, Task
from crewai.tools import tool

import countersign
from countersign.adapters import last_chain
from countersign.adapters.crewai import govern


class ScriptedModel(BaseLLM):
    """Says its lines in turn: the name of a tool and its arguments, or a final answer."""

    lines: list[Any]

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        self._track_token_usage_internal({"prompt_tokens": 100, "completion_tokens": 20})
        line = self.lines.pop(0)
        if isinstance(line, str):
            return f"Thought: I know enough.\nFinal Answer: {line}"
        name, arguments = line
        return f"Thought: I need {name}.\nAction: {name}\nAction Input: {json.dumps(arguments)}"

    async def acall(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        return self.call(messages)

    def supports_function_calling(self) -> bool:
        return False


@tool("look_up_order")
def look_up_order(order: int) -> str:
    """Say what was ordered."""
    return f"order {order}: 3 lamps, 42.00 USD"


@tool("refund_order")
def refund_order(order: int, amount_usd: float) -> str:
    """Give money back."""
    print(f"refunded {amount_usd:.2f} USD")
    return f"order {order} is refunded"


def worker(role: str, tools: list[Any], *lines: Any) -> Agent:
    model = ScriptedModel(model="gpt-4o", lines=list(lines))
    return Agent(role=role, goal="help", backstory=f"the {role}", llm=model, tools=tools)


def main() -> None:
    countersign.init(environment="development")

    clerk = worker("clerk", [look_up_order], ("look_up_order", {"order": 7}), "it was 42 USD")
    refund = ("refund_order", {"order": 7, "amount_usd": 42.0})
    cashier = worker("cashier", [refund_order], refund, "it is refunded")
    tasks = [
        Task(name="check", description="Check order 7.", expected_output="a sum", agent=clerk),
        Task(name="refund", description="Refund it.", expected_output="a report", agent=cashier),
    ]

    crew = govern(Crew(agents=[clerk, cashier], tasks=tasks), metadata={"ticket": "OPS-7"})
    print(crew.kickoff().raw)

    chain = last_chain()
    if chain is None or chain.receipt is None:
        print("the service cannot be reached; the receipt comes when it can")
        return
    receipt = chain.receipt
    print(f"receipt {receipt['receipt_number']}: {receipt['total_actions']} actions")
    try:
        result = countersign.verify_receipt_v2_sync(str(receipt["receipt_id"]))
    except countersign.APIError as error:
        if error.code != "forbidden":
            raise
        print("not verified: `countersign keys create --role member` makes a key that may")
        return
    print(f"verification: {result.overall_status}")


if __name__ == "__main__":
    try:
        main()
    except countersign.ConfigurationError as error:
        sys.exit(str(error))  # for example, that COUNTERSIGN_API_KEY is not set
