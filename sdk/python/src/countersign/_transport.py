"""Calls to the service: retries, deadlines, and what an answer means."""

from __future__ import annotations

import json
import random
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from countersign._clients import Clients, Unreachable
from countersign._config import ChainConfig, current_config
from countersign._redact import encode
from countersign._secret import SecretStr
from countersign._sender import Sender
from countersign._steps import Pause, Reply, Send, Steps, run, run_async
from countersign._version import __version__
from countersign.exceptions import APIError

__all__ = ["Transport", "Unreachable", "aclose", "close", "flush", "transport_of"]

T = TypeVar("T")

_ATTEMPTS = 4
_FIRST_BACKOFF = 0.1
_TRY_AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504))
_AFTER_SILENCE = 1.0
"""Seconds for which a service that let a call time out is not asked again."""

DEFAULT_FAIL_MODES: Mapping[str, str] = {
    "financial": "deny",
    "external_communication": "deny",
    "data_modification": "deny",
    "default": "allow",
}


class Transport:
    """One configuration's way to the service, and what the answers said about the
    organization: a kill switch seen on one chain counts for all of them."""

    def __init__(self, config: ChainConfig) -> None:
        # Nothing here refers to the configuration: its end is what closes the connections.
        self.clients = Clients(
            config.backend_url, cast("SecretStr", config.api_key), __version__, config.transport
        )
        self.timeout = config.backend_timeout_seconds
        self.kill_switch_active = False
        self.policy_version: str | None = None
        self.fail_modes: Mapping[str, str] = DEFAULT_FAIL_MODES
        self.offline = False
        self._silent_until = 0.0
        self.sender = Sender(self.run)

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
        """Make one call within one deadline, however many attempts that takes.

        ``wait`` is how long the service was asked to hold its answer back. ``body`` may be
        encoded already. Raises ``APIError`` for a refusal and ``Unreachable`` when no
        attempt brought a usable answer.
        """
        if time.monotonic() < self._silent_until:
            raise Unreachable("the service did not answer a moment ago", slow=True, sent=False)
        content = body if body is None or isinstance(body, bytes) else encode(body)
        deadline = time.monotonic() + self.timeout + wait
        sent = False
        for attempt in range(_ATTEMPTS):
            send = Send(
                method, path, deadline - time.monotonic(), content, headers or {}, authenticated
            )
            pause = _FIRST_BACKOFF * 2**attempt * random.uniform(0.5, 1.0)
            try:
                reply: Reply = yield send
                if reply.status not in _TRY_AGAIN:
                    return self._answered(reply)
                fault = Unreachable(f"the service answered {reply.status}")
                pause = max(pause, _retry_after(reply))
            except Unreachable as error:
                fault = error
            sent = sent or fault.sent
            # Known to be away, the service is asked once: an agent shall not wait again.
            last = attempt == _ATTEMPTS - 1 or self.offline
            if last or time.monotonic() + pause >= deadline:
                break
            yield Pause(pause)
        self._note_absence(fault)
        fault.sent = sent
        raise fault

    def _answered(self, reply: Reply) -> dict[str, Any]:
        answer = _read(reply)
        was_offline, self.offline = self.offline, False
        if was_offline:
            self.sender.hurry()
        if isinstance(answer, APIError):
            raise answer
        return answer

    def _note_absence(self, fault: Unreachable) -> None:
        self.offline = True
        if fault.slow:
            self._silent_until = time.monotonic() + _AFTER_SILENCE

    def learn(self, answer: Mapping[str, Any]) -> None:
        """Take what a decision, or a chain, says about the organization."""
        if isinstance(answer.get("kill_switch_active"), bool):
            self.kill_switch_active = answer["kill_switch_active"]
        if isinstance(answer.get("policy_version"), str):
            self.policy_version = answer["policy_version"]
        if isinstance(answer.get("fail_modes"), Mapping):
            self.fail_modes = dict(answer["fail_modes"])

    def close(self) -> None:
        """Deliver what can still be delivered, and close the threads' connections."""
        self.sender.close(self.timeout)
        self.clients.close()


def flush(timeout: float = 5.0, *, config: ChainConfig | None = None) -> bool:
    """Deliver what was decided in this process and has not reached the service yet: chains that
    were opened or completed offline, and their events. Returns whether nothing is left."""
    return transport_of(current_config(config)).sender.flush(timeout)


def close(*, config: ChainConfig | None = None) -> None:
    """Flush, and close the connections that sync code uses. It happens by itself at exit."""
    transport_of(current_config(config)).close()


async def aclose(*, config: ChainConfig | None = None) -> None:
    """Close the connections of the running event loop. ``asyncio.run`` does so by itself; call
    this before closing a loop by hand."""
    await transport_of(current_config(config)).clients.aclose()


_making = threading.Lock()


def transport_of(config: ChainConfig) -> Transport:
    """The configuration's transport, made when first needed and closed with it."""
    if config._transports:
        return config._transports[0]
    with _making:
        if not config._transports:
            transport = Transport(config)
            # Runs when the configuration is dropped, and at the interpreter's exit.
            weakref.finalize(config, transport.close)
            config._transports.append(transport)
    return config._transports[0]


def _read(reply: Reply) -> dict[str, Any] | APIError:
    try:
        answer = json.loads(reply.body)
    except ValueError:
        answer = None
    if 200 <= reply.status < 300:
        if not isinstance(answer, dict):
            raise Unreachable("the answer was not a JSON object")
        return answer
    return _refusal(reply, answer if isinstance(answer, dict) else {})


def _refusal(reply: Reply, problem: Mapping[str, Any]) -> APIError:
    detail = problem.get("detail") or problem.get("title") or "without a reason"
    if 300 <= reply.status < 400:
        detail = "with a redirect; set backend_url to where the service is"
    request_id = problem.get("request_id") or reply.headers.get("x-request-id")
    found = problem.get("errors")
    errors = tuple(e for e in found if isinstance(e, dict)) if isinstance(found, list) else ()
    named = "; ".join(f"{e.get('pointer', '')} {e.get('detail', '')}" for e in errors[:5])
    text = f"the service answered {reply.status}: {detail}" + (f" ({named})" if named else "")
    return APIError(text, reply.status, str(problem.get("code", "")), request_id, errors)


def _retry_after(reply: Reply) -> float:
    try:
        return min(max(float(reply.headers.get("retry-after", 0)), 0.0), 3600.0)
    except ValueError:
        return 0.0  # a date: our own backoff does
