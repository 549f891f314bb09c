"""The gateway between a client and a server of the MCP SDK."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import mcp
import pytest
from mcp_servers import FIRST_MAJOR, client_of_program, in_thread, is_error, text_of
from office import Office

HERE = Path(__file__).parent
OpenClient = Callable[[str, list[str], dict[str, str]], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def client_without_handshake(
    command: str, args: list[str], env: dict[str, str]
) -> AsyncIterator[Any]:
    """A client of the second major, which prefers the protocol of 2026-07-28."""
    from mcp.client.stdio import StdioServerParameters, stdio_client

    sdk: Any = mcp
    program = StdioServerParameters(command=command, args=args, env=env)
    async with sdk.Client(stdio_client(program)) as client:
        yield client


CLIENTS: list[OpenClient] = [client_of_program]
if not FIRST_MAJOR:
    CLIENTS.append(client_without_handshake)


@pytest.mark.parametrize("open_client", CLIENTS)
def test_a_server_that_knows_nothing_of_it(
    office: Office, binary: str, tmp_path: Path, open_client: OpenClient
) -> None:
    """What is denied does not reach the server, what needs approval waits, and every outcome is
    in the record. The server gets nothing of the gateway's settings."""
    marks = tmp_path / "marks"
    marks.touch()
    name = f"gateway {open_client.__name__}"
    before = len(office.chains(name))
    gateway = ["gateway", "--agent", "desk", "--name", name, "--"]
    server = [sys.executable, str(HERE / "mcp_plain_program.py"), str(marks)]
    environment = {
        **os.environ,
        "COUNTERSIGN_API_KEY": office.key,
        "COUNTERSIGN_URL": office.server.url,
    }

    async def main() -> None:
        told: asyncio.Queue[str | None] = asyncio.Queue()

        async def progress(done: float, total: float | None, message: str | None) -> None:
            told.put_nowait(message)

        async with open_client(binary, [*gateway, *server], environment) as client:
            listed = await client.list_tools()
            assert "asked_pay" in {tool.name for tool in listed.tools}
            denied = await client.call_tool("denied_wipe", {})
            assert is_error(denied)
            assert text_of(denied) == (
                'The call of "denied_wipe" was denied by the policy "never": This is never done.'
            )
            paying = client.call_tool("asked_pay", {"amount": 5}, progress_callback=progress)
            waiting = asyncio.create_task(paying)
            [approval] = await in_thread(office.waiting)
            assert await asyncio.wait_for(told.get(), 60) == (
                f"waiting for a person to decide: {office.server.url}/approvals/{approval['id']}"
            )
            assert text_of(await client.call_tool("plain", {})) == "plain done"
            assert marks.read_text().split() == ["plain"]
            await in_thread(office.decide, "approve")
            assert text_of(await waiting) == "asked_pay done"
            assert is_error(await client.call_tool("fail", {}))
            variables = text_of(await client.call_tool("environment", {})).split()
            assert "PATH" in variables
            assert [name for name in variables if name.startswith("COUNTERSIGN_")] == []

    asyncio.run(main())
    assert marks.read_text().split() == ["plain", "asked_pay"]
    chain = office.chains(name)[before]
    assert chain["status"] == "completed"
    assert office.story(chain["id"]) == [
        "desk: tool_call denied_wipe",
        "desk: tool_call asked_pay",
        "desk: tool_call plain",
        "desk: tool_call fail",
        "desk: tool_call environment",
    ]
    assert office.outcomes(chain["id"]) == [
        None,
        ("succeeded", None),
        ("succeeded", None),
        ("failed", "the tool reported an error"),
        ("succeeded", None),
    ]
