"""Governs agents of the OpenAI Agents SDK.

::

    runner = GovernedRunner(chain_name="complaints")
    result = await runner.run(agent, "refund order 7")  # and run_sync, run_streamed
    print(countersign.adapters.last_chain().receipt["receipt_number"])

Hooks: the ``RunHooks`` of the run (``on_tool_start``, ``on_llm_start``, ``on_handoff`` and their
ends), which come before a tool's time-out begins; a tool's own ``on_invoke_tool`` or ``executor``,
which is wrapped when the tool is first started, for the outcome and to tell the model; and the
SDK's default runner, which starts the runs of agents that are tools.

They cannot see tools that the model's provider runs (web search, file search, code interpreter,
hosted MCP and shell), nor the arguments of computer and patch tools, which are decided by their
names. A handoff is seen when its own callback has run, before the other agent acts. What the SDK
tries again of a model call, by its retry policy, is one call. Realtime and voice sessions have
no such hooks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from countersign._permit import OnDenial
from countersign._scope import entered
from countersign.adapters._agent_runs import (
    AgentRun,
    Governance,
    RunLifetime,
    current_agent_run,
    keep_last_chain,
)
from countersign.adapters._shared import missing_extra

try:
    from agents import Agent, RunResult, RunResultStreaming
    from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner

    from countersign.adapters._openai_hooks import Hooks
except ImportError as error:
    raise missing_extra("openai-agents", error) from error

__all__ = ["GovernedRunner"]


class GovernedRunner:
    """Runs agents as ``agents.Runner`` does, and governs each run.

    With ``on_denial="tell_model"`` the denial of a tool call is the tool's result, and the run
    goes on. Computer and patch tools have no result that could be told: their denial is raised.
    """

    def __init__(
        self,
        chain_name: str = "openai_agents_workflow",
        metadata: Mapping[str, Any] | None = None,
        *,
        on_denial: OnDenial = "raise",
    ) -> None:
        self._governance = Governance(chain_name, metadata, on_denial)

    async def run(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:  # noqa: A002
        """``Runner.run``, governed."""
        result: RunResult = await self._runner().run(starting_agent, input, **options)
        return result

    def run_sync(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:  # noqa: A002
        """``Runner.run_sync``, governed."""
        with keep_last_chain():
            return self._runner().run_sync(starting_agent, input, **options)

    def run_streamed(
        self,
        starting_agent: Agent[Any],
        input: Any,  # noqa: A002
        **options: Any,
    ) -> RunResultStreaming:
        """``Runner.run_streamed``, governed. The denial is raised by ``stream_events``."""
        result: RunResultStreaming = self._runner().run_streamed(starting_agent, input, **options)
        return result

    def _runner(self) -> _Runner:
        default = get_default_agent_runner()
        if not isinstance(default, _Runner):
            default = _Runner(default, None)
            set_default_agent_runner(default)
        return _Runner(default.inner, self._governance)


class _Runner(AgentRunner):
    """Governs the runs that it starts. As the default runner it has no governance of its own:
    outside of governed runs it does what the default runner did."""

    def __init__(self, inner: AgentRunner, governance: Governance | None) -> None:
        self.inner = inner
        self._governance = governance

    async def run(self, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002
        run = self._begin(starting_agent)
        if run is None:
            return await self.inner.run(starting_agent, input, **options)
        hooks = Hooks(run, options)
        async with RunLifetime(run):
            with entered(run):
                try:
                    return await self.inner.run(starting_agent, input, **hooks.added_to(options))
                except BaseException as error:
                    await hooks.broken_off(error)
                    raise

    def run_streamed(self, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002
        run = self._begin(starting_agent)
        if run is None:
            return self.inner.run_streamed(starting_agent, input, **options)
        hooks = Hooks(run, options)
        hooks.ready.clear()
        with entered(run):  # the task that is started here is part of the run
            result = self.inner.run_streamed(starting_agent, input, **hooks.added_to(options))
        through = asyncio.create_task(_through(run, hooks, result))
        through.add_done_callback(lambda task: task.cancelled() or task.exception())
        events = result.stream_events

        async def stream_events() -> AsyncIterator[Any]:
            try:
                async for event in events():
                    yield event
            except Exception:
                await asyncio.shield(through)  # its denial, if that is why
                raise
            await asyncio.shield(through)

        result.stream_events = stream_events  # type: ignore[method-assign]
        return result

    def _begin(self, agent: Any) -> AgentRun | None:
        if self._governance is not None:
            return self._governance.begin(_name(agent))
        around = current_agent_run()  # an agent that is a tool, or is run by one
        if around is None:
            return None
        return Governance("", None, "tell_model" if around.tell_model else "raise").begin(
            _name(agent)
        )


async def _through(run: AgentRun, hooks: Hooks, result: Any) -> None:
    """The run of a stream, from the first hook to the end of its task, whoever reads it."""
    try:
        async with RunLifetime(run):
            hooks.ready.set()
            await asyncio.wait({result.run_loop_task})
            if result.run_loop_task.cancelled():
                return
            error = result.run_loop_task.exception() or result.run_loop_exception
            if error is not None:
                await hooks.broken_off(error)
                raise error
    except BaseException as error:
        if run.denial is None:
            run.deny(error if isinstance(error, Exception) else RuntimeError("the run has ended"))
        hooks.ready.set()  # what waits is refused
        raise


def _name(agent: Any) -> str:
    return str(getattr(agent, "name", None) or "agent")
