"""The example of a governed agent, and what happens without the framework."""

from __future__ import annotations

import programs
from office import Office

from examples import check_without_a_key


def test_the_example(office: Office) -> None:
    programs.check_example("pydantic_ai_agent.py", office)


def test_the_example_without_a_key_says_what_to_set() -> None:
    """Not in a traceback, in which a reader would look for it."""
    check_without_a_key("pydantic_ai_agent.py")


def test_without_the_framework_the_error_names_the_extra() -> None:
    programs.check_missing("pydantic_ai", "countersign.pydantic_ai", "pydantic-ai")
