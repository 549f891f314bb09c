"""Crews that wait for people, many at once, and crews that are cut off."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest
from crewai_scripts import Crew, Marks, agent, crew_of, task, tool
from crewai_scripts import ScriptedModel as Model
from office import Office

from countersign.adapters import _crewai_calls as calls
from countersign.adapters._shared import current_run
from countersign.adapters.crewai import govern

pytestmark = pytest.mark.filterwarnings("ignore")

NIGHTLY = os.environ.get("COUNTERSIGN_NIGHTLY") == "1"


def _pending(office: Office) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = office._call("GET", "/v1/approvals?status=pending&limit=200")[
        "data"
    ]
    return asked


@pytest.mark.parametrize("kickoff", ["akickoff", "kickoff_async"] if NIGHTLY else ["akickoff"])
def test_more_runs_wait_than_the_pool_has_threads(office: Office, kickoff: str) -> None:
    """Every run asks, however many wait already, and the loop goes on meanwhile."""
    count = 200 if NIGHTLY else (os.cpu_count() or 1) + 6
    marks = Marks()

    async def main() -> None:
        runs: list[asyncio.Task[Any]] = []
        asked: list[dict[str, Any]] = []
        for n in range(count):
            crew = govern(crew_of(marks, [("asked_pay", {"amount": n})], "done"))
            runs.append(asyncio.create_task(getattr(crew, kickoff)()))
            # A few start at a time: what is tested is how many wait.
            while len(asked) < len(runs) - (7 if n + 1 < count else 0):
                await asyncio.sleep(0.02)
                asked = await asyncio.to_thread(_pending, office)
                for run in runs:
                    assert not run.done(), run.exception()
        assert marks == []
        # The pool of the program is free.
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), 30) == 7

        # And a few go on at a time: what 200 threads do at once comes late on a small machine.
        for n, approval in enumerate(asked):
            path = f"/v1/approvals/{approval['id']}/approve"
            await asyncio.to_thread(office._call, "POST", path, {})
            while sum(not run.done() for run in runs) > count - n + 3:
                await asyncio.sleep(0.02)
        await asyncio.gather(*runs)

    asyncio.run(main())
    assert sorted(marks) == sorted(f"asked_pay {n}" for n in range(count))


@pytest.mark.parametrize("kickoff", ["akickoff", "kickoff_async"])
def test_a_body_that_is_left_behind_has_an_unknown_outcome(office: Office, kickoff: str) -> None:
    """The run is cancelled while a tool's body runs: what it did is not known, and what it says
    later changes nothing."""
    name = f"left behind by {kickoff}"
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    @tool("plain")
    def plain(amount: int = 0) -> str:
        """Takes its time."""
        began.set()
        may_end.wait(60)
        ended.set()
        return "fine"

    clerk = agent("clerk", Model([("plain", {})], "done"), [plain])

    async def main() -> None:
        crew = govern(Crew(agents=[clerk], tasks=[task("first", clerk)]), name)
        run = asyncio.create_task(getattr(crew, kickoff)())
        await asyncio.to_thread(began.wait, 60)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(main())
    may_end.set()
    ended.wait(60)
    (chain,) = office.chains(name)
    assert chain["status"] == "failed"
    assert office.outcomes(chain["id"]) == [("unknown", "the run ended before it did")]


def test_a_run_that_is_cancelled_while_it_waits_runs_no_body(office: Office) -> None:
    """Its approval is cancelled with its chain, and nobody decides for nobody."""
    marks = Marks()

    async def main() -> str:
        run = asyncio.create_task(
            govern(crew_of(marks, [("asked_pay", {})], "done"), "cancelled").akickoff()
        )
        (approval,) = await asyncio.to_thread(office.waiting)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        return str(approval["id"])

    approval_id = asyncio.run(main())
    assert office.server.get(f"/v1/approvals/{approval_id}")["status"] == "cancelled"
    assert marks == []


@pytest.mark.parametrize("what", ["forked", "over"])
def test_what_is_no_part_of_the_run_any_more_is_refused(office: Office, what: str) -> None:
    """In a forked process, and after the run: a tool that is called there does not run."""
    marks, errors, run_over = Marks(), [], threading.Event()
    plain = marks.tools()[0]

    def call() -> None:
        try:
            if what == "over":
                run_over.wait(60)
            plain.run(amount=1)
        except Exception as error:
            errors.append(str(error))

    @tool("other")
    def other() -> str:
        """Leaves something behind."""
        if what == "over":
            threading.Thread(target=call).start()
        else:
            run = current_run()
            assert run is not None
            run._process += 1  # as after a fork
            call()
            run._process -= 1
        return "done"

    clerk = agent("clerk", Model([("other", {})], "done"), [other])
    before = set(threading.enumerate())
    govern(Crew(agents=[clerk], tasks=[task("first", clerk)]), f"no part: {what}").kickoff()
    run_over.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name != "countersign-crew":
            thread.join(5)
    assert marks == []
    assert len(errors) == 1
    assert "nothing was carried out" in errors[0]


def test_a_child_is_not_held_up_by_what_the_parent_was_doing() -> None:
    """Another thread of the parent may be starting a crew, or counting tokens, at the fork."""
    with calls._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if calls._lock.acquire(timeout=5) else 1)
    assert os.waitpid(child, 0)[1] == 0
