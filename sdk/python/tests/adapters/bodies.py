"""What is put around the bodies of tools, for what is measured of many runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Around", "unchanged"]

Body = Callable[..., Any]
Around = Callable[[Body], Body]
"""Takes the body of a tool, sync or async, and gives the one that is called instead."""


def unchanged(body: Body) -> Body:
    return body
