"""Agents that act all the time, in a process of their own, and say when each action began.

Run as a program by the tests of stops. The first line of standard input says how to act, and
whether to take every permission for good for ever, so that the tests have something to find; each
later line is another API key, with which all agents begin anew. Standard output has one line of
JSON for each thing that happened, written at once: a line is short enough to be written whole,
by forked children too.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from typing import Any

import countersign
from countersign import _fastpath, _transport
from countersign._client import transport_of
from countersign._clock import Clock, Moment

SAFE = "look_up"
ACTIONS: dict[str, tuple[float, dict[str, Any]]] = {
    SAFE: (0.65, {"n": 1}),
    "deploy": (0.3, {"n": 1}),
    "pay": (0.05, {"amount_usd": 6000}),  # a person must agree
}
"""What agents do: how often, and with what."""

_PACE = 0.15  # seconds between two actions of an agent, on average
_CHILD = 30  # seconds in which a forked child must be done


class WatchedClock(Clock):
    """This machine's clocks, of which the wall clock can be set. It remembers when each thread
    has read it last: the moment at which an action was let go."""

    def __init__(self, client: int) -> None:
        self.client = client  # number of the team's configuration that has this clock
        self._offset = 0.0
        self._read = threading.local()

    def wall(self) -> float:
        return time.time() + self._offset

    def set_wall(self, change: float) -> None:
        self._offset += change

    def now(self) -> Moment:
        moment = super().now()
        self._read.last = moment.monotonic
        return moment

    def last_read(self) -> float | None:
        """None in a thread that has not read it: it decided nothing but offline."""
        return getattr(self._read, "last", None)


class Team:
    """Agents with one configuration at a time: what one of them hears of a stop, all with the same
    one know."""

    def __init__(self, order: dict[str, Any], name: str) -> None:
        self._order = order
        self.name = name
        self._kept: list[countersign.ChainConfig] = []
        self.take(order["key"])

    def take(self, key: str) -> None:
        settings = {"fail_modes": self._order["fail_modes"]} if self._order["fail_modes"] else {}
        config = countersign.ChainConfig(key, backend_url=self._order["url"], **settings)
        clock = transport_of(config).clock = WatchedClock(len(self._kept))
        # Dropped, a configuration would first deliver what it still has.
        self._kept.append(config)
        self.current = config, clock  # set at once: agents read both meanwhile


class Agent:
    def __init__(self, team: Team, name: str, seed: int) -> None:
        self._team = team
        self._name = name
        self._chance = random.Random(seed)
        self._chains = 0

    def live(self) -> None:
        while True:
            current = self._team.current
            config, clock = current
            try:
                self._chains += 1
                chain = countersign.Chain("race", config=config).__enter__()
            except (
                countersign.PolicyError,
                countersign.APIError,
                countersign.BackendUnavailableError,
            ):
                time.sleep(_PACE)
                continue
            while self._team.current is current:
                time.sleep(self._chance.expovariate(1 / _PACE))
                self._act(chain, clock)
                self._stumble(chain, clock)

    def _act(self, chain: countersign.Chain, clock: WatchedClock, *names: str) -> None:
        names = names or tuple(ACTIONS)
        name = self._chance.choices(names, [ACTIONS[name][0] for name in names])[0]
        asked = time.monotonic()
        try:
            decision = chain.record_agent_action_sync("clerk", "tool_call", name, ACTIONS[name][1])
        except (countersign.APIError, countersign.BackendUnavailableError):
            return
        except (countersign.PolicyError, countersign.ChainAutoPausedError) as error:
            self._refused(error, asked, clock)
            return
        # Here the action begins.
        begun = time.monotonic()
        self._say(
            "begun",
            at=begun,
            let_go=clock.last_read(),
            source=decision.decision_source,
            action=name,
            client=clock.client,
        )

    def _refused(
        self,
        error: countersign.PolicyError | countersign.ChainAutoPausedError,
        asked: float,
        clock: WatchedClock,
    ) -> None:
        if isinstance(error, countersign.PolicyViolationError):
            self._say("violation", at=time.monotonic())
            return
        decision = error.decision
        if decision is None or decision.decision_source not in (
            "backend_evaluation",
            "human_approval",
        ):
            return  # found in the background, or known from before
        known = "chain" if decision.auto_paused else "team" if decision.kill_switch_active else ""
        if known:
            at = time.monotonic()
            self._say("told", at=at, asked=asked, counts_for=known, client=clock.client)
            time.sleep(2 * _PACE)  # stopped, all of them ask: that would be a test of load

    def _stumble(self, chain: countersign.Chain, clock: WatchedClock) -> None:
        fate = self._chance.random()
        if fate < 0.05:
            clock.set_wall(self._chance.choice([-1, 1]) * self._chance.uniform(0, 5))
        elif fate < 0.06:
            self._fork(chain, clock)

    def _fork(self, chain: countersign.Chain, clock: WatchedClock) -> None:
        child = os.fork()
        if child == 0:
            signal.alarm(_CHILD)
            try:
                for _ in range(2):
                    self._act(chain, clock, SAFE, "deploy")
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        self._say("forked" if status == 0 else "hung", at=time.monotonic())

    def _say(self, what: str, **facts: Any) -> None:
        line = {
            "what": what,
            "team": self._team.name,
            "chain": f"{self._name}/{self._chains}",
            "process": os.getpid(),
            **facts,
        }
        os.write(1, json.dumps(line).encode() + b"\n")


def _crashed(fault: threading.ExceptHookArgs) -> None:
    trace = "".join(traceback.format_exception(fault.exc_value))
    os.write(1, json.dumps({"what": "crashed", "trace": trace[-3000:]}).encode() + b"\n")


def main() -> None:
    threading.excepthook = _crashed
    logging.disable(logging.CRITICAL)
    faulthandler.register(signal.SIGUSR1)  # the test asks for it when nothing happens
    order = json.loads(sys.stdin.readline())
    if order["patient"]:
        for module in (_transport, _fastpath):
            module.is_fresh = lambda *given: True  # type: ignore[attr-defined]
    chance = random.Random(order["seed"])
    teams = [Team(order, f"{order['name']}-{n}") for n in range(order["teams"])]
    for team in teams:
        for n in range(order["agents"]):
            agent = Agent(team, f"{team.name}-{n}", chance.randrange(1 << 30))
            threading.Thread(target=agent.live, daemon=True).start()
    for line in sys.stdin:
        for team in teams:
            team.take(json.loads(line)["key"])


if __name__ == "__main__":
    main()
