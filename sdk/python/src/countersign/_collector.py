"""Whether the garbage collector called the running code, such as the end of a generator."""

from __future__ import annotations

import gc
from threading import get_ident
from typing import Any

__all__ = ["in_garbage_collection", "watch_garbage_collection"]

_collecting: list[int] = []  # the thread in which the collector runs; only one at a time


def watch_garbage_collection() -> None:
    """Make :func:`in_garbage_collection` work from now on."""
    if _note not in gc.callbacks:
        gc.callbacks.append(_note)


def in_garbage_collection() -> bool:
    """Whether the garbage collector called this code. It can run at any point of a thread."""
    return _collecting == [get_ident()]


# The defaults serve the collections at the end of the interpreter, when this module is empty.
def _note(
    phase: str,
    _: dict[str, Any],
    collecting: list[int] = _collecting,
    get_ident: Any = get_ident,
) -> None:
    collecting[:] = [get_ident()] if phase == "start" else []
