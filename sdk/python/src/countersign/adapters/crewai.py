"""Governs crews of CrewAI.

::

    crew = govern(Crew(agents=[...], tasks=[...]))
    crew.kickoff(inputs={...})
    print(countersign.adapters.last_chain().receipt["receipt_number"])

Each kickoff is a chain of its own. Tool calls, model calls and the tasks that agents take on are
recorded before they happen. The first one that is denied ends the run: CrewAI would turn it into
a text for the model, so every later tool and model call is refused as well, and the kickoff raises
the denial.

It uses CrewAI's hooks before and after tool calls and before model calls, and wraps the methods of
models, tools and agents that have none. It does not see tools that an agent of another framework
runs inside a crew, remote A2A agents, and reads of memory and knowledge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from types import new_class
from typing import TYPE_CHECKING, Any, cast

from countersign.adapters._shared import (
    RunChain,
    Step,
    current_run,
    governed_run,
    governed_run_async,
    missing_extra,
)

try:
    from crewai import Crew
    from crewai.hooks.dispatch import (
        HookAborted,
        InterceptionPoint,
        get_scoped_hooks,
        scoped_hooks,
    )
    from crewai.state.checkpoint_config import CheckpointConfig
    from pydantic import PrivateAttr

    from countersign.adapters import _crewai_calls as calls
    from countersign.adapters._crewai_threads import give_steps_threads
    from countersign.adapters._crewai_tools import Permit, with_defaults
except ImportError as error:
    raise missing_extra("crewai", error) from error

__all__ = ["govern"]

give_steps_threads()


def govern(
    crew: Crew, chain_name: str = "crewai_workflow", metadata: Mapping[str, Any] | None = None
) -> Crew:
    """A crew with the same agents and tasks whose every run is governed.

    It is a ``Crew`` and can be used wherever one is. The crew that was given stays as it is.
    """
    if not isinstance(crew, Crew):
        raise TypeError(f"govern takes a crewai.Crew, not a {type(crew).__name__}")
    return _govern_itself(crew.model_copy(), chain_name, metadata)


def _govern_itself(crew: Any, chain_name: str, metadata: Mapping[str, Any] | None) -> Crew:
    kind: Any = type(crew)
    if not issubclass(kind, _Governed):
        # What it holds stays as it is: only what starts a run is overridden.
        object.__setattr__(crew, "__class__", _governed(kind))
    crew._countersign = (chain_name, metadata)
    return cast("Crew", crew)


class _Restoring:
    """A class method of crews that makes one from a checkpoint. That is one of CrewAI's own class:
    called on a governed crew, it governs what it has made as that crew is governed."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, crew: Any, kind: type) -> Callable[..., Crew]:
        def restore(*args: Any, **kwargs: Any) -> Crew:
            if crew is None:
                raise TypeError(
                    f"{self._name} of a governed crew's class cannot know how to govern the crew: "
                    f"call it on the governed crew, or govern what Crew.{self._name} returns"
                )
            restored = getattr(kind.__bases__[-1], self._name)(*args, **kwargs)
            # Not a copy of it: its agents, and CrewAI's next checkpoints, refer to this one.
            return _govern_itself(restored, *crew._countersign)

        return restore


