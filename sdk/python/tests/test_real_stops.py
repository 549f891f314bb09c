"""No action begins after a stop was answered: real servers, real clients, a slow network.

Two replicas on PostgreSQL, or one server on SQLite; fifty agents in five processes behind a
proxy that holds answers back for up to five seconds or loses them; servers that stand still,
wall clocks that are set, agents that fork. Again and again somebody stops everything in one of
the ways there are, and is answered. All of it happens on one machine, so that its monotonic
clock can tell what was first. That is the test's privilege: neither service nor client compares
clocks.

What is promised of the time between the answer to a stop and the request that lifts it:

- Nothing begins that the service allowed: by an answer, by a lease, or through a person.
- A client that is cut off (no answer reaches it, or three in a row come too late) and that knows
  of no kill switch or pause goes on under its fail modes, which the service cannot change any
  more: with the default ones it begins what is obviously safe, and nothing else. Such actions
  have the source ``offline_stub``; they are reported afterwards, and flagged. Where the fail
  modes say deny, nothing begins.
- Once an answer has told a client of the kill switch, none of its chains begins anything, and
  once of a pause, not the paused chain, cut off or not.

An action counts as let go when its client reads the clock and finds the permission good. A
process that the system does not run for more than 250 ms between that moment and the action's
first instruction is beyond what any client can notice: such cases are counted, and not held
against it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import racing
from conftest import STORES, _database
from server import Server
from slow_network import SlowNetwork

ROUNDS = {"sqlite": 8, "postgres": 12}
if os.environ.get("COUNTERSIGN_NIGHTLY") == "1":
    ROUNDS = {"sqlite": 100, "postgres": 200}

PROCESSES, TEAMS, AGENTS = 5, 5, 2  # fifty agents
MARGIN = 0.25
"""Seconds between the end of a lease and the answer to a stop."""
_DEADLINE = 60.0
_ENOUGH = 5  # actions of each process show that it acts

OPEN = {"rules": [], "fast_path": True}
# Without fast_path: with it, its author would leave what is obviously safe to the clients.
CLOSED = {"rules": [{"name": "closed", "when": "true", "decision": "deny", "reason": "Closed."}]}


class Fold:
    """One process of agents, and what it said."""

    def __init__(
        self, name: str, url: str, key: dict[str, Any], seed: int, strict: bool, patient: bool
    ) -> None:
        self.name = name
        self.key = key
        self._strict = strict
        self._process = subprocess.Popen(
            [sys.executable, racing.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.said: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._send(
            {
                "name": name,
                "url": url,
                "key": key["key"],
                "seed": seed,
                "fail_modes": {"safe": "deny", "default": "deny"} if strict else None,
                "teams": TEAMS,
                "agents": AGENTS,
                "patient": patient,
            }
        )

    def give(self, key: dict[str, Any]) -> None:
        self.key = key
        self._send({"key": key["key"]})

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # Forked children belong to the group, and hold the other ends of the pipes.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        self._reader.join(10)
        self._process.stdin.close()
        self._process.stdout.close()

    def show_threads(self) -> None:
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(1)

    def _send(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Only this thread appends.
            self.said.append({**json.loads(line), "fold": self.name, "strict": self._strict})

    def begun(self, since: float) -> int:
        """How many governed actions began since then."""
        count = 0
        for line in reversed(tuple(self.said)):
            assert line["what"] != "crashed", line["trace"]
            if line.get("at", since) < since - 10:
                break
            count += governed(line) and line["at"] > since
        return count


def governed(line: dict[str, Any]) -> bool:
    return bool(line["what"] == "begun" and line["source"] != "offline_stub")


def slow(line: dict[str, Any]) -> bool:
    """Whether the system kept an action's process from running when it had been let go."""
    return governed(line) and bool(line["at"] - line["let_go"] > MARGIN)


@dataclass
class Stop:
    """A stop, and when it was asked for, answered, and to be lifted."""

    kind: str
    fold: str | None
    """The agents that it concerns; None: all."""
    since: float
    """From here on nothing but this stop tells a client that it is stopped."""
    called: float = 0.0
    answered: float = 0.0
    lifted: float = 0.0
    resumed: float = 0.0
    """When everything that it had paused was resumed."""

    def holds_at(self, moment: float) -> bool:
        return self.answered < moment < self.lifted

    def concerns(self, line: dict[str, Any]) -> bool:
        return self.fold is None or line["fold"] == self.fold


