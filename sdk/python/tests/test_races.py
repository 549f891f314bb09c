"""No action begins after a stop was answered: many clients, slow answers, clocks that jump.

Everything here happens in simulated time and in one thread. The service is the fake one, and
answers the kill switch as the real one does: 1,250 ms after it is in force.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections.abc import Generator
from typing import Any

import pytest

import countersign
from countersign import _clock
from countersign._action import Action
from countersign._client import transport_of
from countersign._clients import Unreachable
from countersign._clock import Clock
from countersign._session import Session
from countersign._steps import Pause, Reply, Send, Steps
from countersign.testing import FakeService, RecordedCall, example_api_key
from countersign.testing._wire import Answer, Hold

ANSWERED_AFTER = 1.25
Process = Generator[float, None, None]
"""Something that goes on in the world: it yields the seconds that it waits."""


class World:
    """Time, as nobody's clock shows it, and what happens in it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Process]] = []
        self._order = itertools.count()

    def start(self, process: Process, at: float = 0.0) -> None:
        heapq.heappush(self._due, (self.now + at, next(self._order), process))

    def run(self) -> None:
        while self._due:
            self.now, _, process = heapq.heappop(self._due)
            try:
                self.start(process, next(process))
            except StopIteration:
                pass


class LocalClock(Clock):
    """One machine's clocks: both began at some time of their own."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._monotonic = chance.uniform(0, 1e6)
        self._wall = chance.uniform(0, 2e9)
        self._process = 1

    def monotonic(self) -> float:
        return self._monotonic + self._world.now

    def wall(self) -> float:
        return self._wall + self._world.now

    def process(self) -> int:
        return self._process

    def slept(self, seconds: float) -> None:
        """The machine sleeps now: the monotonic clock will not have seen it."""
        self._monotonic -= seconds

    def set_wall(self, seconds: float) -> None:
        self._wall += seconds

    def fork(self) -> None:
        self._process += 1


class Stops:
    """When the organization was stopped, as whoever stopped it was told."""

    def __init__(self, world: World, service: FakeService) -> None:
        self._world = world
        self._service = service
        self._since: float | None = None
        self.begun = 0

    def switch(self, chance: random.Random) -> Process:
        for _ in range(3):
            yield chance.uniform(1, 8)
            self._service.activate_kill_switch("fire")
            yield ANSWERED_AFTER
            self._since = self._world.now
            yield chance.uniform(1, 8)
            self._since = None
            self._service.deactivate_kill_switch()

    def action_begins(self) -> None:
        assert self._since is None, f"begun {self._world.now - self._since:.3f} s after the stop"
        self.begun += 1


class NoSender:
    """Nothing is sent in the background: the clients do it themselves, now and then."""

    def submit(self, work: object, delay: float = 0) -> None:
        pass

    def retry_now(self) -> None:
        pass

    def close(self, timeout: float) -> None:
        pass


class Client:
    """An agent on a machine of its own, with everything that can go wrong there."""

    def __init__(
        self, world: World, service: FakeService, stops: Stops, chance: random.Random, slow: float
    ) -> None:
        self._world, self._service, self._stops, self._chance = world, service, stops, chance
        self._slow = slow
        self._config = countersign.ChainConfig(
            example_api_key(), fail_modes={"default": "deny"}, transport=None
        )
        self._clock = LocalClock(world, chance)
        # A clock that is set back by just as much as the machine slept cannot be found out.
        self._fault = chance.choice(["none", "sleep", "jump", "fork"])
        transport = transport_of(self._config)
        transport.clock = self._clock
        transport.sender = NoSender()  # type: ignore[assignment]
        self._transport = transport

    def live(self) -> Process:
        session = Session(self._config, {"name": "race"})
        try:
            yield from self._perform(session.open())
        except countersign.BackendUnavailableError:
            return
        for n in range(40):
            yield self._chance.expovariate(4)
            yield from self._stumble()
            name = self._chance.choice(["look", "look", "look", "pay", "approve_me"])
            action = Action(
                self._config._sanitizer, "clerk", "tool_call", name, {"n": n}, None, None, None
            )
            if name == "approve_me":
                self._service.script("require_approval")
            yield from self._act(session, action)

    def _act(self, session: Session, action: Action) -> Process:
        decision = session.decide_locally(action)
        try:
            if decision is None:
                yield from self._perform(session.record(action))
        except (
            countersign.PolicyError,
            countersign.BackendUnavailableError,
            countersign.APIError,
        ):
            return
        self._stops.action_begins()

    def _stumble(self) -> Process:
        if self._chance.random() > 0.3:
            return
        if self._fault == "sleep":
            seconds = self._chance.uniform(0, 5)
            self._clock.slept(seconds)
            yield seconds
        elif self._fault == "jump":
            self._clock.set_wall(self._chance.choice([-1, 1]) * self._chance.uniform(0, 5))
        elif self._fault == "fork":
            self._clock.fork()

    def _perform(self, steps: Steps[Any]) -> Process:
        """Perform a library's steps in simulated time."""
        try:
            effect = next(steps)
            while True:
                if isinstance(effect, Send):
                    try:
                        reply = yield from self._send(effect)
                    except Unreachable as fault:
                        effect = steps.throw(fault)
                    else:
                        effect = steps.send(reply)
                elif isinstance(effect, Pause):
                    yield effect.seconds
                    effect = steps.send(None)
                else:
                    raise AssertionError("nobody else uses this client")
        except StopIteration:
            return

    def _send(self, send: Send) -> Generator[float, None, Reply]:
        there, back = (self._chance.uniform(0, self._slow) for _ in range(2))
        if there > send.timeout:
            yield send.timeout
            raise Unreachable("lost", slow=True)
        yield there
        answer = self._service._receive(
            RecordedCall(
                send.method,
                send.path,
                json.loads(send.body) if send.body else None,
                send.headers,
            )
        )
        if isinstance(answer, Hold):
            back += self._chance.uniform(0, 3)
            for approval in self._service.approvals:
                if send.path.startswith(f"/v1/approvals/{approval['id']}"):
                    self._service.approve(approval["id"])
            yield back
            back = self._chance.uniform(0, self._slow)
            answer = answer.then()
        assert isinstance(answer, Answer)
        if back > send.timeout - there:
            yield max(send.timeout - there, 0)
            raise Unreachable("lost", slow=True)
        yield back
        # Between the answer's arrival and its being looked at anything can happen too.
        yield from self._stumble()
        return Reply(answer.status, {}, json.dumps(answer.body).encode())


