"""Runs the programs in ``examples/python``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["check_without_a_key"]


_EXAMPLES = Path(__file__).parents[3] / "examples" / "python"


def check_without_a_key(name: str) -> None:
    """An example that is started without an API key says in one line what to set."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COUNTERSIGN_")}
    shown = subprocess.run(
        [sys.executable, str(_EXAMPLES / name)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shown.returncode == 1
    assert "Traceback" not in shown.stderr
    assert "set COUNTERSIGN_API_KEY" in shown.stderr.splitlines()[-1]
