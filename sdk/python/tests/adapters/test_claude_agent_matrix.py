"""The Claude Agent SDK: every call style meets every fault."""

from __future__ import annotations

import pytest
from claude_agent_cases import FRAMEWORK
from matrix import Case, cases_of, check
from office import Office


@pytest.mark.parametrize("case", cases_of(FRAMEWORK), ids=str)
def test_matrix(case: Case, office: Office) -> None:
    """A body begins after it was recorded and allowed, once for each record, and its outcome is
    recorded; whatever keeps an action from being carried out comes out of the outermost call."""
    check(FRAMEWORK, case, office)
