"""The example of a governed agent, and what happens without the framework."""

from __future__ import annotations

import programs
from office import Office


def test_the_example(office: Office) -> None:
    programs.check_example("claude_agent_session.py", office)


def test_without_the_framework_the_error_names_the_extra() -> None:
    programs.check_missing("claude_agent_sdk", "countersign.claude_agent", "claude-agent")
