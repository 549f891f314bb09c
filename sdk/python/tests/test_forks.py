"""A child has its parent's chains, and none of its parent's threads."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack

import pytest

import countersign
from countersign import _client, _scope
from countersign._session import Session
from countersign.adapters import _mcp_chains
from countersign.adapters._run import Step
from countersign.adapters._shared import RunChain, opened_run
from countersign.testing import FakeService, example_api_key
from scripted import ScriptedService
from server import Server

# Python 3.12 and later warn of what this is about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SAFE = ("clerk", "tool_call", "look", {"n": 1})


def in_child(act: Callable[[], str]) -> str:
    """What something comes to in a forked child; nothing if it does not end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            os.write(writer, act().encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader, "rb") as pipe:
        return pipe.read().decode()


def take_flushing(session: Session, held: ExitStack) -> None:
    """Another thread delivers what was decided here: its turn never ends in the child."""
    session._flushing = Future()
    session.outbox.put({"idempotency_key": "k", "executed_at": "2026-01-01T00:00:00.000Z"})
    session.outbox.begin()


# What another thread may be doing at the moment of the fork.
BUSY: dict[str, Callable[[Session, ExitStack], object]] = {
    "nothing": lambda session, held: None,
    "learning": lambda session, held: held.enter_context(session._lock),
    "learning of the organization": lambda session, held: held.enter_context(
        session.transport._lock
    ),
    "buffering": lambda session, held: held.enter_context(session.outbox._lock),
    "delivering": take_flushing,
    "submitting": lambda session, held: held.enter_context(session.transport.sender._changed),
    "connecting": lambda session, held: held.enter_context(session.transport.clients._lock),
    "initializing": lambda session, held: held.enter_context(_client._lock),
    "governing": lambda session, held: held.enter_context(_scope._installing),
}


@pytest.mark.parametrize("busy", BUSY)
def test_a_child_goes_on_whatever_other_threads_were_doing(busy: str) -> None:
    with ScriptedService() as service, ExitStack() as held:
        config = countersign.ChainConfig(example_api_key(), backend_url=service.url)
        chain = countersign.Chain("forked", config=config).__enter__()
        session = chain._session
        assert session is not None
        BUSY[busy](session, held)

        def act() -> str:
            decision = chain.record_agent_action_sync(*SAFE)
            again = countersign.init(example_api_key(), backend_url=service.url)
            with countersign.Chain("own", config=again) as own:
                own.record_agent_action_sync(*SAFE)
            return decision.decision_source

        assert in_child(act) == "backend_evaluation"


def test_what_was_decided_in_the_parent_is_delivered_by_the_parent() -> None:
    with ScriptedService() as service:
        config = countersign.ChainConfig(example_api_key(), backend_url=service.url)
        chain = countersign.Chain("forked", config=config).__enter__()
        session = chain._session
        assert session is not None
        session.outbox.put({"idempotency_key": "k", "executed_at": "2026-01-01T00:00:00.000Z"})
        assert in_child(lambda: str(len(session.outbox))) == "0"
        assert len(session.outbox) == 1


# A forked child that leaves the block, for example by sys.exit(), does not complete the chain: the
# parent still records in it.
def test_a_child_that_leaves_does_not_complete_its_parents_chain() -> None:
    with FakeService() as service:
        config = countersign.ChainConfig(**service.serve())
        with countersign.Chain("forked", config=config) as chain:

            def leave() -> str:
                chain.record_agent_action_sync(*SAFE)
                error = SystemExit(0)
                chain.__exit__(type(error), error, None)
                return "left"

            assert in_child(leave) == "left"
            assert [kept["status"] for kept in service.chains] == ["active"]
            chain.record_agent_action_sync(*SAFE)
        assert [kept["status"] for kept in service.chains] == ["completed"]
        assert len(service.events) == 2


@pytest.mark.parametrize("error", [SystemExit, OSError])
def test_a_child_does_not_report_the_calls_of_its_parent(error: type[BaseException]) -> None:
    """A function may fork, and its copy in the child end in its own way, such as ``sys.exit()``. It
    is the parent's call, and the parent says how it ended."""
    child = -1

    @countersign.governed
    def work() -> str:
        nonlocal child
        child = os.fork()
        if child == 0:
            raise error
        os.waitpid(child, 0)
        told.extend(event.get("outcome") for event in service.events)
        return "done"

    told: list[object] = []
    with FakeService() as service:
        countersign.init(**service.serve(), enable_local_fast_path=False)
        try:
            with countersign.governed_run("run"):
                assert work() == "done"
        finally:
            if child == 0:
                os._exit(0)
        assert told == [None]
        assert [event["outcome"] for event in service.events] == ["succeeded"]


