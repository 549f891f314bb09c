"""The slots that steps of several threads and event loops share."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from countersign import _semaphore
from countersign._semaphore import Semaphore
from countersign._steps import Pause, Steps, run, run_async


def ended(names: list[str], name: str) -> Steps[str]:
    names.append(name)
    yield Pause(0)
    return name


def no_request(_: object) -> Any:
    raise AssertionError("nothing is sent")


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_slot_that_nobody_gives_back_is_not_waited_for_without_an_end(
    sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder may be a task of the event loop whose thread waits here. When it goes on, there
    are as many slots as before."""
    monkeypatch.setattr(_semaphore, "_LONGEST_WAIT", 0.01, raising=False)
    slots, names = Semaphore(1), list[str]()
    held = slots.run(ended(names, "held"))
    next(held)
    steps = slots.run(ended(names, "late"))

    async def late() -> str:
        return await asyncio.wait_for(run_async(steps, no_request), 20)

    assert (run(steps, no_request) if sync else asyncio.run(late())) == "late"
    with pytest.raises(StopIteration):
        held.send(None)
    first, second = (slots.run(ended(names, name)) for name in ("first", "second"))
    next(first)
    next(second)
    assert names == ["held", "late", "first"]
    first.close()
    second.close()
