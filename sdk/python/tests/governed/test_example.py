"""The example in ``examples/python`` runs as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from server import Server

EXAMPLE = Path(__file__).parents[4] / "examples" / "python" / "quickstart.py"


def test_the_quickstart(server: Server) -> None:
    environment = {
        **os.environ,
        "COUNTERSIGN_API_KEY": server.key,
        "COUNTERSIGN_BACKEND_URL": server.url,
    }
    shown = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert "paid 120.0 USD" in shown
    assert "verification: verified" in shown