class Race:
    def __init__(self, servers: list[Server], url: str, seed: int) -> None:
        self._servers = servers
        self.chance = random.Random(seed)
        self._url = url
        self.folds: list[Fold] = []
        self.stops: list[Stop] = []
        self.said: list[dict[str, Any]] = []
        self._keys = 0
        self._over = threading.Event()
        self._approving = threading.Thread(target=self._approve, daemon=True)

    def start(self, patient: bool) -> None:
        self.admin("PUT", "/v1/policies", OPEN)
        for n in range(PROCESSES):
            # One in five says that nothing goes on offline.
            self.folds.append(
                Fold(
                    f"fold-{n}",
                    self._url,
                    self._new_key(),
                    self.chance.randrange(1 << 30),
                    strict=n == 0,
                    patient=patient,
                )
            )
        self._approving.start()

    def end(self) -> None:
        self._over.set()
        while self.folds:
            fold = self.folds.pop()
            fold.end()
            self.said += fold.said
        self._approving.join(_DEADLINE)

    def lines(self) -> list[dict[str, Any]]:
        """What the agents have said so far."""
        return self.said + [line for fold in self.folds for line in tuple(fold.said)]

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        return self.chance.choice(self._servers).call(method, path, body)

    def _new_key(self) -> dict[str, Any]:
        self._keys += 1
        created = self.admin(
            "POST", "/v1/api-keys", {"name": f"agents-{self._keys}", "role": "agent"}
        )
        assert isinstance(created, dict)
        return created

    def _approve(self) -> None:
        """A person who agrees to everything."""
        chance = random.Random(1)
        while not self._over.wait(0.4):
            server = chance.choice(self._servers)
            for approval in server.get("/v1/approvals?status=pending&limit=100")["data"]:
                try:
                    server.post(f"/v1/approvals/{approval['id']}/approve", {})
                except Exception:
                    pass  # decided meanwhile, or cancelled with its chain

    # -- rounds ------------------------------------------------------------------------

    def round(self, number: int) -> None:
        kind = ["kill_switch", "policy", "pause", "key"][number % 4]
        fold = self.chance.choice(self.folds) if kind == "key" else None
        self.await_actions()
        stop = Stop(kind, fold.name if fold else None, since=time.monotonic())
        faults = [threading.Thread(target=fault, daemon=True) for fault in self._faults(number)]
        for fault in faults:
            fault.start()
        self._over.wait(self.chance.uniform(0, 0.5))
        stop.called = time.monotonic()
        self._activate(kind, fold)
        stop.answered = time.monotonic()
        self._over.wait(self.chance.uniform(0.3, 0.9))
        for fault in faults:
            fault.join()
        stop.lifted = time.monotonic()
        self.stops.append(stop)
        self._lift(kind, fold)
        stop.resumed = time.monotonic()

    def _activate(self, kind: str, fold: Fold | None) -> None:
        if kind == "kill_switch":
            self.admin("POST", "/v1/kill-switch/activate", {"reason": "drill"})
        elif kind == "policy":
            self.admin("PUT", "/v1/policies", CLOSED)
        elif kind == "pause":
            self.admin("PATCH", "/v1/organization", {"auto_pause": {"max_events": 1}})
        else:
            assert fold is not None
            self.admin("POST", f"/v1/api-keys/{fold.key['key_id']}/revoke")

    def _lift(self, kind: str, fold: Fold | None) -> None:
        if kind == "kill_switch":
            self.admin("POST", "/v1/kill-switch/deactivate")
        elif kind == "policy":
            self.admin("PUT", "/v1/policies", OPEN)
        elif kind == "pause":
            self.admin("PATCH", "/v1/organization", {"auto_pause": {"max_events": 10_000}})
            while paused := self.admin("GET", "/v1/chains?status=auto_paused&limit=200")["data"]:
                for chain in paused:
                    self.admin("POST", f"/v1/chains/{chain['id']}/resume")
        else:
            assert fold is not None
            fold.give(self._new_key())

    def _faults(self, number: int) -> list[Callable[[], None]]:
        """Which servers stand still, from when on and for how long: one before the stop, one
        in the middle of it, or none."""
        if number % 3 == 2:
            return []
        server = self.chance.choice(self._servers)
        begin = self.chance.uniform(0, 0.5) + 0.7 * (number % 3)
        last = self.chance.uniform(0.2, 1.5)

        def fault() -> None:
            self._over.wait(begin)
            server.freeze()
            self._over.wait(last)
            server.thaw()

        return [fault]

    def await_actions(self) -> None:
        """All is well again: the agents act."""
        lifted = self.stops[-1].lifted if self.stops else 0.0
        deadline = time.monotonic() + _DEADLINE
        for fold in self.folds:
            while fold.begun(lifted) < _ENOUGH:
                if time.monotonic() > deadline:
                    fold.show_threads()
                    raise AssertionError(f"the agents of {fold.name} do not act: {fold.said[-20:]}")
                self._over.wait(0.05)


# -- the verdict -----------------------------------------------------------------------


