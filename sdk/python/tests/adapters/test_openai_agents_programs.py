"""The example of a governed agent, and what happens without the framework."""

from __future__ import annotations

import programs
from office import Office


def test_the_example(office: Office) -> None:
    programs.check_example("openai_agents_agent.py", office)


def test_without_the_framework_the_error_names_the_extra() -> None:
    programs.check_missing("agents", "countersign.openai_agents", "openai-agents")
