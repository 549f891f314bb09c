"""The clock, and how long an allow is valid.

An allow is a lease that starts when its request was sent, so no clock of another machine matters.
The service answers whoever stops the organization only after all leases have expired. No action may
begin after its lease has.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

__all__ = ["LEASE_SECONDS", "Clock", "Moment", "is_fresh"]

LEASE_SECONDS = 1.0
"""How long an allow is valid."""

_MAX_DISAGREEMENT = 0.25  # seconds between the two clocks


class Moment(NamedTuple):
    """A reading of both clocks, and the process that took it."""

    monotonic: float
    """Seconds. Never jumps, but stops on some systems while the machine sleeps."""
    wall: float
    """Seconds. Counts while the machine sleeps, but jumps when the clock is set."""
    process: int
    """The process id. A fork copies leases, but only the process that requested one may use it."""


class Clock:
    """The library's source of time, ``Transport.clock``. Tests replace it."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def process(self) -> int:
        return os.getpid()

    def now(self) -> Moment:
        return Moment(self.monotonic(), self.wall(), self.process())


def is_fresh(sent: Moment, now: Moment, seconds: float = LEASE_SECONDS) -> bool:
    """Whether a lease that was requested at ``sent`` is still valid at ``now``.

    Each clock alone can be wrong about the elapsed time, so both must be within the lease and
    agree.

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
