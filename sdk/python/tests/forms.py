"""Functions in every form that ``governed`` takes, and what their bodies were called with."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from countersign import _transport, governed, governed_run
from countersign.testing import FakeService

RAN: list[Any] = []
"""What the bodies of the functions below were called with."""


def start_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each test: nothing ran, and what is tried again is tried at once."""
    RAN.clear()
    monkeypatch.setattr(_transport, "_FIRST_BACKOFF", 0.001)


@governed
def pay(amount: int, currency: str = "USD") -> int:
    RAN.append(amount)
    if amount < 0:
        raise ValueError("a secret text")
    return amount


@governed
async def pay_async(amount: int, currency: str = "USD") -> int:
    RAN.append(amount)
    await asyncio.sleep(0)
    if amount < 0:
        raise ValueError("a secret text")
    return amount


@governed
def stream(amount: int, currency: str = "USD") -> Iterator[int]:
    RAN.append(amount)
    yield amount
    if amount < 0:
        raise ValueError("a secret text")


@governed
async def stream_async(amount: int, currency: str = "USD") -> AsyncIterator[int]:
    RAN.append(amount)
    yield amount
    if amount < 0:
        raise ValueError("a secret text")


def _pay(amount: int, currency: str = "USD") -> int:
    RAN.append(amount)
    if amount < 0:
        raise ValueError("a secret text")
    return amount


class Till:
    @governed
    def method(self, amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    @governed
    async def async_method(self, amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    @governed
    @classmethod
    def outer_class_method(cls, amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    @classmethod
    @governed
    def inner_class_method(cls, amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    @governed
    @staticmethod
    def outer_static_method(amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    @staticmethod
    @governed
    def inner_static_method(amount: int, currency: str = "USD") -> int:
        return _pay(amount)


class Callable_:  # noqa: N801
    """An object that is called."""

    def __call__(self, amount: int, currency: str = "USD") -> int:
        return _pay(amount)


class AsyncCallable:
    async def __call__(self, amount: int, currency: str = "USD") -> int:
        return _pay(amount)


@governed
class Desk:
    """Every public method of it is an action."""

    def method(self, amount: int, currency: str = "USD") -> int:
        return self._unseen(amount)

    async def async_method(self, amount: int, currency: str = "USD") -> int:
        return self._unseen(amount)

    @staticmethod
    def static_method(amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    @classmethod
    def class_method(cls, amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    def __call__(self, amount: int, currency: str = "USD") -> int:
        return _pay(amount)

    def _unseen(self, amount: int) -> int:
        return _pay(amount)


async def _collect(items: AsyncIterator[int]) -> int:
    (item,) = [item async for item in items]
    return item


def _only(items: Iterator[int]) -> int:
    (item,) = items
    return item


def block(amount: int) -> int:
    payload = {"amount": amount, "currency": "USD"}
    with governed(name="block", payload=payload) as decision:
        assert decision.allowed
        return _pay(amount)


async def async_block(amount: int) -> int:
    payload = {"amount": amount, "currency": "USD"}
    async with governed(name="async_block", payload=payload):
        return _pay(amount)


FORMS: dict[str, Callable[[int], Any]] = {
    "pay": pay,
    "pay_async": pay_async,
    "stream": lambda amount: _only(stream(amount)),
    "stream_async": lambda amount: _collect(stream_async(amount)),
    "method": Till().method,
    "async_method": Till().async_method,
    "outer_class_method": Till.outer_class_method,
    "inner_class_method": Till().inner_class_method,
    "outer_static_method": Till.outer_static_method,
    "inner_static_method": Till().inner_static_method,
    "Callable_": governed(Callable_()),
    "AsyncCallable": governed(AsyncCallable()),
    "_pay": governed(functools.partial(_pay, currency="USD")),
    "renamed": governed(name="renamed")(_pay),
    "block": block,
    "async_block": async_block,
    "class.method": Desk().method,
    "class.async_method": Desk().async_method,
    "class.static_method": Desk.static_method,
    "class.class_method": Desk.class_method,
    "class.__call__": Desk(),
}
each_form = pytest.mark.parametrize("form", list(FORMS))


def run(form: str, amount: int) -> Any:
    """Call one form in a run of its own: in a thread without a loop, or on one."""
    call = FORMS[form]
    if "async" not in form.lower():
        with governed_run("test", agent="clerk"):
            return call(amount)

    async def main() -> Any:
        async with governed_run("test", agent="clerk"):
            made: Awaitable[Any] = call(amount)
            return await made

    return asyncio.run(main())


def reports(fake: FakeService) -> list[dict[str, Any]]:
    """The outcomes as they were sent."""
    return [call.body for call in fake.calls if call.path.endswith("/outcome")]
