"""The example of governed functions runs as it is, with and without a service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from server import Server

EXAMPLE = Path(__file__).parents[4] / "examples" / "python" / "governed_functions.py"


def run_the_example(**environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


def test_the_example_needs_no_service() -> None:
    """The first run is paid for; the second one ends with the denial that its agent swallowed."""
    first, second = run_the_example().split("all done", 1)
    assert "pay_invoice: paid 120 USD for invoice 7" in first
    assert "pay_invoice: the tool failed: ActionDeniedError" in second
    assert "send_reminder: the tool failed: ActionDeniedError" in second
    assert (
        "the run was denied: tool_call 'pay_invoice' by 'clerk' was denied: over budget" in second
    )


def test_the_example_with_a_service(server: Server) -> None:
    shown = run_the_example(COUNTERSIGN_API_KEY=server.key, COUNTERSIGN_URL=server.url)
    assert re.search(r"CSN-\d{4}-\d{5,}: 3 actions", shown)
