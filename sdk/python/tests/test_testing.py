"""``countersign.testing``: what users' own tests rest on."""

from __future__ import annotations

import pytest

import countersign
from countersign.testing import FakeService


def run_once(service: FakeService) -> None:
    with countersign.Chain("repeatable") as chain:
        service.script("allow_with_flag", decision_reason="look twice")
        decision = chain.record_agent_action_sync(
            "a", "tool_call", "look", {"n": 1}, idempotency_key="k"
        )
    assert decision.decision_reason == "look twice"


def test_two_runs_give_the_same_records() -> None:
    found = []
    for _ in range(2):
        with FakeService() as service:
            countersign.init(**service.settings())
            run_once(service)
            found.append((service.chains, service.events, service.receipts))
    assert found[0] == found[1]


def test_the_same_over_a_socket() -> None:
    with FakeService() as service:
        countersign.init(**service.serve())
        run_once(service)
        assert [c.method for c in service.calls] == ["POST"] * 3
        assert "authorization" not in service.calls[0].headers


def test_receipts_are_linked(fake: FakeService) -> None:
    countersign.init(**fake.settings())
    run_once(fake)
    run_once(fake)
    first, second = fake.receipts
    assert first["previous_receipt_hash"] is None
    assert second["previous_receipt_hash"].startswith("sha256:")
    assert (first["receipt_number"], second["receipt_number"]) == (
        "CSN-2026-00001",
        "CSN-2026-00002",
    )


def test_the_fixture_is_there(countersign_service: FakeService) -> None:
    run_once(countersign_service)
    assert len(countersign_service.events) == 1


def test_pytest_finds_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import countersign

        def test_denied(countersign_service):
            countersign_service.script("deny")
            with countersign.Chain("x") as chain:
                try:
                    chain.record_agent_action_sync("a", "t", "n", {})
                except countersign.ActionDeniedError:
                    return
            raise AssertionError
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)
