"""A stand-in for the CLI of the Claude Agent SDK: it speaks the SDK's control protocol, asks its
hooks as the CLI does, and follows a script where the CLI would ask a model.

The real CLI is not run by any test: it needs a network and a key. As a program this file is the
stand-in as a process of its own, with one tool: ``Bash``, which leaves its command in a file.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Call", "ScriptedCLI", "StandIn", "transport"]


@dataclass
class Call:
    """One tool call of the script."""

    name: str
    given: dict[str, Any] = field(default_factory=dict)
    call_id: str = "toolu_1"
    subagent: str | None = None
    mcp: str | None = None
    """The in-process MCP server that has the tool."""
    asks: bool = False
    """Whether the CLI asks the ``PermissionRequest`` hooks and, if they do not decide,
    ``can_use_tool``."""
    unasked: bool = False
    """Whether the CLI runs the tool without its hooks, as in its minimal mode."""


class StandIn:
    """The protocol's other side."""

    def __init__(
        self,
        calls: list[Call],
        body: Callable[[str, dict[str, Any]], Awaitable[Any]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        self._calls = calls
        self._body = body
        self._send = send
        self._hooks: dict[str, Any] = {}
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._turns: set[asyncio.Task[None]] = set()
        self.told: list[str] = []
        """What the model was told as the results of its tools."""

    async def take(self, message: dict[str, Any]) -> None:
        if message["type"] == "control_response":
            response = message["response"]
            answer = self._answers.pop(response["request_id"])
            answer.set_result(response)
        elif message["type"] == "control_request":
            request = message["request"]
            if request["subtype"] == "initialize":
                self._hooks = request["hooks"] or {}
            supported = {"hook_on_failure_supported": True, "commands": []}
            await self._send(
                {
                    "type": "control_response",
                    "response": {
                        "subtype": "success",
                        "request_id": message["request_id"],
                        "response": supported,
                    },
                }
            )
        elif message["type"] == "user":
            self._turns.add(asyncio.create_task(self._turn()))

    async def _ask(self, **request: Any) -> dict[str, Any]:
        request_id = f"cli-{len(self._answers)}-{id(request)}"
        answer = self._answers[request_id] = asyncio.get_running_loop().create_future()
        await self._send({"type": "control_request", "request_id": request_id, "request": request})
        given: dict[str, Any] = await answer
        return given

    async def _turn(self) -> None:
        for call in self._calls:
            if not await self._call(call):
                break
        message = {"id": "msg_1", "model": "scripted-1", "role": "assistant"}
        usage = {"input_tokens": 7, "cache_read_input_tokens": 3, "output_tokens": 2}
        for text in ("all", "done"):  # the parts of one answer repeat its usage
            part = {"content": [{"type": "text", "text": text}], "usage": usage}
            await self._send({"type": "assistant", "message": {**message, **part}})
        result = {"type": "result", "subtype": "success", "result": "done", "session_id": "s"}
        numbers = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "is_error": False}
        await self._send({**result, **numbers})

    async def _call(self, call: Call) -> bool:
        """Whether the agent goes on."""
        given = call.given
        if call.unasked:
            await self._tell(call, str(await self._carry_out(call, given)))
            return True
        outputs = await self._hook("PreToolUse", call, tool_input=given)
        for output in outputs:
            specific = output.get("hookSpecificOutput", {})
            given = specific.get("updatedInput", given)
            if specific.get("permissionDecision") == "deny":
                await self._tell(call, specific["permissionDecisionReason"], is_error=True)
                return bool(output.get("continue", True))
        decision: dict[str, Any] = {}
        asked = await self._hook("PermissionRequest", call, tool_input=given) if call.asks else []
        for output in asked:
            decision = output.get("hookSpecificOutput", {}).get("decision") or decision
        if decision:
            if decision["behavior"] == "deny":
                await self._tell(call, decision["message"], is_error=True)
                return not decision.get("interrupt", False)
            given = decision.get("updatedInput", given)
        elif call.asks:
            request = {"tool_name": call.name, "input": given, "tool_use_id": call.call_id}
            answer = (await self._ask(subtype="can_use_tool", **request))["response"]
            if answer["behavior"] == "deny":
                await self._tell(call, answer["message"], is_error=True)
                return not answer.get("interrupt", False)
            given = answer["updatedInput"]
        try:
            result = await self._carry_out(call, given)
        except Exception as error:
            await self._hook("PostToolUseFailure", call, tool_input=given, error=str(error))
            await self._tell(call, "failed", is_error=True)
            return True
        await self._hook("PostToolUse", call, tool_input=given, tool_response=result)
        await self._tell(call, str(result))
        return True

    async def _tell(self, call: Call, text: str, *, is_error: bool | None = None) -> None:
        """Tell the model the result of a tool; whoever reads the messages sees it too."""
        self.told.append(text)
        result = {"type": "tool_result", "tool_use_id": call.call_id, "content": text}
        content = [result if is_error is None else {**result, "is_error": is_error}]
        await self._send({"type": "user", "message": {"role": "user", "content": content}})

    async def _carry_out(self, call: Call, given: dict[str, Any]) -> Any:
        if call.mcp is None:
            return await self._body(call.name, given)
        steps = [
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {},
                    "clientInfo": {"name": "cli", "version": "1"},
                },
            },
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {
                "jsonrpc": "2.0",
                "id": 2,
                "method": "tools/call",
                "params": {"name": call.name.rsplit("__")[-1], "arguments": given},
            },
        ]
        for step in steps:
            answer = await self._ask(subtype="mcp_message", server_name=call.mcp, message=step)
        result = answer["response"]["mcp_response"]["result"]
        if result.get("isError"):
            raise RuntimeError("the tool has failed")
        return result["content"][0]["text"]

    async def _hook(self, event: str, call: Call, **given: Any) -> list[dict[str, Any]]:
        about = {
            "hook_event_name": event,
            "session_id": "s",
            "transcript_path": "",
            "cwd": "",
            "tool_name": call.name,
            "tool_use_id": call.call_id,
            **given,
        }
        if call.subagent is not None:
            about |= {"agent_id": "agent-1", "agent_type": call.subagent}
        outputs = []
        for matcher in self._hooks.get(event, ()):
            if matcher.get("matcher") and not re.fullmatch(matcher["matcher"], call.name):
                continue
            for callback in matcher["hookCallbackIds"]:
                answer = await self._ask(
                    subtype="hook_callback",
                    callback_id=callback,
                    input=about,
                    tool_use_id=call.call_id,
                )
                if answer["subtype"] == "success":
                    outputs.append(answer["response"])
                elif matcher.get("onFailure") == "block":
                    reason = {"permissionDecision": "deny", "permissionDecisionReason": "failed"}
                    outputs.append({"hookSpecificOutput": reason})
        return outputs


