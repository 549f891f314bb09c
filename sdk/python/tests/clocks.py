"""Time that a test moves by hand."""

from __future__ import annotations

import countersign
from countersign._client import transport_of
from countersign._clock import Clock


class ManualClock(Clock):
    """Stands still until it is told otherwise."""

    def __init__(self, monotonic: float = 1000.0, wall: float = 1_800_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._process = 1

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def process(self) -> int:
        return self._process

    def pass_time(self, seconds: float) -> None:
        self._monotonic += seconds
        self._wall += seconds

    def set_wall(self, change: float) -> None:
        """Somebody sets the wall clock."""
        self._wall += change

    def sleep(self, seconds: float) -> None:
        """The machine sleeps: one of the clocks does not see it."""
        self._wall += seconds

    def fork(self) -> None:
        self._process += 1


def stop_time(config: countersign.ChainConfig, wall: float = 1_800_000_000.0) -> ManualClock:
    """Give a configuration a clock of its own."""
    clock = ManualClock(wall=wall)
    transport_of(config).clock = clock
    return clock
