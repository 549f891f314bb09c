"""The callback handler that stands before every tool and model call of LangChain and LangGraph."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Union
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook

from countersign._decision import PolicyDecision
from countersign._scope import inherit_in_threads
from countersign.adapters._call_sites import CallSite, CallSites
from countersign.adapters._content import prompt_payload
from countersign.adapters._models import message_of, model_name_of, tokens_of
from countersign.adapters._outcomes import HANDLED, Ending, ending_of
from countersign.adapters._shared import Run, Step, usage_of
from countersign.adapters._tool_defaults import tool_that_runs, with_defaults

__all__ = ["Governor", "apart_from_past", "is_past"]

Work = Union[Step, tuple[PolicyDecision, Ending]]
"""What a hook has to do: record a step, or report how a body ended."""
Plan = Callable[..., "Iterable[Work]"]


class _Event(functools.partial[Any]):
    """One call of a hook, as a plain function and as a coroutine function.

    The frameworks call a handler from sync code and from async code. The async one first asks
    whether the hook is a coroutine function; the sync one never asks, and would swallow what a
    coroutine raises. So the answer tells who asks: async callers get a coroutine and the event
    loop goes on during an approval; all others get a function that blocks. A caller that finds
    out in another way gets the blocking function, which is safe.
    """

    _governor: Governor
    _plan: Plan
    _asked = False

    @classmethod
    def of(cls, governor: Governor, plan: Plan) -> _Event:
        event = cls(plan)
        event._governor, event._plan = governor, plan
        return event

    @property
    def func(self) -> Any:
        """Where ``inspect.iscoroutinefunction`` looks for what a partial object calls."""
        self._asked = True
        return _Event._on_loop

    async def _on_loop(self, *args: Any, **kwargs: Any) -> None:
        run = self._governor.run
        for work in self._plan(self._governor, *args, **kwargs):
            if isinstance(work, Step):
                self._governor.released(kwargs["run_id"], await run.record_async(work))
            else:
                await run.outcomes.end_async(*work)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._asked:
            return self._on_loop(*args, **kwargs)
        run = self._governor.run
        for work in self._plan(self._governor, *args, **kwargs):
            if isinstance(work, Step):
                self._governor.released(kwargs["run_id"], run.record(work))
            else:
                run.outcomes.end(*work)
        return None


class _Hook:
    """A method of the handler: what it plans is recorded before it returns."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __get__(self, governor: Governor | None, owner: type) -> Any:
        return self if governor is None else _Event.of(governor, self._plan)


