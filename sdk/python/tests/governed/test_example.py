"""The example in ``examples/python`` runs as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from examples import check_without_a_key
from server import Server

EXAMPLE = Path(__file__).parents[4] / "examples" / "python" / "quickstart.py"


def run_the_quickstart(server: Server, key: str) -> str:
    environment = {
        **os.environ,
        "COUNTERSIGN_API_KEY": key,
        "COUNTERSIGN_URL": server.url,
    }
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


def test_the_quickstart(server: Server) -> None:
    shown = run_the_quickstart(server, server.key)
    assert "paid 120.0 USD" in shown
    assert "verification: verified" in shown


def test_the_quickstart_ends_well_with_the_key_of_an_agent(server: Server) -> None:
    key = server.post("/v1/api-keys", {"name": "quickstart", "role": "agent"})["key"]
    shown = run_the_quickstart(server, key)
    assert "2 actions" in shown
    assert "A key of role member also sees the result of each check" in shown
    assert shown.endswith("public check of the receipt, by its id: verified\n")


def test_the_quickstart_without_a_key_says_what_to_set() -> None:
    """Not in a traceback, in which a reader would look for it."""
    check_without_a_key("quickstart.py")
