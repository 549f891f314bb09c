"""The example of a governed agent, and what happens without the framework."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from office import Office

EXAMPLE = Path(__file__).parents[4] / "examples" / "python" / "openai_agents_agent.py"


def test_the_example(office: Office) -> None:
    shown = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={
            **os.environ,
            "COUNTERSIGN_API_KEY": office.server.key,
            "COUNTERSIGN_BACKEND_URL": office.server.url,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shown.returncode == 0, shown.stderr
    assert "refunded 42.00 USD" in shown.stdout
    assert "verification: verified" in shown.stdout


def test_without_the_framework_the_error_names_the_extra() -> None:
    program = "import sys; sys.modules['agents'] = None; import countersign.openai_agents"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.returncode != 0
    assert "pip install './sdk/python[openai-agents]'" in shown.stderr
