"""Runnables that are governed however they are called.

Governing an object makes a copy of it, of a subclass of its own type that holds the governance.
So the copy is what the original was (``isinstance``, attributes, drawing, composition), and the
copies that the framework makes of it in its turn are governed too.
"""

# ruff: noqa: A002 - the frameworks name the parameter input
from __future__ import annotations

import copy
import types
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar, TypeVar, cast

from langchain_core.runnables import Runnable

from countersign.adapters._callbacks import Governor
from countersign.adapters._governance import Governance
from countersign.adapters._shared import current_run

__all__ = ["Governed", "governed_copy"]

R = TypeVar("R", bound="Runnable[Any, Any]")


class Governed:
    """What a governed object does otherwise than its type. Within a run of another governed
    object it is a part of that run: the outermost call opens the chain, and raises the denial."""

    _countersign: ClassVar[Governance]
    _countersign_type: ClassVar[type]

    # -- one call --------------------------------------------------------------------------

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        run = super().invoke  # type: ignore[misc]
        if current_run() is not None:
            return run(input, config, **kwargs)
        with self._countersign.opened(self, config) as (governor, config), governor.active():
            return run(input, config, **kwargs)

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        run = super().ainvoke  # type: ignore[misc]
        if current_run() is not None:
            return await run(input, config, **kwargs)
        async with self._countersign.opened_async(self, config) as (governor, config):
            with governor.active():
                return await run(input, config, **kwargs)

    # -- streams ---------------------------------------------------------------------------

    def stream(self, input: Any, config: Any = None, **kwargs: Any) -> Iterator[Any]:
        return self._streamed(super().stream, input, config, **kwargs)  # type: ignore[misc]

    def transform(self, input: Any, config: Any = None, **kwargs: Any) -> Iterator[Any]:
        return self._streamed(super().transform, input, config, **kwargs)  # type: ignore[misc]

    def astream(self, input: Any, config: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        return self._astreamed(super().astream, input, config, **kwargs)  # type: ignore[misc]

    def atransform(self, input: Any, config: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        return self._astreamed(super().atransform, input, config, **kwargs)  # type: ignore[misc]

    def astream_log(self, input: Any, config: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        return self._astreamed(super().astream_log, input, config, **kwargs)  # type: ignore[misc]

    def astream_events(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        events = super().astream_events  # type: ignore[misc]
        if kwargs.get("version") == "v3":
            return events(input, config, **kwargs)  # it comes through astream
        return self._astreamed(events, input, config, **kwargs)

    def _streamed(self, stream: Any, input: Any, config: Any, **kwargs: Any) -> Iterator[Any]:
        if current_run() is not None:
            yield from stream(input, config, **kwargs)
            return
        with self._countersign.opened(self, config) as (governor, config):
            yield from _driven(governor, stream(input, config, **kwargs))

    async def _astreamed(
        self, stream: Any, input: Any, config: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        if current_run() is not None:
            async for item in stream(input, config, **kwargs):
                yield item
            return
        async with self._countersign.opened_async(self, config) as (governor, config):
            async for item in _driven_async(governor, stream(input, config, **kwargs)):
                yield item

    # -- several calls: each is a run of its own, with a chain and a receipt -----------------

    def batch(self, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        return Runnable.batch(cast("Any", self), inputs, config, **kwargs)

    async def abatch(self, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        return await Runnable.abatch(cast("Any", self), inputs, config, **kwargs)

    def batch_as_completed(self, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        return Runnable.batch_as_completed(cast("Any", self), inputs, config, **kwargs)

    def abatch_as_completed(self, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        return Runnable.abatch_as_completed(cast("Any", self), inputs, config, **kwargs)

    # -- what is made of it is governed as a whole --------------------------------------------

    def with_retry(self, *args: Any, **kwargs: Any) -> Any:
        return self._extended(super().with_retry(*args, **kwargs))  # type: ignore[misc]

    def with_fallbacks(self, *args: Any, **kwargs: Any) -> Any:
        return self._extended(super().with_fallbacks(*args, **kwargs))  # type: ignore[misc]

    def pipe(self, *args: Any, **kwargs: Any) -> Any:
        return self._extended(super().pipe(*args, **kwargs))  # type: ignore[misc]

    def __or__(self, other: Any) -> Any:
        return self._extended(super().__or__(other))  # type: ignore[misc]

    def __ror__(self, other: Any) -> Any:
        return self._extended(super().__ror__(other))  # type: ignore[misc]

    def _extended(self, made: Any) -> Any:
        if isinstance(made, Governed):
            return made
        whole = Governance(
            self._countersign.chain_name, self._countersign.metadata, self._countersign.agent
        )
        return governed_copy(made, whole)


class GovernedExecutor(Governed):
    """Adds what only agent executors have: going through a run step by step."""

    def iter(self, inputs: Any, callbacks: Any = None, **kwargs: Any) -> _Iteration:
        return _Iteration(self, super().iter, inputs, callbacks, kwargs)  # type: ignore[misc]


class _Iteration:
    """A run of an agent executor, step by step."""

    def __init__(
        self, executor: Governed, begin: Any, inputs: Any, callbacks: Any, options: dict[str, Any]
    ) -> None:
        self._executor = executor
        self._begin = begin
        self._inputs = inputs
        self._config = {"callbacks": callbacks}
        self._options = options

    def __iter__(self) -> Iterator[Any]:
        return self._executor._streamed(self._steps, None, self._config)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._executor._astreamed(self._asteps, None, self._config)

    def _steps(self, _: Any, config: Any) -> Iterator[Any]:
        return iter(self._begin(self._inputs, config.get("callbacks"), **self._options))

    def _asteps(self, _: Any, config: Any) -> AsyncIterator[Any]:
        begun = self._begin(self._inputs, config.get("callbacks"), **self._options)
        return begun.__aiter__()  # type: ignore[no-any-return]


def _driven(governor: Governor, items: Iterator[Any]) -> Iterator[Any]:
    """The items of a stream, each computed within the run and handed out outside of it."""
    try:
        while True:
            with governor.active():
                try:
                    item = next(items)
                except StopIteration:
                    return
            governor.run.check()
            yield item
    finally:
        if close := getattr(items, "close", None):
            with governor.active():
                close()


async def _driven_async(governor: Governor, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    try:
        while True:
            with governor.active():
                try:
                    item = await items.__anext__()
                except StopAsyncIteration:
                    return
            governor.run.check()
            yield item
    finally:
        if close := getattr(items, "aclose", None):
            with governor.active():
                await close()


def governed_copy(runnable: R, governance: Governance) -> R:
    """A copy of the object that is governed. The original stays as it is."""
    kind = type(runnable)
    kind = getattr(kind, "_countersign_type", kind)  # not governed twice
    names = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    mixin = GovernedExecutor if hasattr(kind, "iter") else Governed
    made = types.new_class(kind.__name__, (mixin, kind), {}, lambda body: body.update(names))
    # Set afterwards: in the body, pydantic would take them for fields.
    type.__setattr__(made, "_countersign", governance)
    type.__setattr__(made, "_countersign_type", kind)
    twin: Any = object.__new__(made)
    object.__setattr__(twin, "__dict__", dict(vars(runnable)))
    for name in _PYDANTIC:
        if hasattr(runnable, name):
            object.__setattr__(twin, name, copy.copy(getattr(runnable, name)))
    return cast("R", twin)


_PYDANTIC = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
"""What pydantic's models keep beside their dictionary."""
