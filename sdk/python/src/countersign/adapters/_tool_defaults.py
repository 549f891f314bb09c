"""The defaults of a tool's parameters, which LangChain's callbacks do not report.

A callback gets the arguments that were given and the tool's name. So the methods that run a tool
are wrapped once for the process, only to note which tool is running.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from langchain_core.tools import BaseTool, InjectedToolArg

from countersign.adapters._content import default_of

__all__ = ["tool_that_runs", "with_defaults"]

_TOOL: ContextVar[BaseTool | None] = ContextVar("countersign_tool", default=None)
_PASSED = frozenset(("self", "callbacks", "config", "run_manager"))
"""What the framework passes to a body by itself."""


def tool_that_runs(name: str) -> BaseTool | None:
    """The tool that has just been called here, if it has that name."""
    tool = _TOOL.get()
    return tool if tool is not None and tool.name == name else None


def with_defaults(tool: BaseTool | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, and the defaults of those that were left out."""
    if tool is None:
        return dict(given)
    return {**dict(_defaults(tool, given)), **given}


def _defaults(tool: BaseTool, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or tool._run
    schema = getattr(tool.args_schema, "model_fields", {})
    # Reading a signature takes long, and mostly the schema has every parameter.
    names = _plain_names(function)
    unknown = names is None or any(n not in schema and n not in _PASSED for n in names)
    parameters = inspect.signature(function).parameters if unknown else {}
    for name, parameter in parameters.items():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not is_named or name in _PASSED or name in schema or name in given:
            continue
        if parameter.default is not parameter.empty and "Injected" not in str(parameter.annotation):
            yield name, parameter.default
    for name, field in schema.items():
        if name in given or field.alias in given or field.is_required() or name in _PASSED:
            continue
        if any(_is_injected(mark) for mark in field.metadata):
            continue
        yield name, default_of(field)


def _plain_names(function: Any) -> tuple[str, ...] | None:
    """The names of a function's parameters, or None if its signature may be another's."""
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__wrapped__") or hasattr(function, "__signature__"):
        return None
    return tuple(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _is_injected(mark: Any) -> bool:
    return isinstance(mark, InjectedToolArg) or (
        isinstance(mark, type) and issubclass(mark, InjectedToolArg)
    )


def _known(method: Any) -> Any:
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def arun(tool: BaseTool, *args: Any, **kwargs: Any) -> Any:
            token = _TOOL.set(tool)
            try:
                return await method(tool, *args, **kwargs)
            finally:
                _TOOL.reset(token)

        return arun

    @functools.wraps(method)
    def run(tool: BaseTool, *args: Any, **kwargs: Any) -> Any:
        token = _TOOL.set(tool)
        try:
            return method(tool, *args, **kwargs)
        finally:
            _TOOL.reset(token)

    return run


for _name in ("run", "arun"):
    setattr(BaseTool, _name, _known(getattr(BaseTool, _name)))
