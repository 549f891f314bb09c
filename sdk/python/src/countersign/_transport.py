"""Calls to the service: retries, deadlines, and what an answer means."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from countersign._answers import may_pass, read, retry_after
from countersign._clients import Clients, Unreachable
from countersign._clock import Clock, Moment, is_fresh
from countersign._redact import encode
from countersign._secret import SecretStr
from countersign._sender import Sender
from countersign._steps import JITTER, Pause, Reply, Send, Steps, run, run_async
from countersign._turns import Turns
from countersign._version import __version__
from countersign.exceptions import APIError

if TYPE_CHECKING:
    import httpx

__all__ = ["DEFAULT_FAIL_MODES", "Pausable", "Transport", "Unreachable"]

T = TypeVar("T")

_ATTEMPTS = 4
_FIRST_BACKOFF = 0.1
_AFTER_SILENCE = 1.0
"""Seconds for which a service that let a call time out is not asked again."""

_AGAIN_AT_ONCE = 16

DEFAULT_FAIL_MODES: Mapping[str, str] = {"safe": "allow", "default": "deny"}


class Pausable(Protocol):
    """A chain that can be told of a pause."""

    def told_of_pause(self, chain: str, reason: str | None) -> None: ...


class Transport:
    """One configuration's way to the service, and what the answers said about the
    organization: a kill switch seen on one chain counts for all of them."""

    def __init__(
        self, url: str, key: SecretStr, timeout: float, mock: httpx.MockTransport | None
    ) -> None:
        # Nothing here refers to the configuration: its end is what closes the connections.
        self.clients = Clients(url, key, __version__, mock)
        self.timeout = timeout
        self.clock = Clock()
        self.act_number = -1
        """The newest number of the organization's audit log that an answer carried."""
        self.kill_switch_active = False
        self.kill_switch_reason: str | None = None
        self.policy_version: str | None = None
        self.fail_modes: Mapping[str, str] = DEFAULT_FAIL_MODES
        self.offline = False
        self._silent_until = 0.0
        self._switched = -math.inf  # when an answer last told of the kill switch
        self._learning = threading.Lock()
        self._told: set[str] = set()  # the limits that were logged as looser; the lock guards it
        self.again = Turns(_AGAIN_AT_ONCE)
        """For requests whose answers came too late, or follow a wait. Five hundred of them at
        once would keep each other from being answered within a second."""
        self.deliveries: weakref.WeakSet[Pausable] = weakref.WeakSet()
        """The chains under this configuration: an approval's answer may tell of a pause."""
        _every.add(self)
        self.sender = Sender(self.run)

    def first_told(self, names: Iterable[str]) -> list[str]:
        """Those of the names that were not asked about before."""
        with self._learning:
            new = [name for name in names if name not in self._told]
            self._told.update(new)
        return new

    def run(self, steps: Steps[T]) -> T:
        """Perform steps by blocking."""
        return run(steps, self.clients.send)

    async def run_async(self, steps: Steps[T]) -> T:
        """Perform steps on the running event loop."""
        return await run_async(steps, self.clients.send_async)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        wait: float = 0.0,
        authenticated: bool = True,
    ) -> Steps[dict[str, Any]]:
        """:meth:`ask` for those who do not need to know when the request was sent."""
        answer, _ = yield from self.ask(
            method, path, body, headers=headers, wait=wait, authenticated=authenticated
        )
        return answer

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        wait: float = 0.0,
        authenticated: bool = True,
    ) -> Steps[tuple[dict[str, Any], Moment]]:
        """Make one call within one deadline, however many attempts that takes. Returns the
        answer and the moment at which the attempt that brought it was sent.

        ``wait`` is how long the service was asked to hold its answer back. ``body`` may be
        encoded already. Raises ``APIError`` for a refusal and ``Unreachable`` when no
        attempt brought an answer of the service.
        """
        clock = self.clock
        if clock.monotonic() < self._silent_until:
            silent = Unreachable("it did not answer a moment ago", slow=True, sent=False)
            silent.address = self.clients.address
            raise silent
        content = body if body is None or isinstance(body, bytes) else encode(body)
        deadline = clock.monotonic() + self.timeout + wait
        arrived = False  # whether any attempt may have had its effect
        attempt = 0
        while True:
            attempt += 1
            pause = _FIRST_BACKOFF * 2 ** min(attempt - 1, 10) * JITTER.uniform(0.5, 1.0)
            told = 0.0  # how long the service asked to be left alone
            sent = clock.now()
            fault: Unreachable | APIError
            try:
                reply: Reply = yield Send(
                    method, path, deadline - sent.monotonic, content, headers or {}, authenticated
                )
                told = retry_after(reply)
                answer = read(reply)
                self._heard()
                return answer, sent
            except Unreachable as error:
                fault = error
                arrived = arrived or error.sent
                # Known to be away, the service is asked once: an agent shall not wait again.
                last = self.offline or attempt >= _ATTEMPTS
            except APIError as error:
                fault = error
                self._heard()
                if not may_pass(error):
                    raise
                last = attempt >= _ATTEMPTS and not told
            pause = told or pause
            if last or clock.monotonic() + pause >= deadline:
                break
            yield Pause(pause)
        if isinstance(fault, Unreachable):
            self._note_absence(fault)
            fault.sent = arrived
            fault.address = self.clients.address
        raise fault

    def _heard(self) -> None:
        """Some answer came: the service is there."""
        was_offline, self.offline = self.offline, False
        if was_offline:
            self.sender.hurry()

    def _note_absence(self, fault: Unreachable) -> None:
        self.offline = True
        if fault.slow:
            self._silent_until = self.clock.monotonic() + _AFTER_SILENCE

    def is_fresh(self, sent: Moment) -> bool:
        """Whether an allow that was asked for then can still be used."""
        return is_fresh(sent, self.clock.now())

    def learn(self, answer: Mapping[str, Any], sent: Moment) -> bool:
        """Take what a decision, or a chain, says about the organization. Answers overtake each
        other: one with an older act number is not believed, and the result is false."""
        with self._learning:
            number = answer.get("act_number")
            newer = False
            if isinstance(number, int):
                if number < self.act_number:
                    return False
                newer = number > self.act_number
                self.act_number = number
            self._learn_switch(answer, sent, newer)
            if isinstance(answer.get("policy_version"), str):
                self.policy_version = answer["policy_version"]
            if isinstance(answer.get("fail_modes"), Mapping):
                self.fail_modes = dict(answer["fail_modes"])
        return True

    def _learn_switch(self, answer: Mapping[str, Any], sent: Moment, newer: bool) -> None:
        """The lock is held. What stops counts at once. It is lifted by the answer that tells of a
        newer act, or by one to a request that was sent when the stop was known."""
        active = answer.get("kill_switch_active")
        if active is True:
            self.kill_switch_active = True
            self.kill_switch_reason = answer.get("pause_reason") or self.kill_switch_reason
            self._switched = self.clock.monotonic()
        elif active is False and (newer or sent.monotonic > self._switched):
            self.kill_switch_active = False
            self.kill_switch_reason = None

    def close(self) -> None:
        """Deliver what can still be delivered, and close the threads' connections."""
        self.sender.close(self.timeout)
        self.clients.close()


_every: weakref.WeakSet[Transport] = weakref.WeakSet()


def _after_fork() -> None:
    # Other threads of the parent may have held the locks.
    for transport in tuple(_every):
        transport._learning = threading.Lock()
        transport.again = Turns(_AGAIN_AT_ONCE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
