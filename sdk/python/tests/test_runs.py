"""Runs of the adapters: a step that was decided earlier is not carried out on that word."""

from __future__ import annotations

import asyncio
import enum
import sys
import threading
import types
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import anyio
import httpx
import pytest

import countersign
from clocks import stop_time
from conftest import configure
from countersign._loops import run_to_completion
from countersign._permit import Permit
from countersign._secret import SecretStr
from countersign.adapters._agent_runs import AgentAction, Governance, request_permit
from countersign.adapters._content import Content
from countersign.adapters._run import Run, Step
from countersign.adapters._shared import RunChain, SavedChain, opened_run
from countersign.testing import FakeService, RecordedCall
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


async def _suspend() -> None:
    """Let the other tasks get as far as they can without an answer of the service."""
    for _ in range(20):
        await asyncio.sleep(0)


# A step that one branch asked about and was cancelled is asked about again by the branch that
# waited for it: a cancellation is no denial.
def test_a_cancelled_branch_does_not_end_the_run_of_another(fake: FakeService) -> None:
    configure(fake)
    fake.script("require_approval")

    async def main() -> countersign.PolicyDecision:
        async with countersign.Chain("run") as chain:
            run = Run(chain)
            first = asyncio.create_task(run.record_async(STEP))
            await _suspend()
            second = asyncio.create_task(run.record_async(STEP))
            await _suspend()
            first.cancel()
            await asyncio.wait((first,))
            assert first.cancelled()
            await _suspend()
            fake.approve(fake.approvals[0]["id"])
            decision = await second
            assert run.denial is None
            return decision

    assert asyncio.run(main()).allowed
    assert len(fake.events) == 1


