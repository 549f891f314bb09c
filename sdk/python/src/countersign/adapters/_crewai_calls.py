"""What CrewAI's hooks do not reach: model calls outside of an agent's loop, the functions that a
model calls by itself, and the tasks that agents take on.

Their methods are wrapped on their classes, once for the process. Outside of a governed run a
wrapped method is the method that it wraps.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, NamedTuple

from crewai import BaseLLM
from crewai.agents.agent_builder.base_agent import BaseAgent
from crewai.hooks.dispatch import HookAborted

from countersign._fork import in_child
from countersign._scope import inherit_in_threads
from countersign.adapters._content import prompt_payload
from countersign.adapters._crewai_tools import (
    GATES,
    KINDS,
    Permit,
    gate,
    signature_of,
    with_defaults,
)
from countersign.adapters._shared import Run, Step, run_of_call, usage_of

__all__ = ["agent_names", "as_hook_aborted", "govern_loaded_classes", "record_if_unwrapped"]

_WRAPPED = "_countersign_wrapped"
_lock = threading.Lock()


@in_child
def _after_fork() -> None:
    # Another thread of the parent may have held the lock.
    global _lock
    _lock = threading.Lock()


class _Assignment(NamedTuple):
    agent: str
    task: int


_ASSIGNMENTS: ContextVar[tuple[_Assignment, ...]] = ContextVar(
    "countersign_crewai_work", default=()
)
"""Who is at work here; the one that delegated comes first."""
_TOKENS: ContextVar[list[int] | None] = ContextVar("countersign_crewai_call", default=None)
"""Input and output tokens of the model call that is under way here."""


def as_hook_aborted(error: Exception) -> Exception:
    """An error as CrewAI lets it pass: everything else that a hook raises is swallowed."""
    if isinstance(error, HookAborted):
        return error
    aborted = HookAborted(str(error), "countersign")
    aborted.__cause__ = error
    return aborted


def agent_names(role: str | None) -> tuple[str, str | None]:
    """The agent that acts here, and the one that delegated to it."""
    agents = [work.agent for work in _ASSIGNMENTS.get()]
    if role is not None and (not agents or _name(role) != agents[-1]):
        agents.append(_name(role))
    if not agents:
        return "crew", None
    return agents[-1], agents[-2] if len(agents) > 1 else None


def _name(role: Any) -> str:
    return str(role or "").strip() or "agent"


# -- classes ---------------------------------------------------------------------------


def govern_loaded_classes() -> None:
    """Wrap the methods of every class of models, tools and agents that is loaded."""
    inherit_in_threads(_ASSIGNMENTS)
    with _lock:
        for model in _subclasses(BaseLLM):
            _wrap(model, "call", _model_call)
            _wrap(model, "acall", _model_call_async)
            _wrap(model, "_track_token_usage_internal", _count_tokens)
        for kind in (k for base in KINDS for k in _subclasses(base)):
            for name in GATES:
                _wrap(kind, name, gate(agent_names, kind, name))
        for agent in _subclasses(BaseAgent):
            _wrap(agent, "execute_task", _task)
            _wrap(agent, "aexecute_task", _task_async)


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _subclasses(subclass)


def _wrap(kind: type[Any], name: str, wrapper: Callable[[Any], Any]) -> None:
    method = vars(kind).get(name)
    if inspect.isfunction(method) and not hasattr(method, _WRAPPED):
        wrapped = wraps(method)(wrapper(method))
        # CrewAI looks for abstract methods; wraps has copied that mark with the others.
        setattr(wrapped, _WRAPPED, True)
        setattr(kind, name, wrapped)


# -- models ----------------------------------------------------------------------------


def _model_call(method: Any) -> Any:
    def call(llm: Any, *args: Any, **kwargs: Any) -> Any:
        run = run_of_call()
        if run is None or _TOKENS.get() is not None:
            return method(llm, *args, **kwargs)
        given = _bind(method, run, llm, args, kwargs)
        step = _model_step(llm, given.arguments)
        with run.performing(step), _counting() as tokens:
            answer = method(*given.args, **given.kwargs)
        if any(tokens):
            run.record(usage_of(step, step.action_name, *tokens))
        return answer

    return call


def _model_call_async(method: Any) -> Any:
    async def acall(llm: Any, *args: Any, **kwargs: Any) -> Any:
        run = run_of_call()
        if run is None or _TOKENS.get() is not None:
            return await method(llm, *args, **kwargs)
        given = _bind(method, run, llm, args, kwargs)
        step = _model_step(llm, given.arguments)
        async with run.performing_async(step):
            with _counting() as tokens:
                answer = await method(*given.args, **given.kwargs)
        if any(tokens):
            await run.record_async(usage_of(step, step.action_name, *tokens))
        return answer

    return acall


def record_if_unwrapped(run: Run, context: Any) -> None:
    """A model call that is about to be made. If its class was loaded only now, wrapping it
    comes too late for a call that is under way already: that one is recorded here."""
    known = hasattr(getattr(type(context.llm), "call", None), _WRAPPED)
    if known:
        return
    govern_loaded_classes()
    if context.executor is None or not isinstance(context.llm, BaseLLM):
        role = getattr(context.agent, "role", None)
        run.record(_step_of(context.llm, context.messages, role))


def _bind(method: Any, run: Run, llm: Any, args: Any, kwargs: Any) -> inspect.BoundArguments:
    given = signature_of(method).bind(llm, *args, **kwargs)
    functions = given.arguments.get("available_functions")
    if functions:
        role = getattr(given.arguments.get("from_agent"), "role", None)
        given.arguments["available_functions"] = {
            name: _function(run, name, function, role) for name, function in functions.items()
        }
    return given


def _function(run: Run, name: str, function: Any, role: str | None) -> Any:
    """A function that the model's own client calls, without any hook."""

    @wraps(function)
    def governed(**arguments: Any) -> Any:
        agent, parent = agent_names(role)
        tool = getattr(function, "__self__", None)
        given = with_defaults(tool, arguments)
        step = Step(agent, "tool_call", name, given, parent)
        # What it does in its turn is not part of the model call.
        token = _TOKENS.set(None)
        try:
            if isinstance(tool, KINDS):
                Permit(run, run.record(step), tool, name, given).grant()
                try:
                    return function(**arguments)
                finally:
                    Permit.revoke()
            with run.performing(step):
                return function(**arguments)
        finally:
            _TOKENS.reset(token)

    return governed


