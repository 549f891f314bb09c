"""Event loops that frameworks leave open after a sync call, to use them again."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["close_loop", "in_own_loop"]


def close_loop() -> None:
    """Close the loop of this thread, and with it the client's connections there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loop = asyncio.get_event_loop_policy().get_event_loop()
        except RuntimeError:
            return  # there is none
        if not loop.is_closed():
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
        asyncio.set_event_loop(None)


def in_own_loop(call: Callable[[], Any]) -> Any:
    """Make a sync call whose loop nobody else uses."""
    try:
        return call()
    finally:
        close_loop()
