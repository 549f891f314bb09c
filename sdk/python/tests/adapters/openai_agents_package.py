"""Imports the OpenAI Agents SDK, whose package is called as a module beside this file is."""

from __future__ import annotations

import sys
from pathlib import Path

_here = str(Path(__file__).parent)
_before = list(sys.path)
sys.path[:] = [entry for entry in sys.path if str(Path(entry or ".").resolve()) != _here]
import agents  # noqa: E402

sys.path[:] = _before
assert hasattr(agents, "Runner")
