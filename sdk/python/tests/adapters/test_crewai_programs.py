"""The example of a governed crew, and what happens without CrewAI."""

from __future__ import annotations

from pathlib import Path

import programs
from office import Office

from examples import check_without_a_key


def test_the_example(office: Office, tmp_path: Path) -> None:
    programs.check_example(
        "crewai_crew.py", office, CREWAI_TESTING="true", XDG_DATA_HOME=str(tmp_path)
    )


def test_the_example_without_a_key_says_what_to_set() -> None:
    """Not in a traceback, in which a reader would look for it."""
    check_without_a_key("crewai_crew.py")


def test_without_the_framework_the_error_names_the_extra() -> None:
    programs.check_missing("crewai", "countersign.adapters.crewai", "crewai")
