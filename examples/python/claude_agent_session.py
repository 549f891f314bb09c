"""A session of the Claude Agent SDK whose tools are governed.

Start a service, which prints an API key once, and then, in another terminal, run this file. Both
from the repository's root:

    make run        # with a release: countersign serve --data ./data

    pip install './sdk/python[claude-agent]'
    export COUNTERSIGN_API_KEY='<API_KEY>'
    python examples/python/claude_agent_session.py

The key that is printed is an admin's. A key of role agent is enough for all but the verification at
the end, which takes role member. The public index has another package called countersign.

The CLI, which needs a network and a key, is replaced by a stand-in that follows a script. Leave the
transport out, and the SDK starts the real one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from claude_agent_sdk import ResultMessage, Transport

import countersign
from countersign.adapters import last_chain
from countersign.adapters.claude_agent import query

SCRIPT: list[tuple[str, dict[str, Any]]] = [
    ("Read", {"file_path": "orders/7.txt"}),
    ("Bash", {"command": "refund --order 7 --amount-usd 42.00"}),
]


class ScriptedCLI(Transport):
    """Asks the hooks about one tool after the other, as the CLI does."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._hooks: dict[str, Any] = {}
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._work: asyncio.Task[None] | None = None

    async def write(self, data: str) -> None:
        message = json.loads(data)
        if message["type"] == "control_response":
            answer = message["response"]
            self._answers.pop(answer["request_id"]).set_result(answer["response"])
        elif message["type"] == "control_request":
            self._hooks = message["request"]["hooks"]
            answer = {"subtype": "success", "request_id": message["request_id"]}
            answer["response"] = {"hook_on_failure_supported": True}
            await self._messages.put({"type": "control_response", "response": answer})
        elif message["type"] == "user":
            self._work = asyncio.create_task(self._turn())

    async def _turn(self) -> None:
        for i, (name, given) in enumerate(SCRIPT):
            about = {"tool_name": name, "tool_input": given, "tool_use_id": f"toolu_{i}"}
            output = await self._hook("PreToolUse", about)
            if output.get("hookSpecificOutput", {}).get("permissionDecision") == "deny":
                break
            if name == "Bash":
                print("refunded 42.00 USD")
            await self._hook("PostToolUse", {**about, "tool_response": "ok"})
        result = {"type": "result", "subtype": "success", "session_id": "s", "is_error": False}
        numbers = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1}
        await self._messages.put({**result, **numbers, "result": "Order 7 is refunded."})

    async def _hook(self, event: str, about: dict[str, Any]) -> dict[str, Any]:
        (callback,) = self._hooks[event][0]["hookCallbackIds"]
        request = {"subtype": "hook_callback", "callback_id": callback}
        request |= {"input": {"hook_event_name": event, **about}}
        request |= {"tool_use_id": about["tool_use_id"]}
        request_id = f"{event}-{about['tool_use_id']}"
        answer = self._answers[request_id] = asyncio.get_running_loop().create_future()
        message = {"type": "control_request", "request_id": request_id, "request": request}
        await self._messages.put(message)
        output: dict[str, Any] = await answer
        return output

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self._messages.get()) is not None:
            yield message

    async def connect(self) -> None: ...

    async def close(self) -> None:
        await self._messages.put(None)

    async def end_input(self) -> None:
        await self._messages.put(None)

    def is_ready(self) -> bool:
        return True


async def main() -> None:
    countersign.init(environment="development")

    messages = query(
        prompt="Please refund order 7.",
        transport=ScriptedCLI(),
        chain_name="complaints",
        metadata={"ticket": "OPS-7"},
        agent_name="clerk",
    )
    async for message in messages:
        if isinstance(message, ResultMessage):
            print(message.result)

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