class Verdict:
    """What was found in what the agents said."""

    def __init__(self, race: Race) -> None:
        self.lines = race.lines()
        self.stops = race.stops
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self._decided: defaultdict[str, list[float]] = defaultdict(list)
        for line in self.lines:
            if line["what"] == "begun" and line["source"] == "backend_evaluation":
                self._decided[line["chain"]].append(line["at"])
        for line in self.lines:
            if line["what"] == "begun":
                self._judge(line)
            elif line["what"] != "told":
                self.counts[line["what"]] += 1
                # What was done offline is one when it arrives; a lease covers the rest.
                if line["what"] == "crashed" or line["what"] == "hung":
                    self.wrong.append(json.dumps(line))
                if line["what"] == "violation" and line["strict"]:
                    self.wrong.append(json.dumps(line))
        self._judge_told()

    def _judge(self, line: dict[str, Any]) -> None:
        source = line["source"]
        self.counts[source] += 1
        if source == "offline_stub" and (line["action"] != racing.SAFE or line["strict"]):
            self.wrong.append(f"offline: {line}")
        for stop in self.stops:
            if not stop.concerns(line) or not stop.holds_at(line["at"]):
                continue
            if stop.kind == "pause" and not self._counts(line["chain"], stop):
                continue
            late = line["at"] - stop.answered
            if source == "offline_stub":
                self.counts["offline after a stop"] += 1
            elif line["let_go"] <= stop.answered and slow(line):
                self.counts["not run in time"] += 1
            else:
                self.wrong.append(f"{late * 1000:.0f} ms after {stop.kind}: {line}")

    def _counts(self, chain: str, pause: Stop) -> bool:
        """Whether the chain had an event that counted when it was to be paused. Its first one
        pauses it not, and a chain that was resumed counts from there on."""
        resumed = max(
            (s.resumed for s in self.stops if s.kind == "pause" and s.resumed < pause.called),
            default=0.0,
        )
        return any(resumed < at < pause.called for at in self._decided[chain])

    def _judge_told(self) -> None:
        """A stop that a client was told of stays in force, whatever the fail modes say."""
        for stop in self.stops:
            whom = {"kill_switch": "team", "pause": "chain"}.get(stop.kind)
            if whom is None:
                continue
            # By process: what a forked child is told, its parent does not know. By client: an
            # agent that waits for an answer keeps its configuration when the team gets a new one.
            told: dict[tuple[int, int, str], float] = {}
            for line in self.lines:
                if (
                    line["what"] == "told"
                    and line["counts_for"] == whom
                    and line["asked"] > stop.since
                    and line["at"] < stop.lifted
                ):
                    client = line["process"], line["client"], line[whom]
                    told[client] = min(line["at"], told.get(client, line["at"]))
            self.counts["told of a stop"] += len(told)
            for line in self.lines:
                if line["what"] != "begun":
                    continue
                at = told.get((line["process"], line["client"], line[whom]))
                # Another thread of the team may have decided at the same moment.
                late = at is not None and at + MARGIN < line["at"] < stop.lifted
                if late and not slow(line):
                    self.wrong.append(f"told of {stop.kind} at {at}: {line}")


@contextmanager
def racing_agents(store: str, binary: str, folder: Path, patient: bool = False) -> Iterator[Race]:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    with ExitStack() as stack:
        for database in _database(store):
            servers = [
                Server(binary, folder / "data", database, "--failure-rate", "0")
                for _ in range(1 if database is None else 2)
            ]
            for server in servers:
                server.key = servers[0].key
                stack.callback(server.kill)
                server.start()
            network = stack.enter_context(SlowNetwork([s.port for s in servers], seed))
            race = Race(servers, network.url, seed)
            stack.callback(race.end)
            race.start(patient)
            yield race
            race.end()
            print(f"{network.held} answers were held back, {network.lost} lost")
            assert network.held
            # Patient clients are watched until the first fault, which may come before any loss.
            assert network.lost or patient
            stack.close()


@pytest.mark.parametrize("store", STORES)
def test_no_action_begins_after_a_stop_was_answered(
    store: str, binary: str, tmp_path: Path
) -> None:
    with racing_agents(store, binary, tmp_path) as race:
        for number in range(ROUNDS[store]):
            race.round(number)
        race.await_actions()
    verdict = Verdict(race)
    print(dict(verdict.counts))
    assert not verdict.wrong, "\n".join(verdict.wrong[:20])
    for source in ("backend_evaluation", "local_fast_path", "human_approval", "told of a stop"):
        assert verdict.counts[source] > ROUNDS[store], "the agents did hardly anything"


def test_clients_that_keep_to_no_lease_are_found_out(binary: str, tmp_path: Path) -> None:
    """Whether an answer is held back for long enough is a matter of chance: so it is tried until
    one was."""
    with racing_agents("sqlite", binary, tmp_path, patient=True) as race:
        for _ in range(12):
            race.round(0)
            race.await_actions()
            if any("ms after kill_switch" in found for found in Verdict(race).wrong):
                return
    pytest.fail("nothing was found")
