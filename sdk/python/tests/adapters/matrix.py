"""Framework, call style and fault, as data: what every adapter promises, in one function.

A test of an adapter names its :class:`Framework`, makes the cases with :func:`cases_of` and
calls :func:`check` for each. The agent is scripted, and the service is real. With
``COUNTERSIGN_NIGHTLY=1`` every style meets every fault; else a few of them meet each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from office import Office

import countersign
from faults import FaultProxy

__all__ = ["FAULTS", "Body", "Case", "Framework", "Surfaced", "Work", "cases_of", "check", "replay"]

NIGHTLY = os.environ.get("COUNTERSIGN_NIGHTLY") == "1"
_DEADLINE = 120.0  # seconds
_LONG = ("kill switch midway", "process killed while waiting")  # a second or more each


class Surfaced(Exception):
    """Raised by a style whose framework answers a denial instead of raising it: the text."""


@dataclass(frozen=True)
class Fault:
    """What happens in a run, and what must come of it."""

    tools: tuple[str, ...]
    """Which tools the scripted agent calls, one after the other."""
    bodies: tuple[str, ...]
    """Which of them may run."""
    raised: type[Exception] | None = None
    asks: int = 0
    """How many approvals are asked for, and given."""


FAULTS: dict[str, Fault] = {
    "allow": Fault(("write_note",), ("write_note",)),
    "deny": Fault(("denied_tool", "write_note"), (), countersign.ActionDeniedError),
    "ask": Fault(("asked_tool",), ("asked_tool",), asks=1),
    "kill switch midway": Fault(
        ("switch_tool", "write_note"), ("switch_tool",), countersign.KillSwitchActiveError
    ),
    "service down": Fault(
        ("cut_tool", "write_note"), ("cut_tool",), countersign.BackendUnavailableError
    ),
    "process killed while waiting": Fault(("asked_tool",), ("asked_tool",), asks=1),
}


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    framework: str
    style: str
    fault: str

    @property
    def chain_name(self) -> str:
        return f"{self.framework} {self.style}: {self.fault}"[:200]

    def __str__(self) -> str:
        return f"{self.style}-{self.fault}"


@dataclass
class Body:
    """One run of a tool's body."""

    name: str
    recorded: int
    """How many records of the tool the service had when the body began."""


@dataclass
class Work:
    """The tools of a run, and the bodies that ran. A framework's tool calls :meth:`run` in its
    body, with the tool's name, and returns what it returns."""

    tools: tuple[str, ...]
    recorded: Callable[[str], int]
    effects: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    bodies: list[Body] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, name: str) -> str:
        body = Body(name, self.recorded(name))
        with self._lock:
            self.bodies.append(body)
        if effect := self.effects.get(name):
            effect()
        return f"{name}: done"

    def body(self, name: str) -> Callable[..., str]:
        """The body of a tool, whatever its arguments."""
        return lambda *_, **__: self.run(name)


@dataclass(frozen=True)
class Framework:
    """One framework: how an agent of it is governed, and how it is called."""

    name: str
    govern: Callable[[Work, str], Any]
    """A governed agent that calls the work's tools in turn; the second is the chain's name."""
    styles: Mapping[str, Callable[[Any], Any]]
    quick: Sequence[str]
    """The styles from which those are taken that meet the faults that take long."""
    program: str = ""
    """A file beside this one that runs ``replay(framework, …)``, for a process that is killed."""
    resumes: bool = False
    """Whether a run goes on in another process, by the framework's own means."""
    outcome_when_down: bool = False
    """Whether a body's outcome gets to the service though it was down when the body ended."""


def cases_of(framework: Framework) -> list[Case]:
    """The cases to run: all of them at night."""
    styles, cases = list(framework.styles), []
    for at, fault in enumerate(FAULTS):
        killed = fault == "process killed while waiting"
        if killed and not (framework.program and (framework.resumes or NIGHTLY)):
            continue
        if NIGHTLY:
            chosen = styles
        else:
            chosen = [framework.quick[at % len(framework.quick)]]
            if fault not in _LONG:
                chosen += [s for n, s in enumerate(styles) if n % 7 == at and s not in chosen]
        cases += [Case(framework.name, style, fault) for style in chosen]
    return cases


