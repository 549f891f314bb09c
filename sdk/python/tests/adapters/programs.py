"""What the tests of every adapter ask of its example, and of an import without the framework."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from office import Office

EXAMPLES = Path(__file__).parents[4] / "examples" / "python"


def check_example(name: str, office: Office, **variables: str) -> None:
    """Run an example, which pays a refund under governance and verifies its receipt."""
    shown = run_example(name, office, **variables)
    assert "refunded 42.00 USD" in shown.stdout
    assert "verification: verified" in shown.stdout


def run_example(name: str, office: Office, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run an example as its reader would, and return what it showed."""
    shown = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env={
            **os.environ,
            "COUNTERSIGN_API_KEY": office.server.key,
            "COUNTERSIGN_BACKEND_URL": office.server.url,
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shown.returncode == 0, shown.stderr
    return shown


def check_missing(framework: str, module: str, extra: str) -> None:
    """Import a module where the framework is missing: the error names the extra to install."""
    program = f"import sys; sys.modules[{framework!r}] = None; import {module}"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.returncode != 0
    assert f"pip install './sdk/python[{extra}]'" in shown.stderr