def _model_step(llm: Any, given: Mapping[str, Any]) -> Step:
    agent = given.get("from_agent") or getattr(given.get("from_task"), "agent", None)
    return _step_of(llm, given.get("messages"), getattr(agent, "role", None))


def _step_of(llm: Any, messages: Any, role: str | None) -> Step:
    model = str(getattr(llm, "model", None) or llm or "model")
    count = len(messages) if isinstance(messages, list) else 1
    payload = prompt_payload(json.dumps(messages, sort_keys=True, default=str), count)
    agent, parent = agent_names(role)
    return Step(agent, "llm_call", model, payload, parent, {"model": model})


@contextmanager
def _counting() -> Iterator[list[int]]:
    tokens = [0, 0]
    token = _TOKENS.set(tokens)
    try:
        yield tokens
    finally:
        _TOKENS.reset(token)


def _count_tokens(method: Any) -> Any:
    def track(llm: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = _TOKENS.get()
        if tokens is None:
            return method(llm, *args, **kwargs)
        # A method that calls the one of the class above is counted once.
        token = _TOKENS.set(None)
        try:
            # The counters are the model's, whose calls may run side by side.
            with _lock:
                before = dict(llm._token_usage)
                result = method(llm, *args, **kwargs)
                for i, name in enumerate(("prompt_tokens", "completion_tokens")):
                    tokens[i] += llm._token_usage.get(name, 0) - before.get(name, 0)
        finally:
            _TOKENS.reset(token)
        return result

    return track


# -- tasks -----------------------------------------------------------------------------


def _task(method: Any) -> Any:
    def execute_task(agent: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
        run = run_of_call()
        if run is None or _is_retry(agent, task):
            return method(agent, task, *args, **kwargs)
        with _working_on(agent, task) as step:
            run.record(step)
            return method(agent, task, *args, **kwargs)

    return execute_task


def _task_async(method: Any) -> Any:
    async def aexecute_task(agent: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
        run = run_of_call()
        if run is None or _is_retry(agent, task):
            return await method(agent, task, *args, **kwargs)
        with _working_on(agent, task) as step:
            await run.record_async(step)
            return await method(agent, task, *args, **kwargs)

    return aexecute_task


def _is_retry(agent: Any, task: Any) -> bool:
    """Whether this is another attempt of the agent at the task that it is at."""
    work = _ASSIGNMENTS.get()
    return bool(work) and work[-1] == _Assignment(_name(agent.role), id(task))


@contextmanager
def _working_on(agent: Any, task: Any) -> Iterator[Step]:
    token = _ASSIGNMENTS.set((*_ASSIGNMENTS.get(), _Assignment(_name(agent.role), id(task))))
    try:
        description = str(task.description).encode("utf-8", "replace")
        payload = {
            "task": task.name or "unnamed",
            "description_sha256": hashlib.sha256(description).hexdigest(),
        }
        name, parent = agent_names(None)
        yield Step(name, "state_update", "enter_task", payload, parent)
    finally:
        _ASSIGNMENTS.reset(token)
