"""Wrappers that govern the calls of functions, coroutine functions and generators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any

from countersign._loops import next_of
from countersign._permit import Denied, Permit, Request

__all__ = ["copy_metadata", "wrapper_for"]

RequestOf = Callable[[tuple[Any, ...], dict[str, Any]], Request]
"""Makes the request for a call with these arguments."""

_CLOSED_EARLY = "closed before its end"


def wrapper_for(function: Any) -> Callable[[RequestOf, Any], Callable[..., Any]]:
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inspect.iscoroutinefunction(inner):  # also an object that is marked as one
        return _coroutine
    if not (inspect.isroutine(inner) or inspect.isclass(inner)):
        inner = type(inner).__call__
    if inspect.isasyncgenfunction(inner):
        return _async_generator
    if inspect.isgeneratorfunction(inner):
        return _generator
    return _coroutine if inspect.iscoroutinefunction(inner) else _function


def _function(request: RequestOf, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        permit = request(args, kwargs).decide()
        if isinstance(permit, Denied):
            return permit.text
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            permit.end(error)
            raise
        if inspect.iscoroutine(result):
            return _awaited(permit, result)
        permit.end(None)
        return result

    return wrapper


async def _awaited(permit: Permit, result: Awaitable[Any]) -> Any:
    try:
        value = await result
    except BaseException as error:
        await permit.end_async(error)
        raise
    await permit.end_async(None)
    return value


def _coroutine(request: RequestOf, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        permit = await request(args, kwargs).decide_async()
        if isinstance(permit, Denied):
            return permit.text
        return await _awaited(permit, function(*args, **kwargs))

    return wrapper


def _generator(request: RequestOf, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        permit = request(args, kwargs).decide()
        if isinstance(permit, Denied):
            yield permit.text
            return None
        try:
            result = yield from function(*args, **kwargs)
        except GeneratorExit:
            permit.end(None, _CLOSED_EARLY)
            raise
        except BaseException as error:
            permit.end(error)
            raise
        permit.end(None)
        return result

    return wrapper


def _async_generator(request: RequestOf, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        permit = await request(args, kwargs).decide_async()
        if isinstance(permit, Denied):
            yield permit.text
            return
        items: AsyncGenerator[Any, Any] = function(*args, **kwargs)
        try:
            item = await next_of(items)
            while True:
                try:
                    sent = yield item
                except GeneratorExit:
                    await items.aclose()
                    raise
                except BaseException as error:
                    item = await items.athrow(error)
                else:
                    item = await items.asend(sent)
        except StopAsyncIteration:
            await permit.end_async(None)
        except GeneratorExit:
            await permit.end_async(None, _CLOSED_EARLY)
            raise
        except BaseException as error:
            await permit.end_async(error)
            raise

    return wrapper


def copy_metadata(wrapper: Any, function: Any, name: str) -> None:
    """Copy name, docstring and signature to the wrapper. Frameworks read them."""
    if inspect.isroutine(function):
        functools.update_wrapper(wrapper, function)
        return
    # Do not copy the attributes of a callable object.
    functools.update_wrapper(wrapper, function, updated=())
    wrapper.__name__ = wrapper.__qualname__ = name
    if not isinstance(function, functools.partial):
        wrapper.__doc__ = inspect.getdoc(type(function).__call__) or inspect.getdoc(function)
