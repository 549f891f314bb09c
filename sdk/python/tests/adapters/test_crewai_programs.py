"""The example of a governed crew, and what happens without CrewAI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from office import Office

EXAMPLE = Path(__file__).parents[4] / "examples" / "python" / "crewai_crew.py"


def test_the_example(office: Office, tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={
            **os.environ,
            "COUNTERSIGN_API_KEY": office.server.key,
            "COUNTERSIGN_BACKEND_URL": office.server.url,
            "CREWAI_TESTING": "true",
            "XDG_DATA_HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shown.returncode == 0, shown.stderr
    assert "refunded 42.00 USD" in shown.stdout
    assert "verification: verified" in shown.stdout


def test_without_the_framework_the_error_names_the_extra() -> None:
    program = "import sys; sys.modules['crewai'] = None; import countersign.adapters.crewai"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.returncode != 0
    assert "pip install './sdk/python[crewai]'" in shown.stderr
