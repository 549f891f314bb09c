"""Runnables that are governed however they are called.

Governing an object makes a copy of it, of a subclass of its own type that holds the governance.
So the copy is what the original was (``isinstance``, attributes, drawing, composition), and the
copies that the framework makes of it in its turn are governed too. A sequence alone is not copied
but held, since whatever it becomes a part of would take it apart.
"""

# ruff: noqa: A002 - the frameworks name the parameter input
from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ClassVar, TypeVar, cast

from langchain_core.runnables import Runnable, RunnableBinding
from langchain_core.tools import BaseTool

from countersign._collector import in_garbage_collection
from countersign._loops import next_of
from countersign.adapters._callbacks import Governor
from countersign.adapters._governance import Governance
from countersign.adapters._methods import (
    CALL_STYLES,
    DERIVING,
    PLAIN,
    calling,
    deriving,
    methods_of,
)
from countersign.adapters._shared import current_run

__all__ = ["Governed", "governed_copy"]

R = TypeVar("R", bound="Runnable[Any, Any]")


class Governed:
    """How a governed object differs from its type. Within a run of another governed
    object it is a part of that run: the outermost call opens the chain, and raises the denial."""

    _countersign: ClassVar[Governance]
    _countersign_type: ClassVar[type]
    _countersign_mixin: ClassVar[type]

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
        async with self._countersign.opened(self, config) as (governor, config):
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
            self._refuse_v3()
            return events(input, config, **kwargs)  # it comes through astream
        return self._astreamed(events, input, config, **kwargs)

    def stream_events(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        self._refuse_v3()
        return super().stream_events(input, config, **kwargs)  # type: ignore[misc]

    def _refuse_v3(self) -> None:
        """Only graphs come through their own ``stream``; a model would be called past it."""
        if current_run() is None and not hasattr(type(self), "get_state"):
            raise NotImplementedError(
                f"stream_events with version v3 is not governed for a {type(self).__name__}: use "
                "stream or astream, or govern the graph that it is called in"
            )

    def _streamed(self, stream: Any, input: Any, config: Any, **kwargs: Any) -> Iterator[Any]:
        if current_run() is not None:
            yield from stream(input, config, **kwargs)
            return
        with self._countersign.opened(self, config) as (governor, config):
            yield from _iterate(governor, stream(input, config, **kwargs))

    async def _astreamed(
        self, stream: Any, input: Any, config: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        if current_run() is not None:
            async for item in stream(input, config, **kwargs):
                yield item
            return
        async with self._countersign.opened(self, config) as (governor, config):
            if getattr(stream, "__name__", "") in _WITH_HANDLERS:
                governor.make_way()
            # Not in a generator of its own, which the event loop would close apart from this one.
            items = stream(input, config, **kwargs)
            try:
                while True:
                    with governor.active():
                        try:
                            item = await next_of(items)
                        except StopAsyncIteration:
                            return
                    governor.run.check()
                    yield item
            finally:
                await _close(governor, items)

    # -- several calls: each is a run of its own, with a chain and a receipt -----------------

    def batch(self, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        return Runnable.batch(cast("Any", self), inputs, config, **kwargs)

    async def abatch(self, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        return await Runnable.abatch(cast("Any", self), inputs, config, **kwargs)

    def batch_as_completed(self, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        return Runnable.batch_as_completed(cast("Any", self), inputs, config, **kwargs)

    def abatch_as_completed(self, inputs: Any, config: Any = None, **kwargs: Any) -> Any:
        return Runnable.abatch_as_completed(cast("Any", self), inputs, config, **kwargs)

    # -- every other method: see _methods.py ----------------------------------------------------

    def _called(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if current_run() is not None:
            return method(*args, **kwargs)
        with self._countersign.opened(self, None) as (governor, _), governor.active():
            result = method(*args, **kwargs)
        if inspect.isawaitable(result) or isinstance(result, (Iterator, AsyncIterator)):
            name = getattr(method, "__name__", "the method")
            getattr(result, "close", bool)()
            raise TypeError(
                f"{name} of a governed {type(self).__name__} returns work that would be done "
                "after its run has ended: make it a coroutine function or a generator function"
            )
        return result

    async def _acalled(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if current_run() is not None:
            return await method(*args, **kwargs)
        async with self._countersign.opened(self, None) as (governor, _):
            with governor.active():
                return await method(*args, **kwargs)

    def _original_method(self, name: str) -> Callable[..., Any]:
        """The method of the object's own type."""
        return cast("Callable[..., Any]", getattr(super(type(self)._countersign_mixin, self), name))

    def __getattr__(self, name: str) -> Any:
        # Bindings and their like hand on what the object inside has: it is governed here.
        found = getattr(super(), "__getattr__", None)
        if found is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = found(name)
        if name.startswith("_") or name in PLAIN or not inspect.isroutine(value):
            return value
        if name in DERIVING:
            return lambda *args, **kwargs: self._extended(value(*args, **kwargs))
        # A binding wraps what takes a configuration, and its wrapper does not tell what that is.
        style = calling(name, inspect.unwrap(value))
        return types.MethodType(style, _InnerMethod(self, value))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class was made here and cannot be found by its name.
        return governed_copy, (_original(self), self._countersign)

    def to_json(self) -> Any:
        """What is loaded from it would not be governed: so it cannot be loaded."""
        made = super().to_json()  # type: ignore[misc]
        if made.get("type") == "constructor":
            made = {name: value for name, value in made.items() if name != "kwargs"}
            made |= {"type": "not_implemented", "repr": None}
        return made

    # -- what is made of it is governed as a whole --------------------------------------------

    def __or__(self, other: Any) -> Any:
        return self._extended(super().__or__(other))  # type: ignore[misc]

    def __ror__(self, other: Any) -> Any:
        return self._extended(super().__ror__(other))  # type: ignore[misc]

    def _extended(self, made: Any) -> Any:
        if isinstance(made, (Governed, BaseTool)) or not isinstance(made, Runnable):
            return made
        if (
            isinstance(getattr(made, "bound", None), Governed)
            and type(made).__name__ in _PASS_THROUGH
        ):
            return made  # every call of it is one of the object inside
        return governed_copy(made, self._countersign.extended(self))


class _InnerMethod:
    """A method of the object inside, as the wrappers of :mod:`_methods` look for one."""

    def __init__(self, governed: Governed, method: Callable[..., Any]) -> None:
        self._called, self._acalled = governed._called, governed._acalled
        self._streamed, self._astreamed = governed._streamed, governed._astreamed
        self._method = method

    def _original_method(self, name: str) -> Callable[..., Any]:
        return self._method


_WITH_HANDLERS = ("astream_events", "astream_log")
"""Streams of what handlers of their own are told."""
_PASS_THROUGH = ("RunnableBinding", "_ChatModelBinding", "RunnableEach")
"""What hands each call on to one object, and calls nothing besides."""


class GovernedExecutor(Governed):
    """Adds what only agent executors have: going through a run step by step."""

    def iter(self, inputs: Any, callbacks: Any = None, **kwargs: Any) -> _Iteration:
        return _Iteration(self, super().iter, inputs, callbacks, kwargs)  # type: ignore[misc]


class GovernedGraph(Governed):
    """Adds what only graphs have: a state that can be written to. The conditions of the edges after
    a node decide then what comes next, and may call tools and models."""

    def bulk_update_state(self, config: Any, *args: Any, **kwargs: Any) -> Any:
        write = super().bulk_update_state  # type: ignore[misc]
        if current_run() is not None:
            return write(config, *args, **kwargs)
        if not _has_conditions(self):
            return write(self._countersign.remembering(self, config), *args, **kwargs)
        opened = self._countersign.opened(self, config, anew=True)
        with opened as (governor, config), governor.active():
            try:
                return write(config, *args, **kwargs)
            except Exception as error:
                fault = _of_the_write(governor, error)
        raise fault

    async def abulk_update_state(self, config: Any, *args: Any, **kwargs: Any) -> Any:
        write = super().abulk_update_state  # type: ignore[misc]
        if current_run() is not None:
            return await write(config, *args, **kwargs)
        if not _has_conditions(self):
            config = await self._countersign.remembering_async(self, config)
            return await write(config, *args, **kwargs)
        opened = self._countersign.opened(self, config, anew=True)
        async with opened as (governor, config):
            with governor.active():
                try:
                    return await write(config, *args, **kwargs)
                except Exception as error:
                    fault = _of_the_write(governor, error)
        raise fault


def _has_conditions(graph: Any) -> bool:
    """Whether writing to a graph's state may run functions of its author."""
    builder = getattr(graph, "builder", None)
    return builder is None or any(builder.branches.values())


def _of_the_write(governor: Governor, error: Exception) -> Exception:
    """The error, if only the write has failed: the run that it is made to has not."""
    if governor.run.denial is not None:
        raise error
    return error


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


def _iterate(governor: Governor, items: Iterator[Any]) -> Iterator[Any]:
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
        # The collector ends the items by itself. A context variable must not be set there: before
        # Python 3.12 it may have interrupted the setting of another one.
        if not in_garbage_collection() and (close := getattr(items, "close", None)):
            with governor.active():
                close()


async def _close(governor: Governor, items: Any) -> None:
    """Close a stream within the run."""
    close = getattr(items, "aclose", None)
    if close is not None:
        with governor.active():
            await close()


def governed_copy(runnable: R, governance: Governance) -> R:
    """A copy of the object that is governed. The original stays as it is."""
    held: Any = runnable
    if hasattr(type(held), "steps") or "steps" in vars(held):
        # Sequences that it becomes a part of, and nodes, would take its steps and leave the rest.
        held = RunnableBinding(bound=held)
    kind: Any = type(held)
    kind = getattr(kind, "_countersign_type", kind)  # not governed twice
    mixin = _mixin_of(kind)
    names = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    made = types.new_class(kind.__name__, (mixin, kind), {}, lambda body: body.update(names))
    # Set afterwards: in the body, pydantic would take them for fields.
    type.__setattr__(made, "_countersign", governance)
    type.__setattr__(made, "_countersign_type", kind)
    type.__setattr__(made, "_countersign_mixin", mixin)
    return cast("R", _copy_as(held, made))


@functools.lru_cache(maxsize=256)
def _mixin_of(kind: type) -> type:
    """What governs every method of a class."""
    mixin: type = GovernedExecutor if hasattr(kind, "iter") else Governed
    if hasattr(kind, "bulk_update_state"):
        mixin = GovernedGraph
    methods: dict[str, Any] = {}
    for name in methods_of(kind):
        if name in DERIVING:
            methods[name] = deriving(name)
        elif name not in PLAIN and name not in CALL_STYLES:
            methods[name] = calling(name, inspect.getattr_static(kind, name))
    return type(f"Governed{kind.__name__}", (mixin,), methods)


def _original(governed: Governed) -> Any:
    """The object as it was before it was governed."""
    return _copy_as(governed, governed._countersign_type)


def _copy_as(runnable: Any, kind: type) -> Any:
    twin: Any = object.__new__(kind)
    object.__setattr__(twin, "__dict__", dict(vars(runnable)))
    for name in _PYDANTIC:
        if hasattr(runnable, name):
            object.__setattr__(twin, name, copy.copy(getattr(runnable, name)))
    return twin


_PYDANTIC = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
"""What pydantic's models keep beside their dictionary."""
