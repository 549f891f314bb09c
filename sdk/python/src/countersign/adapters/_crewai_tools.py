"""The bodies of CrewAI's tools, whoever calls them: an agent, another tool, a guardrail.

CrewAI has a hook before the calls of its agents, and none before a tool's own ``run``. So the
methods that carry a tool out are wrapped on their classes. What the hook recorded comes to them
with a permit, which is good for one run of the body; everything else is recorded there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from crewai.tools.base_tool import BaseTool
from crewai.tools.structured_tool import CrewStructuredTool
from crewai.utilities.string_utils import sanitize_tool_name

from countersign._decision import PolicyDecision
from countersign.adapters._content import default_of
from countersign.adapters._outcomes import HANDLED, Ending, ending_of
from countersign.adapters._shared import Run, Step, current_run, run_of_call

__all__ = ["GATES", "KINDS", "Permit", "gate", "signature_of", "with_defaults"]

KINDS: tuple[type[Any], ...] = (BaseTool, CrewStructuredTool)
GATES = {"invoke": 0, "ainvoke": 0, "run": 0, "arun": 0, "_run": 1, "_arun": 1}
"""The methods through which a call comes to the body, the outer ones first."""
_UNUSED = Ending("unknown", "not carried out")


class Permit:
    """One call of a tool that was recorded and allowed, for one run of its body."""

    def __init__(
        self, run: Run, decision: PolicyDecision, tool: Any, name: str, given: Mapping[str, Any]
    ) -> None:
        self._run = run
        self._decision = decision
        self._tool = _unwrapped(tool)
        self._name = name
        self._given = given
        self._last: tuple[int, str, type[Any]] | None = None
        self._outer = _PERMIT.get()

    def grant(self) -> None:
        """Make it the permit of the call that follows here."""
        _PERMIT.set(self)

    @staticmethod
    def revoke() -> None:
        """The call is over. If its body did not run (it was answered from a cache, say, or is
        over its limit), the permit must not let anything else through."""
        permit = _PERMIT.get()
        if permit is not None:
            _PERMIT.set(permit._outer)
            if permit._last is None:
                permit._run.outcomes.end(permit._decision, _UNUSED)

    def admits(self, tool: Any, name: str, owner: type[Any], given: Mapping[str, Any]) -> bool:
        """Whether a method that was called is on the way of this call to its body."""
        same = (
            _unwrapped(tool) is self._tool if self._tool is not None else _name(tool) == self._name
        )
        if not same or self._run is not current_run():
            return False
        level = GATES[name]
        if self._last is None:
            if any(k not in self._given or self._given[k] != v for k, v in given.items()):
                return False
        else:
            # Further in, or the same method of a class above: that is a call of super().
            last, last_name, last_owner = self._last
            above = name == last_name and owner is not last_owner and issubclass(last_owner, owner)
            if level <= last and not above:
                return False
        self._last = (level, name, owner)
        return True

    @property
    def is_new(self) -> bool:
        """Whether its body has not begun."""
        return self._last is None

    def end(self, ending: Ending) -> None:
        self._run.outcomes.end(self._decision, ending)

    async def end_async(self, ending: Ending) -> None:
        await self._run.outcomes.end_async(self._decision, ending)

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the body runs. Afterwards nothing comes through: a body that is tried again is
        recorded again."""
        token = _PERMIT.set(self)
        try:
            yield
        finally:
            self._last = (len(GATES), "", object)
            _PERMIT.reset(token)


_PERMIT: ContextVar[Permit | None] = ContextVar("countersign_crewai_permit", default=None)


def gate(agent_names: Any, owner: type[Any], name: str) -> Any:
    """A wrapper for the method of a class of tools. ``agent_names`` returns who acts."""

    def wrapper(method: Any) -> Any:
        def begin(tool: Any, args: Any, kwargs: Any) -> tuple[Run, Permit | None, Step | None]:
            """The run, the permit that lets the call through, and else what to record; neither
            for a call that is on its way already."""
            run = current_run()
            assert run is not None
            given = _given(method, tool, name, args, kwargs)
            permit = _PERMIT.get()
            if permit is not None:
                is_new = permit.is_new
                if permit.admits(tool, name, owner, given):
                    return run, permit if is_new else None, None
            agent, parent = agent_names(None)
            return run, None, Step(agent, "tool_call", _name(tool), given, parent)

        def permit_for(run: Run, decision: PolicyDecision, tool: Any, step: Step) -> Permit:
            permit = Permit(run, decision, tool, step.action_name, step.payload)
            permit.admits(tool, name, owner, {})
            return permit

        def call(tool: Any, *args: Any, **kwargs: Any) -> Any:
            if run_of_call() is None:
                return method(tool, *args, **kwargs)
            run, permit, step = begin(tool, args, kwargs)
            if step is not None:
                permit = permit_for(run, run.record(step), tool, step)
            if permit is None:
                return method(tool, *args, **kwargs)
            try:
                with permit.running():
                    result = method(tool, *args, **kwargs)
            except BaseException as error:
                permit.end(ending_of(error))
                raise
            permit.end(_ending_with(result))
            return result

        async def acall(tool: Any, *args: Any, **kwargs: Any) -> Any:
            if run_of_call() is None:
                return await method(tool, *args, **kwargs)
            run, permit, step = begin(tool, args, kwargs)
            if step is not None:
                permit = permit_for(run, await run.record_async(step), tool, step)
            if permit is None:
                return await method(tool, *args, **kwargs)
            try:
                with permit.running():
                    result = await method(tool, *args, **kwargs)
            except BaseException as error:
                await permit.end_async(ending_of(error))
                raise
            await permit.end_async(_ending_with(result))
            return result

        return acall if inspect.iscoroutinefunction(method) else call

    return wrapper


def with_defaults(tool: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call with the defaults of those that were left out."""
    fields = getattr(getattr(tool, "args_schema", None), "model_fields", {})
    defaults = {
        name: default_of(field)
        for name, field in fields.items()
        if name not in given and field.alias not in given and not field.is_required()
    }
    return {**given, **defaults}


def _given(method: Any, tool: Any, name: str, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of the tool itself."""
    if name in ("invoke", "ainvoke"):
        bound = signature_of(method).bind(tool, *args, **kwargs).arguments
        value = bound.get("input")
        given = dict(value) if isinstance(value, Mapping) else {"input": value}
        return with_defaults(tool, {**given, **bound.get("kwargs", {})})
    if args:
        fields = getattr(getattr(tool, "args_schema", None), "model_fields", {})
        named = dict(zip(fields, args, strict=False))
        rest = args[len(named) :]
        kwargs = {**named, **({"args": list(rest)} if rest else {}), **kwargs}
    return with_defaults(tool, kwargs)


@functools.lru_cache(maxsize=1024)  # reading one takes long, and the classes stay as they are
def signature_of(method: Any) -> inspect.Signature:
    """The signature of a method that was wrapped."""
    return inspect.signature(method)


def _unwrapped(tool: Any) -> Any:
    return getattr(tool, "_original_tool", None) or tool


def _name(tool: Any) -> str:
    return sanitize_tool_name(_unwrapped(tool).name)


def _ending_with(result: Any) -> Ending:
    # CrewAI's own way to say that a tool failed, by a value.
    return HANDLED if type(result).__name__ == "ToolFailure" else ending_of(None)