def transport(calls: list[Call], body: Callable[[str, dict[str, Any]], Any]) -> ScriptedCLI:
    """The stand-in inside of this process; bodies run in threads."""

    async def carry_out(name: str, given: dict[str, Any]) -> Any:
        return await asyncio.to_thread(body, name, given)

    return ScriptedCLI(calls, carry_out)


class ScriptedCLI:
    """A transport of the SDK. Not a subclass: this file also runs without the SDK."""

    def __init__(self, calls: list[Call], body: Any) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self.cli = StandIn(calls, body, self._queue.put)
        self.closed = False

    async def connect(self) -> None:
        pass

    async def write(self, data: str) -> None:
        await self.cli.take(json.loads(data))

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self._queue.get()) is not None:
            yield message

    async def close(self) -> None:
        self.closed = True
        for turn in self.cli._turns:
            turn.cancel()
        await self._queue.put(None)

    def is_ready(self) -> bool:
        return not self.closed

    async def end_input(self) -> None:
        self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        # The CLI ends when its input does, after the turn that it is in.
        await asyncio.gather(*self.cli._turns, return_exceptions=True)
        await self._queue.put(None)


async def main(note: Path) -> None:
    async def body(name: str, given: dict[str, Any]) -> Any:
        with note.open("a") as file:
            file.write(f"{name} {given['command']}\n")
        return {"stdout": "ok"}

    async def send(message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    script = json.loads(note.with_suffix(".script").read_text())
    cli = StandIn([Call(**call) for call in script], body, send)
    while line := await asyncio.to_thread(sys.stdin.readline):
        await cli.take(json.loads(line))


if __name__ == "__main__":
    if "-v" in sys.argv or "--version" in sys.argv:
        print("9.9.9 (Claude Code)")
    else:
        import os

        asyncio.run(main(Path(os.environ["COUNTERSIGN_STAND_IN"])))