def simulate(seed: int, slow: float) -> int:
    """How many actions were begun. Raises when one was begun after a stop was answered."""
    chance = random.Random(seed)
    world = World()
    with FakeService(fast_path=True) as service:
        stops = Stops(world, service)
        world.start(stops.switch(chance))
        for _ in range(12):
            client = Client(world, service, stops, random.Random(chance.random()), slow)
            world.start(client.live(), chance.uniform(0, 2))
        world.run()
    return stops.begun


@pytest.mark.parametrize("slow", [0.05, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(8))
def test_no_action_begins_after_a_stop_was_answered(seed: int, slow: float) -> None:
    begun = simulate(seed, slow)
    assert slow > 1 or begun > 30, "the clients did hardly anything"


@pytest.mark.parametrize(
    "broken",
    [
        lambda sent, now, seconds=1.0: True,
        lambda sent, now, seconds=1.0: 0 <= now.monotonic - sent.monotonic < seconds,
        lambda sent, now, seconds=1.0: now.monotonic - sent.monotonic < 3 * seconds,
    ],
    ids=["for-ever", "one-clock", "three-seconds"],
)
def test_the_simulation_finds_what_it_looks_for(
    monkeypatch: pytest.MonkeyPatch, broken: Any
) -> None:
    for module in ("_transport", "_fastpath"):
        monkeypatch.setattr(f"countersign.{module}.is_fresh", broken)
    assert broken is not _clock.is_fresh

    def found(seed: int, slow: float) -> bool:
        try:
            simulate(seed, slow)
        except AssertionError:
            return True
        return False

    assert any(found(seed, slow) for seed in range(8) for slow in (0.5, 1.0, 5.0))
