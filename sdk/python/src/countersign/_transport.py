"""Calls to the service with retries and deadlines, and the state of the organization."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from countersign._answers import is_retryable, read, retry_after
from countersign._clients import Clients, Unreachable
from countersign._clock import Clock, Moment, is_fresh
from countersign._fork import reset_in_child
from countersign._redact import encode
from countersign._secret import SecretStr
from countersign._semaphore import Semaphore
from countersign._sender import Sender
from countersign._steps import JITTER, Pause, Reply, Send, Steps, run, run_async
from countersign._version import __version__
from countersign.exceptions import APIError

if TYPE_CHECKING:
    import httpx

__all__ = ["DEFAULT_FAIL_MODES", "Pausable", "Transport", "Unreachable"]

T = TypeVar("T")

_ATTEMPTS = 4
_FIRST_BACKOFF = 0.1
_AFTER_SILENCE = 1.0
"""Seconds without further requests after one has timed out."""

_CONCURRENT_RETRIES = 16

DEFAULT_FAIL_MODES: Mapping[str, str] = {"safe": "allow", "default": "deny"}


class Pausable(Protocol):
    """A chain that can be paused."""

    def note_pause(self, chain: str, reason: str | None) -> None: ...


class Transport:
    """The connection of one configuration to the service, and the state of the organization as the
    answers report it: a kill switch that one chain sees applies to all of them."""

    def __init__(
        self, url: str, key: SecretStr, timeout: float, mock: httpx.MockTransport | None
    ) -> None:
        # Holds no reference to the configuration: collecting that closes the connections.
        self.clients = Clients(url, key, __version__, mock)
        self.timeout = timeout
        self.clock = Clock()
        self.act_number = -1
        """The highest number of an audit log entry that an answer has reported."""
        self.kill_switch_active = False
        self.kill_switch_reason: str | None = None
        self.policy_version: str | None = None
        self.fail_modes: Mapping[str, str] = DEFAULT_FAIL_MODES
        self.offline = False
        self._silent_until = 0.0
        # Monotonic seconds: when an answer last reported the active kill switch.
        self._switch_seen_at = -math.inf
        self._reported: set[str] = set()  # limits that were logged as looser
        # Guards what answers report: act_number to fail_modes, _switch_seen_at and _reported.
        self._lock = threading.Lock()
        self.retry_slots = Semaphore(_CONCURRENT_RETRIES)
        """Limits concurrent requests that repeat a late answer or confirm an approval. Too many at
        once would keep each other from being answered within a second."""
        # No WeakSet: other threads open chains while one goes through it.
        self._chains: weakref.WeakKeyDictionary[Pausable, None] = weakref.WeakKeyDictionary()
        reset_in_child(self)
        self.sender = Sender(self.run)

    def reset_after_fork(self) -> None:
        """Replace the locks, which another thread of the parent may have held."""
        self._lock = threading.Lock()
        self.retry_slots = Semaphore(_CONCURRENT_RETRIES)

    def add_chain(self, chain: Pausable) -> None:
        """Have a chain of this configuration learn what answers about approvals say of it."""
        self._chains[chain] = None

    def note_pause(self, chain: str, reason: str | None) -> None:
        """Pause a chain, because an answer about an approval says so."""
        for known in self._chains.keyrefs():
            if (delivery := known()) is not None:
                delivery.note_pause(chain, reason)

    def not_yet_reported(self, names: Iterable[str]) -> list[str]:
        """Return the names that no earlier call has returned."""
        with self._lock:
            new = [name for name in names if name not in self._reported]
            self._reported.update(new)
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
        reading: bool = False,
    ) -> Steps[dict[str, Any]]:
        """:meth:`ask` without the time at which the request was sent."""
        answer, _ = yield from self.ask(
            method,
            path,
            body,
            headers=headers,
            wait=wait,
            authenticated=authenticated,
            reading=reading,
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
        reading: bool = False,
    ) -> Steps[tuple[dict[str, Any], Moment]]:
        """Make one call, with retries within one deadline. Returns the answer, and when the
        successful attempt was sent.

        ``wait`` is how many seconds the service may hold the request (long polling). ``body`` may
        be encoded already. ``reading`` is set for a request that is about no action. Raises
        ``APIError`` if the service answers with an error, and ``Unreachable`` if it does not
        answer.
        """
        clock = self.clock
        if clock.monotonic() < self._silent_until:
            silent = Unreachable("it did not answer a moment ago", slow=True, sent=False)
            silent.address = self.clients.address
            raise silent
        content = body if body is None or isinstance(body, bytes) else encode(body)
        deadline = clock.monotonic() + self.timeout + wait
        arrived = False  # whether any attempt may have taken effect
        attempt = 0
        while True:
            attempt += 1
            pause = _FIRST_BACKOFF * 2 ** min(attempt - 1, 10) * JITTER.uniform(0.5, 1.0)
            told = 0.0  # seconds of the Retry-After header
            sent = clock.now()
            fault: Unreachable | APIError
            try:
                reply: Reply = yield Send(
                    method, path, deadline - sent.monotonic, content, headers or {}, authenticated
                )
                told = retry_after(reply, clock.wall())
                answer = read(reply)
                self._mark_online()
                return answer, sent
            except Unreachable as error:
                fault = error
                arrived = arrived or error.sent
                # While the service is known to be unreachable, one attempt is enough.
                last = self.offline or attempt >= _ATTEMPTS
            except APIError as error:
                fault = error
                self._mark_online()
                if not is_retryable(error):
                    raise
                last = attempt >= _ATTEMPTS and not told
            pause = told or pause
            if last or clock.monotonic() + pause >= deadline:
                break
            yield Pause(pause)
        if isinstance(fault, Unreachable):
            # A connection that is idle in a long poll may be lost on its own, and a large list may
            # take too long. Neither says that the service cannot be asked about an action.
            if not (fault.sent and (wait or reading)):
                self._mark_offline(fault)
            fault.sent = arrived
            fault.address = self.clients.address
        raise fault

    def _mark_online(self) -> None:
        """Note that the service has answered, and deliver the queue if it was offline."""
        was_offline, self.offline = self.offline, False
        if was_offline:
            self.sender.retry_now()

    def _mark_offline(self, fault: Unreachable) -> None:
        self.offline = True
        if fault.slow:
            self._silent_until = self.clock.monotonic() + _AFTER_SILENCE

    def is_fresh(self, sent: Moment) -> bool:
        """Whether an allow whose request was sent then is still valid."""
        return is_fresh(sent, self.clock.now())

    def learn(self, answer: Mapping[str, Any], sent: Moment) -> bool:
        """Update the organization's state from an answer. Answers can arrive out of order: one with
        an older ``act_number`` is ignored, and the result is False."""
        with self._lock:
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
        """Update the kill switch. The lock is held.

        An active switch counts at once. It is lifted by an answer with a newer ``act_number``, or
        by the answer to a request that was sent after the switch was known.
        """
        active = answer.get("kill_switch_active")
        if active is True:
            self.kill_switch_active = True
            self.kill_switch_reason = answer.get("pause_reason") or self.kill_switch_reason
            self._switch_seen_at = self.clock.monotonic()
        elif active is False and (newer or sent.monotonic > self._switch_seen_at):
            self.kill_switch_active = False
            self.kill_switch_reason = None

    def close(self) -> None:
        """Deliver the queue, and close the connections of sync code."""
        self.sender.close(self.timeout)
        self.clients.close()
