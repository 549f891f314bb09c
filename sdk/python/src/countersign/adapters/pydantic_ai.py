"""Governs agents of Pydantic AI.

::

    agent = govern(Agent("openai:gpt-5", name="clerk", tools=[...]))
    await agent.run("refund order 7")
    print(countersign.adapters.last_chain().receipt["receipt_number"])

Hooks: a ``WrapperAgent``, through whose ``iter`` every way of running an agent comes, and a
capability that wraps the assembled toolset (``call_tool``), the model that serves a request
(``request``, ``request_stream``) and the functions that process the output. They are next to the
bodies: what other capabilities make of the arguments is what is recorded. A second capability,
around all others, records the tools that those carry out themselves.

They cannot see native tools, which the model's provider runs; tools that are deferred and carried
out elsewhere; the models inside of a ``FallbackModel``, which is one model to them; requests that
``BatchModelRequests`` sends; messages that a capability has the provider compact
(``compact_messages``), since capabilities get the model itself; and the tools of another agent that
is run inside of a tool and is not governed itself. Realtime sessions are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from countersign._permit import Denied, OnDenial
from countersign._scope import enter, leave
from countersign.adapters._agent_runs import (
    AgentAction,
    AgentRun,
    Governance,
    Reader,
    keep_last_chain,
    model_call,
    name_of_agent,
    performing,
    prompt_text,
    record_only,
    reporting,
    request_permit,
    with_defaults,
)
from countersign.adapters._shared import missing_extra
from countersign.exceptions import ConfigurationError

try:
    from pydantic_ai import ModelRetry
    from pydantic_ai.agent import AbstractAgent, WrapperAgent
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
    from pydantic_ai.messages import ModelMessagesTypeAdapter
    from pydantic_ai.models.wrapper import WrapperModel
    from pydantic_ai.toolsets import WrapperToolset
except ImportError as error:
    raise missing_extra("pydantic-ai", error) from error

__all__ = ["govern"]


def govern(
    agent: AbstractAgent[Any, Any],
    chain_name: str = "pydantic_ai_workflow",
    metadata: Mapping[str, Any] | None = None,
    *,
    on_denial: OnDenial = "raise",
) -> WrapperAgent[Any, Any]:
    """An agent around the given one whose every run is governed.

    It can be used wherever an agent is; the one that was given stays as it is. With
    ``on_denial="tell_model"`` the denial of a tool call is the tool's result, and the run goes on.
    """
    if not isinstance(agent, AbstractAgent):
        raise TypeError(f"govern takes an agent of pydantic_ai, not a {type(agent).__name__}")
    if isinstance(agent, _Governed):
        agent = agent.wrapped
    return _Governed(agent, Governance(chain_name, metadata, on_denial))


class _Governed(WrapperAgent[Any, Any]):
    def __init__(self, wrapped: AbstractAgent[Any, Any], governance: Governance) -> None:
        super().__init__(wrapped)
        self._governance = governance

    @asynccontextmanager
    async def iter(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        async with self._governance.opened(name_of_agent(self)) as run:
            given = kwargs.get("capabilities") or ()
            kept = [capability for capability in given if not isinstance(capability, _Events)]
            run.reader = next((c.reader for c in given if isinstance(c, _Events)), None)
            hooks = _Hooks(run)
            kwargs["capabilities"] = [*kept, hooks, _OuterHooks(run, hooks.names)]
            before = enter(run)
            try:
                async with self.wrapped.iter(*args, **kwargs) as agent_run:
                    yield agent_run
            finally:
                leave(run, before)

    def run_sync(self, *args: Any, **kwargs: Any) -> Any:
        if self.name is None and kwargs.get("infer_name", True):
            # Here: further in, the caller's name for the agent is this method's.
            self._infer_name(inspect.currentframe())
        with keep_last_chain():
            return super().run_sync(*args, **{**kwargs, "infer_name": False})

    def run_stream_events(self, *args: Any, **kwargs: Any) -> Any:
        if self.name is None and kwargs.get("infer_name", True):
            self._infer_name(inspect.currentframe())
        events = _Events()
        capabilities = [*(kwargs.get("capabilities") or ()), events]
        given = {**kwargs, "capabilities": capabilities, "infer_name": False}
        return events.read(super().run_stream_events(*args, **given))

    def _open_realtime_session(self, *args: Any, **kwargs: Any) -> Any:
        raise ConfigurationError(
            "a realtime session cannot be governed and was not opened: use run or run_stream"
        )

    # An offer's answer and a client's secret carry the agent's tools into such a session.
    _resolve_realtime_session = _open_realtime_session


class _Events(AbstractCapability[Any]):
    """The reader of ``run_stream_events``. It is no capability: among those that are given to the
    run, it comes to ``iter``, which is called in a task of its own."""

    def __init__(self) -> None:
        self.reader = Reader()

    @asynccontextmanager
    async def read(self, stream: Any) -> AsyncGenerator[Any]:
        async with stream as events:
            close = events.aclose

            async def aclose() -> None:
                self.reader.leave(None)
                await close()

            events.aclose = aclose
            try:
                yield events
            except BaseException as error:
                self.reader.leave(error)
                raise


class _Hooks(AbstractCapability[Any]):
    """The hooks of one run."""

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self.names: set[str] = set()
        """The tools that are recorded right before their bodies."""

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: Any) -> WrapperToolset[Any]:
        return _Toolset(toolset, self._run, self.names)

    def get_wrapper_model(self, model: Any) -> WrapperModel:
        return _Model(model, self._run)

    async def wrap_output_process(
        self, ctx: Any, *, output_context: Any, output: Any, handler: Any
    ) -> Any:
        if not output_context.has_function:
            return await handler(output)
        call = output_context.tool_call
        name = output_context.function_name or (call and call.tool_name) or "output"
        given = output if isinstance(output, Mapping) else {"output": output}
        return await _carry_out(self._run, name, given, lambda: handler(output), _retry)


class _OuterHooks(AbstractCapability[Any]):
    """Stands before the tools that other capabilities add around the assembled toolset, such as one
    that runs code, and carry out themselves."""

    def __init__(self, run: AgentRun, inner: set[str]) -> None:
        self._run = run
        self._inner = inner

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    def get_wrapper_toolset(self, toolset: Any) -> WrapperToolset[Any]:
        return _OuterToolset(toolset, self._run, self._inner)


def _retry(text: str) -> Any:
    # The result of an output function is the run's: the model is told by another turn.
    raise ModelRetry(text)


async def _carry_out(
    run: AgentRun, name: str, given: Mapping[str, Any], body: Any, tell: Any
) -> Any:
    """Record a call; carry it out and report how it ended, or tell the model that it may not be."""
    permit = await request_permit(
        run, AgentAction(run.agent, name, given, parent=run.parent), tell_model=run.tell_model
    )
    if isinstance(permit, Denied):
        return tell(permit.text)
    async with reporting(run, permit):
        return await body()


@dataclass
class _Toolset(WrapperToolset[Any]):
    run: AgentRun
    names: set[str]

    async def get_tools(self, ctx: Any) -> dict[str, Any]:
        tools = await super().get_tools(ctx)
        self.names.clear()
        self.names.update(tools)
        return tools

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        given = with_defaults(tool_args, tool.tool_def.parameters_json_schema)

        async def body() -> Any:
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)

        return await _carry_out(self.run, name, given, body, str)


@dataclass
class _OuterToolset(_Toolset):
    async def get_tools(self, ctx: Any) -> dict[str, Any]:
        return await self.wrapped.get_tools(ctx)

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        if name in self.names:
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)
        return await super().call_tool(name, tool_args, ctx, tool)


def _text_of(messages: Any) -> str:
    # A prompt grows with every turn, and the framework's serializer is much faster.
    try:
        return ModelMessagesTypeAdapter.dump_json(messages).decode()
    except Exception:
        return prompt_text(messages)


class _Model(WrapperModel):
    def __init__(self, wrapped: Any, run: AgentRun) -> None:
        super().__init__(wrapped)
        self._run = run

    async def request(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        action = self._action_of(messages)
        async with performing(self._run, action):
            response = await self.wrapped.request(messages, *args, **kwargs)
        await self._note(action, response)
        return response

    @asynccontextmanager
    async def request_stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        action = self._action_of(messages)
        async with (
            performing(self._run, action),
            self.wrapped.request_stream(messages, *args, **kwargs) as response,
        ):
            yield response
        await self._note(action, response)

    def _action_of(self, messages: Any) -> AgentAction:
        run = self._run
        prompt = _text_of(messages)
        return model_call(run, run.agent, self.model_name or "model", prompt, len(messages))

    async def _note(self, action: AgentAction, response: Any) -> None:
        usage = response.usage
        if usage.input_tokens or usage.output_tokens:
            model = response.model_name or action.name
            await record_only(
                self._run, action.usage(usage.input_tokens, usage.output_tokens, model)
            )
