"""Time, and how long a permission lasts.

Every allow is a lease, counted from the moment at which the request that brought it was sent. No
clock of another machine is involved. Whoever stops the organization is answered only after every
lease has run out, so what is decided here must never outlive its own.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

__all__ = ["LEASE_SECONDS", "Clock", "Moment", "is_fresh"]

LEASE_SECONDS = 1.0
"""How long an allow is good for."""

_MAX_DISAGREEMENT = 0.25  # seconds between the two clocks


class Moment(NamedTuple):
    """A reading of both clocks, in one process."""

    monotonic: float
    """Seconds. It never jumps, and on some systems stands still while the machine sleeps."""
    wall: float
    """Seconds. It counts while the machine sleeps, and jumps when it is set."""
    process: int
    """A fork copies every permission; only the process that asked for one may use it."""


class Clock:
    """Where the library reads the time: ``Transport.clock``, which tests replace."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def process(self) -> int:
        return os.getpid()

    def now(self) -> Moment:
        return Moment(self.monotonic(), self.wall(), self.process())


def is_fresh(sent: Moment, now: Moment, seconds: float = LEASE_SECONDS) -> bool:
    """Whether a permission that was asked for at ``sent`` can still be used. Each clock alone
    can be wrong about the time that has passed: both must say that it is short, and agree.

    >>> is_fresh(Moment(10.0, 1000.0, 1), Moment(10.9, 1000.9, 1))
    True
    >>> is_fresh(Moment(10.0, 1000.0, 1), Moment(10.1, 1500.0, 1))
    False
    """
    elapsed = now.monotonic - sent.monotonic
    by_wall = now.wall - sent.wall
    return (
        now.process == sent.process
        and 0 <= elapsed < seconds
        and by_wall < seconds
        and abs(elapsed - by_wall) <= _MAX_DISAGREEMENT
    )
