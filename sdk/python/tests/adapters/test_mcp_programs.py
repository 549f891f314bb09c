"""Governed MCP servers that run as programs, with clients over standard streams."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import programs
import pytest
from mcp_servers import client_of_program, in_thread, is_error, text_of
from office import Office

from examples import check_without_a_key

HERE = Path(__file__).parent


def test_a_client_over_standard_streams(office: Office, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.touch()
    before = len(office.chains("mcp-program"))

    async def main() -> None:
        program = [str(HERE / "mcp_program.py"), str(marks)]
        environment = {
            **os.environ,
            "COUNTERSIGN_API_KEY": office.key,
            "COUNTERSIGN_BACKEND_URL": office.server.url,
        }
        async with client_of_program(sys.executable, program, environment) as client:
            denied = await client.call_tool("denied_wipe", {})
            assert is_error(denied)
            assert "This is never done." in text_of(denied)
            paused = asyncio.create_task(client.call_tool("asked_pay", {"amount": 5}))
            await in_thread(office.waiting)
            assert not is_error(await client.call_tool("plain", {}))
            assert marks.read_text().split() == ["plain"]
            await in_thread(office.decide, "approve")
            assert not is_error(await paused)

    asyncio.run(main())
    assert marks.read_text().split() == ["plain", "asked_pay"]
    chain = office.chains("mcp-program")[before]
    assert chain["status"] == "completed"
    assert office.story(chain["id"]) == [
        "helper: tool_call denied_wipe",
        "helper: tool_call asked_pay",
        "helper: tool_call plain",
    ]


def test_the_example(office: Office) -> None:
    shown = programs.run_example("mcp_client.py", office)
    assert "refunded 42.00 USD for order 7" in shown.stdout
    assert "2 actions" in shown.stderr
    assert "verification: verified" in shown.stderr


@pytest.mark.parametrize("program", ["mcp_client.py", "mcp_server.py"])
def test_the_example_without_a_key_says_what_to_set(program: str) -> None:
    """Not in a traceback, in which a reader would look for it."""
    check_without_a_key(program)


def test_without_the_sdk_the_error_names_the_extra() -> None:
    programs.check_missing("mcp", "countersign.adapters.mcp", "mcp")
