"""CrewAI: every call style meets every fault."""

from __future__ import annotations

import pytest
from crewai_cases import FRAMEWORK
from matrix import Case, cases_of, check
from office import Office

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("case", cases_of(FRAMEWORK), ids=str)
def test_matrix(case: Case, office: Office) -> None:
    """A body begins after it was recorded and allowed, once for each record, and its outcome is
    recorded; whatever keeps an action from being carried out comes out of the kickoff."""
    check(FRAMEWORK, case, office)