# The same on threads, where an interrupt breaks the first branch off.
def test_an_interrupted_branch_does_not_end_the_run_of_another(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(fake)
    waits = threading.Event()
    decisions: list[countersign.PolicyDecision] = []

    with countersign.Chain("run") as chain:
        run = Run(chain)
        record_step, begin = run._record, run._begin

        def interrupt(step: Step, content: Content) -> countersign.PolicyDecision:
            monkeypatch.setattr(run, "_record", record_step)
            thread.start()
            assert waits.wait(10)
            raise KeyboardInterrupt

        def begin_and_tell(*given: Any, **options: Any) -> Any:
            result = begin(*given, **options)
            if not result[1]:
                waits.set()
            return result

        monkeypatch.setattr(run, "_record", interrupt)
        monkeypatch.setattr(run, "_begin", begin_and_tell)
        thread = threading.Thread(target=lambda: decisions.append(run.record(STEP)))
        with pytest.raises(KeyboardInterrupt):
            run.record(STEP)
        thread.join(10)
        assert run.denial is None
    assert [decision.allowed for decision in decisions] == [True]


# A body that ended is reported even if its task is cancelled again and again meanwhile.
def test_the_outcome_of_a_cancelled_body_is_reported(fake: FakeService) -> None:
    countersign.init(**fake.serve())  # over a socket, so that the report has to wait

    async def body(run: Run, began: asyncio.Event) -> None:
        async with run.performing_async(STEP):
            began.set()
            await asyncio.sleep(60)

    async def main() -> None:
        async with countersign.Chain("run") as chain:
            began = asyncio.Event()
            task = asyncio.create_task(body(Run(chain), began))
            await began.wait()
            await cancel_until_done(task)

    asyncio.run(main())
    assert [event["outcome"] for event in fake.events] == ["unknown"]


async def cancel_until_done(task: asyncio.Task[None]) -> None:
    """Cancel a task again and again, as the cancel scopes of anyio do."""
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()


def check_cancelled(
    fake: FakeService, agent: Callable[[asyncio.Event], Coroutine[Any, Any, None]]
) -> None:
    """Cancel an agent with two open bodies: each has an outcome, and the chain is completed."""

    async def main() -> None:
        began = asyncio.Event()
        task = asyncio.create_task(agent(began))
        await began.wait()
        await cancel_until_done(task)

    asyncio.run(main())
    assert [event.get("outcome") for event in fake.events] == ["unknown", "unknown"]
    assert [chain["status"] for chain in fake.chains] == ["failed"]


def test_a_cancel_scope_does_not_spin_while_the_outcome_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scope of anyio cancels on each turn of the loop. The report that it waits for is awaited
    twice, not once for each turn, and the cancellation is delivered after it."""
    waits = 0
    shield = asyncio.shield

    def counted(work: asyncio.Future[None]) -> asyncio.Future[None]:
        nonlocal waits
        waits += 1
        return shield(work)

    monkeypatch.setattr(asyncio, "shield", counted)
    reported = False

    async def report() -> None:
        nonlocal reported
        for _ in range(1000):
            await asyncio.sleep(0)
        reported = True

    async def main() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await run_to_completion(report())
        assert scope.cancelled_caught

    asyncio.run(main())
    assert reported
    assert waits == 2


def test_a_cancelled_report_ends_while_another_thread_imports_anyio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The module has none of its names yet."""
    monkeypatch.setitem(sys.modules, "anyio", types.ModuleType("anyio"))
    reported = False

    async def report() -> None:
        nonlocal reported
        await asyncio.sleep(0.01)
        reported = True

    async def main() -> None:
        task = asyncio.ensure_future(run_to_completion(report()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert reported


# A run of an agent that is cancelled again and again while it reports what its tools were doing
# still completes its chain, with an outcome for each of them.
def test_a_cancelled_run_of_an_agent_completes_its_chain(fake: FakeService) -> None:
    countersign.init(**fake.serve())  # over a socket, so that the reports have to wait

    async def agent(began: asyncio.Event) -> None:
        async with Governance("run").opened("clerk") as run:
            for name in ("pay", "refund"):
                permit = await request_permit(run, AgentAction("clerk", name, {}))
                assert isinstance(permit, Permit)
                run.begin(permit)
            began.set()
            await asyncio.sleep(60)

    check_cancelled(fake, agent)


# The same of a run whose bodies end in hooks of their own: none is left without an outcome.
def test_a_cancelled_run_reports_all_its_open_bodies(fake: FakeService) -> None:
    countersign.init(**fake.serve())

    async def agent(began: asyncio.Event) -> None:
        async with opened_run(RunChain("run")) as run:
            for key in ("step-1", "step-2"):
                await run.record_async(replace(STEP, key=key))
            began.set()
            await asyncio.sleep(60)

    check_cancelled(fake, agent)


# Interrupts while a run reports its outcomes neither leave the chain open nor lose an outcome.
@both
def test_a_run_that_is_interrupted_at_its_end_completes_its_chain(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    receive = fake._receive

    class Interrupted(BaseException):
        pass

    def interrupt(call: RecordedCall) -> Any:
        # Python interrupts the main thread alone.
        if running and call.path.endswith("/outcome") and threading.current_thread() is main:
            raise Interrupted
        return receive(call)

    main, running = threading.current_thread(), True

    monkeypatch.setattr(fake, "_receive", interrupt)
    configure(fake)

    def run() -> None:
        with opened_run(RunChain("run")) as run:
            run.record(STEP)

    async def run_async() -> None:
        async with opened_run(RunChain("run")) as run:
            await run.record_async(STEP)

    with pytest.raises(Interrupted):
        run() if sync else asyncio.run(run_async())
    running = False
    assert countersign.flush()
    assert [chain["status"] for chain in fake.chains] == ["completed"]
    assert [event["outcome"] for event in fake.events] == ["unknown"]


def pause_after_an_outage(sync: bool, fake: FakeService, *, ends_early: bool = False) -> None:
    """A run that records a step offline and is then interrupted, to be resumed by another call."""

    async def pause() -> None:
        async with opened_run(RunChain("run")) as run:
            fake.go_offline()
            await run.record_async(STEP)
            if ends_early:
                fake.come_back()
            run.paused = True

    if not sync:
        asyncio.run(pause())
        return
    with opened_run(RunChain("run")) as run:
        fake.go_offline()
        run.record(STEP)
        if ends_early:
            fake.come_back()
        run.paused = True


# A run that is interrupted while the service is away leaves its events for later, as a run that
# ends then does. It raised an internal error.
@both
def test_a_run_that_pauses_offline_delivers_its_events_later(fake: FakeService, sync: bool) -> None:
    configure(fake, fail_modes={"default": "allow"})
    pause_after_an_outage(sync, fake)
    assert fake.events == []
    fake.come_back()
    assert countersign.flush()
    assert [event["action_name"] for event in fake.events] == ["pay"]
    assert [chain["status"] for chain in fake.chains] == ["active"]


# What was decided offline against the rules is raised when the run is left, interrupted or not.
@both
def test_a_run_that_pauses_raises_the_violation_that_it_delivers(
    fake: FakeService, sync: bool
) -> None:
    configure(fake, fail_modes={"default": "allow"})
    fake.script("deny", decision_reason="over budget")
    with pytest.raises(countersign.PolicyViolationError, match="over budget"):
        pause_after_an_outage(sync, fake, ends_early=True)
    assert [chain["status"] for chain in fake.chains] == ["active"]


# With another API key, resuming opens a chain that is not needed. The run goes on in its own even
# if that one cannot be completed: the service seals it as abandoned. It raised an internal error.
@both
def test_a_run_goes_on_if_the_chain_that_it_does_not_need_cannot_be_completed(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    configure(fake)
    with countersign.Chain("run") as first:
        monkeypatch.setattr(fake, "_complete", offline)
        chain = RunChain("run", earlier=SavedChain("another-key", first.id))
        if sync:
            chain.__enter__()
        else:
            asyncio.run(chain.__aenter__())
        assert chain.id == first.id
        assert len(fake.chains) == 2
        monkeypatch.undo()


def offline(*_: object) -> None:
    raise httpx.ConnectError("nothing listens")


class Secret:
    """As web frameworks have it: only ``str()`` gives it away."""

    def __init__(self, value: str) -> None:
        self._value = value


class AzureKeyCredential:
    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        self._key = key


class ApiToken(Secret):
    """The name of its base says what it is."""


class PasswordText(str):
    __slots__ = ()


@dataclass
class DatabaseCredential:
    held: str


class ClientSecret(NamedTuple):
    held: str


class SecretModel:
    """Has its fields read as those of pydantic's models are."""

    def __init__(self, held: str) -> None:
        self.held = held

    def model_dump(self) -> dict[str, Any]:
        return {"held": self.held}


class Vault(dict[str, str]):
    def __init__(self, held: str) -> None:
        super().__init__(held=held)

    def get_secret_value(self) -> str:
        return self["held"]


@pytest.mark.parametrize(
    "wrap",
    [
        SecretStr,
        Secret,
        AzureKeyCredential,
        ApiToken,
        PasswordText,
        DatabaseCredential,
        ClientSecret,
        SecretModel,
        Vault,
    ],
)
def test_a_secret_in_a_wrapper_is_not_read(wrap: Any) -> None:
    """What it wraps looks like nothing, and the attribute that holds it has any name."""
    content = Content({"given": wrap("hunter2")})
    assert "hunter2" not in str(content.value)
    assert content.value["given"].startswith(f"<{wrap.__name__} ")
    assert content.read_again() == content.value
    assert content.value != Content({"given": wrap("hunter2")}).value


class Kind(str, enum.Enum):
    PASSWORD = "password"


class SecretKind(enum.Enum):
    PASSWORD = "password"


@dataclass
class Secretary:
    name: str


def test_what_wraps_no_secret_is_read() -> None:
    """A rule must see it, and a resumed run must find it again."""
    given = [Kind.PASSWORD, SecretKind.PASSWORD, Secretary("Ada"), SecretStr]
    written = f"<class {SecretStr.__module__}.SecretStr>"
    assert Content(given).value == ["password", "password", {"name": "Ada"}, written]
