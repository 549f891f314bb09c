"""Runs of the adapters: a step that was decided earlier is not carried out on that word."""

from __future__ import annotations

import asyncio

import pytest

import countersign
from clocks import stop_time
from conftest import configure
from countersign.adapters._run import Run, Step
from countersign.testing import FakeService
from test_decisions import both

STEP = Step("clerk", "tool_call", "pay", {"amount_usd": 5}, key="step-1")


def record(sync: bool, run: Run) -> countersign.PolicyDecision:
    return run.record(STEP) if sync else asyncio.run(run.record_async(STEP))


@both
def test_a_step_is_asked_about_again_when_its_permission_has_run_out(
    fake: FakeService, sync: bool
) -> None:
    config = configure(fake)
    clock = stop_time(config)
    with countersign.Chain("run") as chain:
        run = Run(chain)
        record(sync, run)
        clock.pass_time(0.9)
        record(sync, run)
        assert len(fake.calls) == 2
        clock.pass_time(0.2)
        assert record(sync, run).allowed
        assert len(fake.calls) == 3
        clock.pass_time(2)
        fake.activate_kill_switch("fire")
        with pytest.raises(countersign.KillSwitchActiveError):
            record(sync, run)
        fake.deactivate_kill_switch()
        clock.pass_time(2)
        with pytest.raises(countersign.KillSwitchActiveError):
            record(sync, run)  # the run was denied, and stays so
    assert len(fake.events) == 1
