"""Resetting state in a forked child process.

A child has a copy of its parent's memory but only the thread that forked. A lock that another
thread held stays locked in the child for ever, and a connection would be shared with the parent.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

__all__ = ["Resettable", "in_child", "reset_in_child"]

C = TypeVar("C", bound=Callable[[], None])


class Resettable(Protocol):
    """An object that holds locks, threads or connections."""

    def reset_after_fork(self) -> None: ...


def in_child(function: C) -> C:
    """Decorate a function that is called in every forked child."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


_objects: weakref.WeakSet[Resettable] = weakref.WeakSet()


def reset_in_child(thing: Resettable) -> None:
    """Have the object reset in every forked child, for as long as it lives."""
    _objects.add(thing)


@in_child
def _reset_all() -> None:
    for thing in tuple(_objects):
        thing.reset_after_fork()
