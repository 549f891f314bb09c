"""One implementation for sync and async callers.

The library's logic is written once, as generators ("steps") that yield the effects they need: send
a request, pause, wait for a future. Two small drivers perform the effects, :func:`run` by blocking
and :func:`run_async` by awaiting.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

__all__ = [
    "JITTER",
    "Effect",
    "Pause",
    "Reply",
    "Send",
    "Steps",
    "Until",
    "run",
    "run_async",
    "until",
]


JITTER = random.Random()
"""Spreads retries. A generator of its own leaves the state of Python's global one alone."""


@dataclass
class Send:
    """Send one request. Results in a :class:`Reply`, or raises ``Unreachable``."""

    method: str
    path: str
    timeout: float
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    authenticated: bool = True


@dataclass
class Pause:
    """Wait some seconds."""

    seconds: float


@dataclass
class Until:
    """Wait until a future of another thread or task is done, whatever its result. Results in
    whether it is done; it may not be if there is a timeout."""

    done: Future[None]
    timeout: float | None = None
    """Seconds."""


@dataclass
class Reply:
    """A complete answer of the service."""

    status: int
    headers: Any
    body: bytes


Effect = Union[Send, Pause, Until]
T = TypeVar("T")
Steps = Generator[Effect, Any, T]


def run(steps: Steps[T], send: Callable[[Send], Reply]) -> T:
    """Perform the steps by blocking."""
    try:
        effect = next(steps)
        while True:
            reply: Reply | bool | None = None
            fault = None
            try:
                if isinstance(effect, Send):
                    reply = send(effect)
                elif isinstance(effect, Pause):
                    time.sleep(effect.seconds)
                else:
                    reply = not wait((effect.done,), effect.timeout).not_done
            except BaseException as error:
                fault = error
            # Outside the handler, so that a later error is not chained to this one.
            effect = steps.send(reply) if fault is None else steps.throw(fault)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def run_async(steps: Steps[T], send: Callable[[Send], Awaitable[Reply]]) -> T:
    """Perform the steps on the running event loop. A cancellation is raised inside the steps."""
    import asyncio  # imported late, so that sync programs do not load it

    try:
        effect = next(steps)
        while True:
            reply: Reply | bool | None = None
            fault = None
            try:
                if isinstance(effect, Send):
                    reply = await send(effect)
                elif isinstance(effect, Pause):
                    await asyncio.sleep(effect.seconds)
                else:
                    reply = await until(effect.done, effect.timeout)
            except BaseException as error:
                fault = error
            # Outside the handler, so that a later error is not chained to this one.
            effect = steps.send(reply) if fault is None else steps.throw(fault)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def until(done: Future[None], timeout: float | None = None) -> bool:
    """Wait on the running event loop until a future of any thread is done. Returns whether it is
    done within the timeout, in seconds."""
    import asyncio

    # Not asyncio.wrap_future: cancelling this waiter must not cancel what others wait for.
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    def on_done(_: Future[None]) -> None:
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:
            pass  # the loop was closed, so nothing waits on it any more

    done.add_done_callback(on_done)
    await asyncio.wait((woken,), timeout=timeout)
    return woken.done()