class _Governed:
    """How a governed crew differs from its class."""

    if TYPE_CHECKING:  # fields of the model that it is mixed into
        stream: bool
        _countersign: tuple[str, Mapping[str, Any] | None]

    from_checkpoint = _Restoring()
    fork = _Restoring()

    def kickoff(self, *args: Any, **kwargs: Any) -> Any:
        restored, args, kwargs = self._restored(args, kwargs)
        if restored is not None:
            return restored.kickoff(*args, **kwargs)
        # A streaming kickoff returns at once. Its run begins when the stream is read, by a call
        # of this same method with streaming turned off.
        if self.stream:
            return super().kickoff(*args, **kwargs)  # type: ignore[misc]
        with governed_run(self._new_chain, convert_error=calls.as_hook_aborted), _with_hooks():
            return super().kickoff(*args, **kwargs)  # type: ignore[misc]

    async def kickoff_async(self, *args: Any, **kwargs: Any) -> Any:
        restored, args, kwargs = self._restored(args, kwargs)
        if restored is not None:
            return await restored.kickoff_async(*args, **kwargs)
        if self.stream:
            return await super().kickoff_async(*args, **kwargs)  # type: ignore[misc]
        async with governed_run_async(self._new_chain, convert_error=calls.as_hook_aborted):
            return await super().kickoff_async(*args, **kwargs)  # type: ignore[misc]

    async def akickoff(self, *args: Any, **kwargs: Any) -> Any:
        restored, args, kwargs = self._restored(args, kwargs)
        if restored is not None:
            return await restored.akickoff(*args, **kwargs)
        if self.stream:
            return await super().akickoff(*args, **kwargs)  # type: ignore[misc]
        async with governed_run_async(self._new_chain, convert_error=calls.as_hook_aborted):
            with _with_hooks():
                return await super().akickoff(*args, **kwargs)  # type: ignore[misc]

    def replay(self, *args: Any, **kwargs: Any) -> Any:
        with governed_run(self._new_chain, convert_error=calls.as_hook_aborted), _with_hooks():
            return super().replay(*args, **kwargs)  # type: ignore[misc]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        # One run: between and after its kickoffs, a model evaluates what they did.
        with governed_run(self._new_chain, convert_error=calls.as_hook_aborted), _with_hooks():
            return super().train(*args, **kwargs)  # type: ignore[misc]

    def copy(self) -> Any:
        # kickoff_for_each, train and test run copies.
        return govern(super().copy(), *self._countersign)  # type: ignore[misc]

    def _restored(self, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """The crew to run in place of this one if a kickoff is to go on from a checkpoint, and
        what is left to tell it. CrewAI would look for a crew of this class in the checkpoint."""
        given = (a for a in (*args, *kwargs.values()) if isinstance(a, CheckpointConfig))
        config = next((c for c in given if c.restore_from is not None), None)
        if config is None:
            return None, args, kwargs
        later = config.model_copy(update={"restore_from": None})
        args = tuple(later if a is config else a for a in args)
        kwargs = {name: later if a is config else a for name, a in kwargs.items()}
        return self.from_checkpoint(config), args, kwargs

    def _new_chain(self) -> RunChain:
        name, metadata = self._countersign
        return RunChain(name, metadata=metadata)


@cache
def _governed(kind: Any) -> type[Any]:
    content = {"__module__": kind.__module__, "_countersign": PrivateAttr()}
    return new_class(kind.__name__, (_Governed, kind), exec_body=lambda body: body.update(content))


# -- hooks -----------------------------------------------------------------------------


@contextmanager
def _with_hooks() -> Iterator[None]:
    """Hold every tool call, after the hooks that are there already: what they make of its
    arguments is what is recorded."""
    calls.govern_loaded_classes()
    scope = {point: get_scoped_hooks(point) for point in InterceptionPoint}
    for point, hook in (
        (InterceptionPoint.PRE_TOOL_CALL, _before_tool),
        (InterceptionPoint.POST_TOOL_CALL, _after_tool),
        (InterceptionPoint.PRE_MODEL_CALL, _before_model),
    ):
        if hook not in scope[point]:
            scope[point].append(hook)
    with scoped_hooks(scope):
        yield


def _before_tool(context: Any) -> None:
    """Record a tool call. CrewAI swallows whatever a hook raises but HookAborted."""
    run = current_run()
    if run is None:
        raise HookAborted("the governed run of this tool call is over", "countersign")
    try:
        arguments = deepcopy(context.tool_input)
        agent, parent = calls.agent_names(getattr(context.agent, "role", None))
        given = with_defaults(context.tool, arguments)
        decision = run.record(Step(agent, "tool_call", context.tool_name, given, parent))
        Permit(run, decision, context.tool, context.tool_name, given).grant()
    except HookAborted:
        raise
    except Exception as error:
        raise calls.as_hook_aborted(run.deny(error)) from error
    # What was decided is what is carried out, whoever has changed it during the wait.
    context.tool_input.clear()
    context.tool_input.update(arguments)


def _after_tool(context: Any) -> None:
    """The call is over, whether its body has run or not."""
    Permit.revoke()


def _before_model(context: Any) -> None:
    """Refuse what follows a denial, and govern a class of models that was loaded since. The
    call itself is recorded by :mod:`countersign.adapters._crewai_calls`."""
    run = current_run()
    if run is None:
        raise HookAborted("the governed run of this model call is over", "countersign")
    try:
        run.check()
        calls.record_if_unwrapped(run, context)
    except HookAborted:
        raise
    except Exception as error:
        raise calls.as_hook_aborted(run.deny(error)) from error