def test_a_child_does_not_complete_a_chain_that_its_parent_has_left() -> None:
    """The parent may have left it while the service was away. Delivering something of its own, the
    child would seal it before the parent's events have arrived."""
    with FakeService() as service:
        config = countersign.ChainConfig(**service.serve())
        with countersign.Chain("run", config=config) as chain:
            session = chain._session
            assert session is not None
            session.completion = {"outcome": "completed"}
            assert in_child(lambda: str(session.transport.run(session.flush()))) == "None"
            assert [kept["status"] for kept in service.chains] == ["active"]
            session.completion = None


def test_a_denial_ends_a_run_in_the_child_whatever_other_threads_were_doing() -> None:
    """Another thread may be noting a denial of the run at the moment of the fork."""
    with FakeService() as service:
        config = countersign.ChainConfig(**service.serve())
        with ExitStack() as held:
            with pytest.raises(ValueError), countersign.governed_run("run", config=config) as run:
                held.enter_context(run._lock)
                assert in_child(lambda: str(run.deny(ValueError("no")))) == "no"
                held.close()
                assert run.denial is None
                run.deny(ValueError("no"))


def test_a_step_is_refused_in_the_child_whatever_other_threads_were_doing() -> None:
    """Another thread may be counting an attempt of a step at the moment of the fork."""
    step = Step(*SAFE, key="step-1")

    def perform() -> str:
        with run.performing(step):
            return "performed"

    with FakeService() as service:
        countersign.init(**service.serve())
        with opened_run(RunChain("run")) as run:
            with run._lock:
                assert "another process" in in_child(perform)
            assert perform() == "performed"


def test_a_child_that_exits_leaves_the_sessions_of_an_mcp_server_to_its_parent() -> None:
    """A child of ``os.fork`` that ends by ``sys.exit()`` runs what was registered for the exit of
    its parent. It neither completes the chain of a session nor reports the calls that run in it."""

    async def call() -> None:
        async with session.held() as part:
            part.outcomes.begin(await part.chain.record_agent_action(*SAFE))

    with FakeService() as service:
        countersign.init(**service.serve(), enable_local_fast_path=False)
        session = _mcp_chains.SessionChain("session", None, {}, lambda chain: None)
        asyncio.run(call())
        _mcp_chains.close_at_exit(session)

        def leave() -> str:
            _mcp_chains._close_all()
            return "left"

        assert in_child(leave) == "left"
        assert [kept["status"] for kept in service.chains] == ["active"]
        assert [event.get("outcome") for event in service.events] == [None]
        _mcp_chains._close_all()
        assert [kept["status"] for kept in service.chains] == ["completed"]
        assert [event["outcome"] for event in service.events] == ["unknown"]


@pytest.mark.parametrize("busy", ["nothing", "taking a chain", "opening a chain"])
def test_a_child_can_use_the_session_of_an_mcp_server_whatever_other_threads_were_doing(
    busy: str,
) -> None:
    """Another thread of the parent may be at its lock, or open the session's chain, at the fork."""

    async def call() -> str:
        async with session.held() as part:
            return (await part.chain.record_agent_action(*SAFE)).policy_decision

    with FakeService() as service, ExitStack() as held:
        countersign.init(**service.serve(), enable_local_fast_path=False)
        session = _mcp_chains.SessionChain("session", None, {}, lambda chain: None)
        if busy == "taking a chain":
            held.enter_context(session._lock)
        elif busy == "opening a chain":
            session._opening = Future()
        assert in_child(lambda: asyncio.run(call())) == "allow"


def test_a_chain_that_is_entered_in_the_child_is_the_childs(server: Server) -> None:
    """A worker may enter a chain that was made before it was forked: governed calls are recorded
    in it, and leaving completes it."""
    chain = countersign.Chain("made before the fork", config=server.config())

    @countersign.governed
    def look_up(n: int) -> str:
        return "found"

    def act() -> str:
        with chain:
            found = look_up(7)
        assert chain.receipt is not None
        return f"{found}, {chain.receipt['total_actions']} recorded"

    assert in_child(act) == "found, 1 recorded"
