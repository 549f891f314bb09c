"""The hooks of one run of the OpenAI Agents SDK."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from agents import FunctionTool, LocalShellTool, RunHooks, ShellTool
from agents.models import get_default_model
from agents.tool import CustomTool

from countersign._permit import Denied, Permit
from countersign.adapters._agent_runs import (
    AgentAction,
    AgentRun,
    current_agent_run,
    model_call,
    name_of_agent,
    prompt_text,
    record_only,
    reporting,
    request_permit,
    with_defaults,
)
from countersign.adapters._outcomes import ending_of

__all__ = ["Hooks"]

_GATED = "_countersign_gated"


class Hooks(RunHooks[Any]):
    """Records what a run is about to do, then calls the hooks that the caller gave."""

    def __init__(self, run: AgentRun, options: Mapping[str, Any]) -> None:
        self._run = run
        self._theirs: RunHooks[Any] = options.get("hooks") or RunHooks()
        self._config = options.get("run_config")
        self._model: tuple[Permit, AgentAction] | None = None  # the call that is under way
        self._named: defaultdict[int, list[Permit]] = defaultdict(list)
        self._decided: dict[int, tuple[Any, Permit | Denied]] = {}
        self.ready = asyncio.Event()
        """Set once the chain is open."""
        self.ready.set()
        run.hooks = self

    def added_to(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {**options, "hooks": self}

    def take(self, context: Any) -> Permit | Denied | None:
        """Take what was decided about a call of a tool before its time-out began. The SDK passes
        the same context to the hook and to the tool, and no other call has it. A model may use the
        id of a call, or its input, twice."""
        known, decided = self._decided.pop(id(context), (None, None))
        return decided if known is context else None

    async def _begin(self, agent: Any) -> str:
        await self.ready.wait()
        self._run.check()
        name = name_of_agent(agent)
        self._run.enter(name)
        return name

    # -- models --------------------------------------------------------------------------

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: str | None, input_items: Any
    ) -> None:
        name = await self._begin(agent)
        model = _model_of(agent, self._config)
        prompt = prompt_text([system_prompt, input_items])
        action = model_call(self._run, name, model, prompt, len(input_items))
        permit = await request_permit(self._run, action)
        assert isinstance(permit, Permit)
        self._run.begin(permit)
        self._model = permit, action
        await self._theirs.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        if self._model is not None:
            (permit, action), self._model = self._model, None
            await self._run.end(permit, ending_of(None))
            usage = response.usage
            if usage.input_tokens or usage.output_tokens:
                await record_only(self._run, action.usage(usage.input_tokens, usage.output_tokens))
        await self._theirs.on_llm_end(context, agent, response)

    async def broken_off(self, error: BaseException) -> None:
        """The run ends with an error. If it is the model's, its call has failed."""
        if self._model is not None and error is not self._run.denial:
            (permit, _), self._model = self._model, None
            await self._run.end(permit, ending_of(error))

    # -- agents --------------------------------------------------------------------------

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        await self._begin(agent)
        await self._theirs.on_agent_start(context, agent)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        self._run.check()
        await self._theirs.on_agent_end(context, agent, output)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        name = await self._begin(from_agent)
        payload = {"from": name, "to": name_of_agent(to_agent)}
        action = AgentAction(name, "hand_off", payload, "state_update", self._run.parent)
        await record_only(self._run, action)
        self._run.enter(name_of_agent(to_agent))
        await self._theirs.on_handoff(context, from_agent, to_agent)

    # -- tools ---------------------------------------------------------------------------

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        name = await self._begin(agent)
        if isinstance(tool, (FunctionTool, CustomTool)):
            _gate_invocation(tool)
            given = str(context.tool_arguments)
            action = _action_of(self._run, name, tool, given)
            decided = await request_permit(self._run, action, tell_model=self._run.tell_model)
            if isinstance(decided, Permit):
                self._run.begin(decided)
            self._decided[id(context)] = context, decided
        elif isinstance(tool, (LocalShellTool, ShellTool)) and tool.executor is not None:
            _gate_executor(tool)  # which learns the commands
        else:
            permit = await request_permit(
                self._run, AgentAction(name, tool.name, {}, parent=self._run.parent)
            )
            assert isinstance(permit, Permit)
            self._run.begin(permit)
            self._named[id(tool)].append(permit)
        await self._theirs.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        if self._named.get(id(tool)):
            await self._run.end(self._named[id(tool)].pop(0), ending_of(None))
        self._run.check()
        await self._theirs.on_tool_end(context, agent, tool, result)


def _action_of(run: AgentRun, agent: str, tool: Any, given: str) -> AgentAction:
    try:
        arguments = json.loads(given or "{}")
    except ValueError:
        arguments = given
    if not isinstance(arguments, Mapping):
        arguments = {"input": arguments}
    schema = getattr(tool, "params_json_schema", None)
    return AgentAction(agent, tool.name, with_defaults(arguments, schema), parent=run.parent)


def _gate_invocation(tool: Any) -> None:
    """Let the body of a function tool come through a gate. The SDK's own invoker makes a text of
    what the body raises: the gate is inside of it, and learns the error's type."""
    invoker = tool.on_invoke_tool
    owner, attribute = (
        (invoker, "_invoke_tool_impl")
        if hasattr(invoker, "_invoke_tool_impl")
        else (tool, "on_invoke_tool")
    )
    body = getattr(owner, attribute)
    if hasattr(body, _GATED):
        return

    @functools.wraps(body)
    async def gate(context: Any, given: str) -> Any:
        run = current_agent_run()
        if run is None:
            return await _result(body(context, given))
        hooks: Hooks | None = getattr(run, "hooks", None)
        decided = hooks.take(context) if hooks is not None else None
        if decided is None:
            action = _action_of(run, run.agent, tool, given)
            decided = await request_permit(run, action, tell_model=run.tell_model)
        return await _carry_out(run, decided, lambda: body(context, given))

    setattr(gate, _GATED, True)
    setattr(owner, attribute, gate)


def _gate_executor(tool: Any) -> None:
    """Let the commands of a shell tool come through a gate."""
    body = tool.executor
    if hasattr(body, _GATED):
        return

    async def gate(request: Any) -> Any:
        run = current_agent_run()
        if run is None:
            return await _result(body(request))
        action = getattr(request.data, "action", request.data)
        action = AgentAction(run.agent, tool.name, {"action": action}, parent=run.parent)
        decided = await request_permit(run, action, tell_model=run.tell_model)
        return await _carry_out(run, decided, lambda: body(request))

    setattr(gate, _GATED, True)
    tool.executor = gate


async def _carry_out(run: AgentRun, decided: Permit | Denied, body: Any) -> Any:
    if isinstance(decided, Denied):
        return decided.text
    async with reporting(run, decided):
        return await _result(body())


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _model_of(agent: Any, config: Any) -> str:
    given = config.get("model") if isinstance(config, Mapping) else getattr(config, "model", None)
    model = given or agent.model or get_default_model()
    return model if isinstance(model, str) else str(getattr(model, "model", type(model).__name__))
