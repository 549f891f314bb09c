"""Governance as a part of ``create_agent``, for agents that are called where nothing else is
governed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langgraph.config import get_config

from countersign._chain import Chain
from countersign.adapters._content import prompt_payload
from countersign.adapters._langgraph_errors import as_bubble_up, body_ending
from countersign.adapters._outcomes import HANDLED, Ending
from countersign.adapters._shared import Run, Step, current_run, step_key, usage_of

__all__ = ["GovernanceMiddleware"]


class GovernanceMiddleware(AgentMiddleware[Any, Any]):
    """Records the tool and model calls of an agent in a chain that the caller has opened.

    Put it last in the list of middleware, so that what it records is what is carried out. Within
    a run of a governed graph it does nothing: the calls are recorded there. After a denial every
    further call on this middleware is refused, so make one for each chain::

        with countersign.Chain("support") as chain:
            agent = create_agent(model, tools, middleware=[GovernanceMiddleware(chain)])
            agent.invoke(...)
    """

    def __init__(
        self, chain: Chain, agent_name: str = "agent", parent_agent_name: str | None = None
    ) -> None:
        super().__init__()
        self._run = Run(chain, as_bubble_up, ending=_ending)
        self._agent = agent_name
        self._parent = parent_agent_name

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Record the call, and carry it out if it is allowed."""
        if current_run() is not None:
            return handler(request)
        try:
            with self._run.performing(self._tool_step(request)):
                return _checked(handler(request))
        except _ToolFailed as failure:
            return failure.answer

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """:meth:`wrap_tool_call` on the running event loop."""
        if current_run() is not None:
            return await handler(request)
        try:
            async with self._run.performing_async(self._tool_step(request)):
                return _checked(await handler(request))
        except _ToolFailed as failure:
            return failure.answer

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Record the call, make it if it is allowed, and record what it took."""
        if current_run() is not None:
            return handler(request)
        with self._run.performing(self._model_step(request)) as call:
            response = handler(request)
        if usage := _usage(call, response):
            self._run.record(usage)
        return response

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """:meth:`wrap_model_call` on the running event loop."""
        if current_run() is not None:
            return await handler(request)
        async with self._run.performing_async(self._model_step(request)) as call:
            response = await handler(request)
        if usage := _usage(call, response):
            await self._run.record_async(usage)
        return response

    def after_agent(self, state: Any, runtime: Any) -> None:
        """Raise the denial, whatever other middleware made of it: a tool whose answer is the
        agent's own is followed by no other call that could refuse."""
        if self._run.denial is not None:
            self._run.check()

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        """:meth:`after_agent` on the running event loop."""
        self.after_agent(state, runtime)

    def _tool_step(self, request: Any) -> Step:
        call = request.tool_call
        key = step_key(_step_id(), "tool", call["name"], call["args"], call["id"])
        return Step(self._agent, "tool_call", call["name"], call["args"], self._parent, None, key)

    def _model_step(self, request: Any) -> Step:
        said = json.dumps([[m.type, m.content] for m in request.messages], default=str)
        model = getattr(request.model, "model_name", None) or getattr(request.model, "model", None)
        name = str(model or type(request.model).__name__)
        payload = prompt_payload(said, len(request.messages))
        key = step_key(_step_id(), "model", name, payload["prompt_sha256"])
        return Step(self._agent, "llm_call", name, payload, self._parent, {"model": name}, key)


class _ToolFailed(Exception):
    """A tool's error became a text for the model, which is returned as such."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer


def _checked(answer: Any) -> Any:
    if getattr(answer, "status", None) == "error":
        raise _ToolFailed(answer)
    return answer


def _ending(error: BaseException | None) -> Ending | None:
    return HANDLED if isinstance(error, _ToolFailed) else body_ending(error)


def _step_id() -> str:
    """The node that runs, the same when it is replayed."""
    return str((get_config().get("metadata") or {}).get("langgraph_checkpoint_ns", ""))


def _usage(call: Step, response: Any) -> Step | None:
    counts = [0, 0]
    for message in getattr(response, "result", ()):
        usage = getattr(message, "usage_metadata", None) or {}
        counts[0] += int(usage.get("input_tokens") or 0)
        counts[1] += int(usage.get("output_tokens") or 0)
    return usage_of(call, call.action_name, *counts) if any(counts) else None