class Governor(BaseCallbackHandler):
    """Records what happens in one run before it happens, and refuses everything after the
    first denial."""

    raise_error = True
    # Otherwise each hook is a task of its own on the event loop, which takes longer than the hook.
    run_inline = True
    # Before Python 3.11 the frameworks cannot give a task its context: what an async node calls
    # does not say where. Called inline, a hook is part of the node's own task and can leave word.
    _leaves_word = sys.version_info < (3, 11)

    def __init__(self, run: Run, agent_name: str, parent_agent_name: str | None = None) -> None:
        self.run = run
        self._call_sites = CallSites(agent_name, parent_agent_name, run.branch)
        self._calls: dict[UUID, Step] = {}
        self._released: dict[UUID, PolicyDecision] = {}
        self._around: dict[UUID, UUID | None] = {}
        inherit_in_threads(_ACTIVE, _HERE, var_child_runnable_config)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Reach also what is called with callbacks of its own, or with none. Not to be held
        across a ``yield`` to a consumer: see :meth:`Run.active`."""
        token = _ACTIVE.set(self)
        try:
            with apart_from_past(), self.run.active():
                yield
        finally:
            _ACTIVE.reset(token)

    def make_way(self) -> None:
        """Let handlers that are not inline learn of a call while a reviewer decides on it. What is
        inline comes before them."""
        self.run_inline = self._leaves_word

    # -- where -------------------------------------------------------------------------

    def _enter(self, run_id: UUID, parent_run_id: UUID | None) -> UUID | None:
        """What a call is a part of, which becomes what later calls are a part of."""
        if not self._leaves_word:
            return parent_run_id
        here = _HERE.get()
        self._around[run_id] = here
        _HERE.set(run_id)
        return parent_run_id or (here if here in self._around else None)

    def _leave(self, run_id: UUID) -> None:
        self._call_sites.leave(run_id)
        if run_id in self._around:
            around = self._around.pop(run_id)
            if _HERE.get() == run_id:
                _HERE.set(around)

    # -- before ------------------------------------------------------------------------

    def _chain_start(
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> Iterable[Work]:
        self.run.check()
        name = name or (serialized or {}).get("name") or ""
        parent_run_id = self._enter(run_id, parent_run_id)
        site, entered = self._call_sites.enter(run_id, parent_run_id, name, tags, metadata)
        if not entered:
            return []
        payload = {"node": site.run, "step": (metadata or {}).get("langgraph_step")}
        return [_step(site, "state_update", "enter_node", payload, key=site.entry)]

    def _tool_start(
        self,
        serialized: Any,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        inputs: dict[str, Any] | None = None,
        tool_call_id: str | None = None,
        name: str | None = None,
        **_: Any,
    ) -> Iterable[Work]:
        self.run.check()
        site = self._call_sites.add_call(run_id, self._enter(run_id, parent_run_id))
        tool = (serialized or {}).get("name") or name or "tool"
        given = {"input": input_str} if inputs is None else _without_injected(inputs)
        runs = tool_that_runs(tool) if inputs is not None else None
        payload = _without_injected(with_defaults(runs, given))
        key = self.run.attempt(site.key_of("tool", tool, payload, tool_call_id))
        return [_step(site, "tool_call", tool, payload, key=key)]

    def _retriever_start(self, serialized: Any, query: str, **given: Any) -> Iterable[Work]:
        name = (serialized or {}).get("name") or given.pop("name", None) or "retriever"
        given.pop("inputs", None)
        return self._tool_start({"name": name}, "", inputs={"query": query}, **given)

    def _chat_model_start(self, serialized: Any, messages: Any, **given: Any) -> Iterable[Work]:
        said = [[message_of(m) for m in batch] for batch in messages]
        return self._model_start(serialized, said, **given)

    def _model_start(
        self,
        serialized: Any,
        prompts: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **given: Any,
    ) -> Iterable[Work]:
        self.run.check()
        site = self._call_sites.add_call(run_id, self._enter(run_id, parent_run_id))
        model = model_name_of(serialized, metadata, given)
        count = sum(len(p) if isinstance(p, list) else 1 for p in prompts)
        payload = prompt_payload(json.dumps(prompts, sort_keys=True, default=str), count)
        key = self.run.attempt(site.key_of("model", model, payload, None))
        call = _step(site, "llm_call", model, payload, {"model": model}, key)
        self._calls[run_id] = call
        return [call]

    # -- after -------------------------------------------------------------------------

    def released(self, run_id: UUID, decision: PolicyDecision) -> None:
        """A call of the framework may go on."""
        self._released.setdefault(run_id, decision)

    def _model_end(self, response: Any, *, run_id: UUID, **_: Any) -> Iterable[Work]:
        call = self._calls.get(run_id)
        yield from self._ended(run_id, ending_of(None))
        usage = tokens_of(response)
        if call is not None and usage is not None:
            yield usage_of(call, usage[0] or call.action_name, usage[1], usage[2])

    def _tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> Iterable[Work]:
        failed = getattr(output, "status", None) == "error"
        return self._ended(run_id, HANDLED if failed else ending_of(None))

    def _error(self, error: BaseException, *, run_id: UUID, **_: Any) -> Iterable[Work]:
        return self._ended(run_id, self.run.ending(error))

    def _end(self, result: Any, *, run_id: UUID, **_: Any) -> Iterable[Work]:
        return self._ended(run_id, None)

    def _ended(self, run_id: UUID, ending: Ending | None) -> list[Work]:
        self._calls.pop(run_id, None)
        self._leave(run_id)
        decision = self._released.pop(run_id, None)
        return [] if decision is None or ending is None else [(decision, ending)]

    on_chain_start = _Hook(_chain_start)
    on_tool_start = _Hook(_tool_start)
    on_retriever_start = _Hook(_retriever_start)
    on_chat_model_start = _Hook(_chat_model_start)
    on_llm_start = _Hook(_model_start)
    on_llm_end = _Hook(_model_end)
    on_chain_end = on_chain_error = _Hook(_end)
    on_tool_end = on_retriever_end = _Hook(_tool_end)
    on_llm_error = on_tool_error = on_retriever_error = _Hook(_error)


def is_past(handler: Any) -> bool:
    """Whether it is the handler of a run that is over."""
    return isinstance(handler, Governor) and not handler.run.is_open()


@contextmanager
def apart_from_past() -> Iterator[None]:
    """A context may outlive its run. What is governed there is no part of that run, nor of the
    step in it that the framework remembers."""
    config = var_child_runnable_config.get() or {}
    callbacks: Any = config.get("callbacks") or ()
    if not any(map(is_past, getattr(callbacks, "handlers", callbacks))):
        yield
        return
    token = var_child_runnable_config.set(None)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


_ACTIVE: ContextVar[BaseCallbackHandler | None] = ContextVar("countersign_governor", default=None)
register_configure_hook(_ACTIVE, inheritable=True)
_HERE: ContextVar[UUID | None] = ContextVar("countersign_here", default=None)
"""The innermost call, on versions of Python on which the framework does not report it."""


def _step(
    site: CallSite,
    kind: str,
    name: str,
    payload: dict[str, Any],
    metadata: dict[str, Any] | None = None,
    key: str | None = None,
) -> Step:
    return Step(site.agent, kind, name, payload, site.parent_agent, metadata, key)


def _without_injected(inputs: dict[str, Any]) -> dict[str, Any]:
    """The arguments without what the framework adds to them, such as its store."""
    return {name: value for name, value in inputs.items() if not _is_framework(value)}


def _is_framework(value: Any) -> bool:
    if isinstance(value, (BaseMessage, Document)):
        return False  # data, which a tool may well be given
    return type(value).__module__.partition(".")[0] in ("langgraph", "langchain", "langchain_core")
