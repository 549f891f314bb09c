"""MCP: every way to a tool meets every fault."""

from __future__ import annotations

import pytest
from matrix import Case, cases_of, check
from mcp_cases import FRAMEWORK
from office import Office

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("case", cases_of(FRAMEWORK), ids=str)
def test_matrix(case: Case, office: Office) -> None:
    """A body begins after it was recorded and allowed, once for each record, and its outcome is
    recorded; whatever keeps an action from being carried out is the answer to its call."""
    check(FRAMEWORK, case, office)
