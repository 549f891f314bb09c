"""The background delivery, when something holds it up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any

import pytest

import countersign
from conftest import configure
from countersign import _delivery, _sender
from countersign._sender import Sender
from countersign._steps import Steps
from countersign.testing import FakeService
from test_decisions import eventually

SAFE = ("clerk", "tool_call", "look", {"n": 1})


def put_event(chain: countersign.Chain, key: str) -> None:
    """Add an event to a chain's queue without delivering it."""
    assert chain._session is not None
    chain._session.outbox.put(
        {
            "agent_name": "clerk",
            "action_type": "tool_call",
            "action_name": "look",
            "payload": {},
            "idempotency_key": key,
            "executed_at": "2026-01-01T00:00:00.000Z",
            "decision_source": "local_fast_path",
            "policy_decision": "allow",
        }
    )


# flush() returns after its timeout if a task of the same event loop is delivering: the task cannot
# end while flush() blocks the loop.
def test_flush_on_an_event_loop_returns_while_a_task_delivers(fake: FakeService) -> None:
    config = countersign.init(**fake.serve())  # over a socket, so that the task has to wait
    flushed: list[bool] = []

    async def main() -> None:
        async with countersign.Chain("busy", config=config) as chain:
            session = chain._session
            assert session is not None
            put_event(chain, "k")
            session.transport.sender.submit(session, 60)
            recording = asyncio.create_task(chain.record_agent_action(*SAFE))
            while session._flushing is None:
                await asyncio.sleep(0)
            flushed.append(countersign.flush(0.05))
            await recording
            flushed.append(countersign.flush())

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    thread.join(20)
    assert flushed == [False, True]


# A delivery that does not end, such as that of a blocked event loop, holds up no other chain.
def test_a_stuck_delivery_does_not_hold_up_other_chains(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sender, "_PATIENCE", 0.01, raising=False)
    config = configure(fake)
    with countersign.Chain("stuck", config=config) as stuck:
        with countersign.Chain("other", config=config) as other:
            assert stuck._session is not None
            assert other._session is not None
            delivering: Future[None] = Future()
            stuck._session._flushing = delivering
            put_event(other, "k")
            sender = other._session.transport.sender
            sender.submit(stuck._session, 0.0)
            sender.submit(other._session, 0.001)
            eventually(lambda: len(fake.events) == 1)
            stuck._session._flushing = None
            delivering.set_result(None)


class Work:
    """Work that a :class:`Sender` delivers."""

    def __init__(self) -> None:
        self.delivered = threading.Event()

    def flush(self, patience: float | None = None) -> Steps[None]:
        self.delivered.set()
        yield from ()

    def fail(self, error: Exception) -> None:
        raise AssertionError(error)

    def undelivered(self) -> int:
        return 0 if self.delivered.is_set() else 1


def perform(steps: Steps[Any]) -> None:
    assert next(steps, None) is None


# A system without a free thread fails no action: what was decided is delivered once there is one.
def test_delivery_goes_on_once_a_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    sender, work = Sender(perform), Work()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", refuse)
        sender.submit(work)
    assert not work.delivered.is_set()
    sender.submit(work)
    assert work.delivered.wait(10)


# An error that ends the thread, such as one of a program's own logging, ends neither what is due
# nor what comes later.
def test_delivery_goes_on_after_an_error_has_ended_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unloggable(Work):
        def flush(self, patience: float | None = None) -> Steps[None]:
            raise LookupError("refused")

        def fail(self, error: Exception) -> None:
            raise RuntimeError("the log is full")

    ended = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: ended.set())
    sender, due, later = Sender(perform), Work(), Work()
    with sender._changed:  # so that the thread finds both
        sender.submit(Unloggable(), delay=0.0)
        sender.submit(due, delay=0.0)
    assert ended.wait(10)
    assert due.delivered.wait(10)
    sender.submit(later)
    assert later.delivered.wait(10)


# An interrupt, such as Ctrl-C, during flush() loses nothing: the next flush delivers.
def test_an_interrupted_flush_can_be_repeated() -> None:
    def interrupt(steps: Steps[Any]) -> None:
        steps.close()
        raise KeyboardInterrupt

    sender, work = Sender(interrupt), Work()
    sender._closing = True  # no thread: the calling one delivers
    sender.submit(work)
    with pytest.raises(KeyboardInterrupt):
        sender.flush(1)
    sender._run = perform
    assert sender.flush(1)
    assert work.delivered.is_set()


# The outcomes of locally decided actions are reported however many a chain has had.
def test_a_long_chain_still_reports_outcomes(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_delivery, "_MAX_KNOWN_EVENTS", 2)
    config = configure(fake)
    with countersign.Chain("long", config=config) as chain:
        assert chain._session is not None
        for key in ("a", "b", "c"):
            put_event(chain, key)
            decision = countersign.PolicyDecision("allow", idempotency_key=key)
            assert chain.record_outcome_sync(decision, "succeeded")
        assert len(chain._session.events) == 2


@pytest.mark.parametrize("thread", ["none", "stopped"])
def test_work_that_comes_when_the_interpreter_ends_does_not_hold_it_up(thread: str) -> None:
    """A governed generator may be closed as late as that. Threads cannot be started any more, and
    one that was stopped there keeps what it has locked."""
    program = f"""
import threading
from countersign._sender import Sender

sender = Sender(print)

class Late:
    def __del__(self, write=print, sender=sender):
        sender.submit(self)
        write("submitted")

if {thread!r} == "stopped":
    stopped = threading.Thread(target=sender._changed.acquire)
    stopped.start()
    stopped.join()
left = Late()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("submitted\n", "")