def check(framework: Framework, case: Case, office: Office) -> None:
    """Run one case, and hold what came of it against what is promised."""
    fault = FAULTS[case.fault]
    name = f"{case.chain_name} {os.urandom(4).hex()}"
    if case.fault == "process killed while waiting":
        _killed(framework, case, office, name)
        return
    with FaultProxy(office.server.port) as network, _switch_off_after(office, case):
        countersign.init(api_key=office.key, backend_url=network.url)

        def down() -> None:
            network.mode = "reset"

        effects = {"switch_tool": lambda: office.kill_switch(active=True), "cut_tool": down}
        work = Work(fault.tools, lambda tool: len(_records(office, name, tool)), effects)
        agent = framework.govern(work, name)
        raised = _ended(office, lambda: framework.styles[case.style](agent), fault.asks)
        network.mode = "pass"
        # What the client could not deliver meanwhile.
        assert any(countersign.flush(10) for _ in range(6))
    _surfaced(raised, fault)
    _promises(framework, case, office, name, work.bodies)


def _ended(office: Office, run: Callable[[], Any], asks: int) -> BaseException | None:
    """What a run raised in the end. The approvals that it asks for are given."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        if asks:
            office.decide("approve", asks)
        return running.exception(_DEADLINE)


def _surfaced(raised: BaseException | None, fault: Fault) -> None:
    if fault.raised is None:
        assert raised is None, raised
    elif not isinstance(raised, Surfaced):
        assert isinstance(raised, fault.raised), repr(raised)


def _promises(
    framework: Framework, case: Case, office: Office, name: str, bodies: list[Body]
) -> None:
    fault = FAULTS[case.fault]
    # No body runs that may not, and each once.
    assert [body.name for body in bodies] == list(fault.bodies)
    # It was recorded before its body began.
    assert all(body.recorded == 1 for body in bodies), bodies
    # It is recorded once, and how it ended.
    for body in bodies:
        records = _records(office, name, body.name)
        assert len(records) == 1, records
        outcome = (records[0].get("outcome") or {}).get("outcome")
        if case.fault == "service down" and not framework.outcome_when_down:
            assert outcome in (None, "unknown", "succeeded"), outcome
        else:
            assert outcome == "succeeded", (body.name, outcome)
    # What was refused is recorded as such, unless nobody could be asked.
    for tool in fault.tools:
        if tool not in fault.bodies and tool.startswith("denied"):
            assert [r["status"] for r in _records(office, name, tool)] == ["denied"]


def _records(office: Office, name: str, tool: str) -> list[dict[str, Any]]:
    return [
        event
        for chain in office.chains(name)
        for event in office.server.events(str(chain["id"]))
        if event["action_type"] == "tool_call" and event["action_name"] == tool
    ]


@contextmanager
def _switch_off_after(office: Office, case: Case) -> Iterator[None]:
    try:
        yield
    finally:
        if case.fault == "kill switch midway":
            office.kill_switch(active=False)
        office.configure()


# -- a process that is killed ------------------------------------------------------------


def _killed(framework: Framework, case: Case, office: Office, name: str) -> None:
    """A real process is killed while its call waits for an approval, and started again."""
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"countersign-matrix-{os.urandom(6).hex()}"
    folder.mkdir()
    command = [sys.executable, framework.program, case.style, name, str(folder)]
    environment = {
        **os.environ,
        "COUNTERSIGN_API_KEY": office.key,
        "COUNTERSIGN_BACKEND_URL": office.server.url,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=environment, cwd=Path(__file__).parent)

    first = start()
    try:
        asked = office.waiting(1)
    finally:
        # Also when it is too slow: it would ask during the next case.
        first.kill()
    first.wait(_DEADLINE)
    ran = folder / "bodies"
    assert not ran.exists()
    second = start()
    try:
        if framework.resumes:
            # The first approval is still the one that releases it.
            office.decide("approve", 1)
        else:
            waiting = office.waiting(2)
            assert len(waiting) == 2, waiting
            office.decide("approve", 2)
        assert second.wait(_DEADLINE) == 0
    finally:
        second.kill()
    assert ran.read_text().split() == ["asked_tool"]
    records = _records(office, name, "asked_tool")
    assert len(records) == (1 if framework.resumes else 2), records
    assert records[-1]["outcome"]["outcome"] == "succeeded"
    if framework.resumes:
        assert [c["status"] for c in office.chains(name)] == ["completed"]
        assert records[0]["approval_id"] == asked[0]["id"]


def replay(framework: Framework) -> None:
    """The program that is killed: ``PROGRAM STYLE CHAIN_NAME FOLDER``. It runs the agent, which
    keeps its state in the folder, and notes the bodies that ran there."""
    style, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    countersign.init()

    def note(tool: str) -> Callable[[], object]:
        def append() -> None:
            with (folder / "bodies").open("a") as file:
                file.write(tool + "\n")

        return append

    tools = FAULTS["process killed while waiting"].tools
    work = Work(tools, lambda _: 0, {tool: note(tool) for tool in tools})
    os.environ["COUNTERSIGN_MATRIX_FOLDER"] = str(folder)
    framework.styles[style](framework.govern(work, name))
