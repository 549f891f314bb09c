"""Governs agents of the OpenAI Agents SDK.

::

    runner = GovernedRunner(chain_name="complaints")
    result = await runner.run(agent, "refund order 7")  # and run_sync, run_streamed
    print(countersign.adapters.last_chain().receipt["receipt_number"])

Hooks: the ``RunHooks`` of the run (``on_tool_start``, ``on_llm_start``, ``on_handoff`` and their
ends), which come before a tool's time-out begins; a tool's own ``on_invoke_tool`` or ``executor``,
which is wrapped when the tool is first started, for the outcome and to tell the model; and the
SDK's own runner, which every other one comes to, and which starts the runs of agents that are
tools. Its class is wrapped once; outside of governed runs it does what it did.

They cannot see tools that the model's provider runs (web search, file search, code interpreter,
hosted MCP and shell), nor the arguments of computer and patch tools, which are decided by their
names. A handoff is seen when its own callback has run, before the other agent acts. What the SDK
tries again of a model call, by its retry policy, is one call. Realtime and voice sessions have
no such hooks.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from countersign._fork import in_child
from countersign._permit import OnDenial
from countersign._scope import entered, innermost_scope
from countersign.adapters._agent_runs import (
    AgentRun,
    Governance,
    RunLifetime,
    current_agent_run,
    keep_last_chain,
    name_of_agent,
)
from countersign.adapters._shared import missing_extra

try:
    from agents import Agent, RunResult, RunResultStreaming
    from agents.run import AgentRunner, get_default_agent_runner

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
        _govern_inner_runs()
        default = get_default_agent_runner()
        return _Runner(default.run, default.run_streamed, self._governance)


class _Runner(AgentRunner):
    """Governs the runs that it starts, or that are started inside of one."""

    def __init__(
        self, run: Callable[..., Any], run_streamed: Callable[..., Any], governance: Governance
    ) -> None:
        self._run = run
        self._run_streamed = run_streamed
        self._governance = governance

    async def run(self, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002
        run = self._governance.begin(name_of_agent(starting_agent))
        hooks = Hooks(run, options)
        async with RunLifetime(run):
            with _started(run):
                try:
                    return await self._run(starting_agent, input, **hooks.added_to(options))
                except BaseException as error:
                    await hooks.broken_off(error)
                    raise

    def run_streamed(self, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002
        run = self._governance.begin(name_of_agent(starting_agent))
        hooks = Hooks(run, options)
        hooks.ready.clear()
        with _started(run):  # the task that is started here is part of the run
            result = self._run_streamed(starting_agent, input, **hooks.added_to(options))
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

        result.stream_events = stream_events
        return result


_STARTING: ContextVar[AgentRun | None] = ContextVar("countersign_openai_starting", default=None)
"""The run whose own call of the SDK's runner is still to come."""


@contextmanager
def _started(run: AgentRun) -> Iterator[None]:
    token = _STARTING.set(run)
    try:
        with entered(run):
            yield
    finally:
        _STARTING.reset(token)


def _run_around() -> AgentRun | None:
    """The run that a call of the SDK's runner is to be a part of: that of an agent that is a tool,
    or is run by one."""
    starting = _STARTING.get()
    if starting is not None and starting is innermost_scope():
        _STARTING.set(None)  # the chain of a stream is opened after this
        return None
    return current_agent_run()


_lock = threading.Lock()
_WRAPPED = "_countersign_wrapped"


@in_child
def _after_fork() -> None:
    # Another thread of the parent may have held the lock.
    global _lock
    _lock = threading.Lock()


def _govern_inner_runs() -> None:
    """Have the SDK's runner, whoever has made it, govern what is run inside of a governed run."""
    with _lock:
        if hasattr(AgentRunner.run, _WRAPPED):
            return
        run, run_streamed = AgentRunner.run, AgentRunner.run_streamed

        def inner(runner: AgentRunner, around: AgentRun) -> _Runner:
            governance = Governance("", None, "tell_model" if around.tell_model else "raise")
            begin = functools.partial(run, runner), functools.partial(run_streamed, runner)
            return _Runner(*begin, governance)

        @functools.wraps(run)
        async def governed(self: AgentRunner, *args: Any, **options: Any) -> Any:
            around = _run_around()
            if around is None:
                return await run(self, *args, **options)
            return await inner(self, around).run(*args, **options)

        @functools.wraps(run_streamed)
        def governed_stream(self: AgentRunner, *args: Any, **options: Any) -> Any:
            around = _run_around()
            if around is None:
                return run_streamed(self, *args, **options)
            return inner(self, around).run_streamed(*args, **options)

        setattr(governed, _WRAPPED, True)
        AgentRunner.run = governed  # type: ignore[method-assign]
        AgentRunner.run_streamed = governed_stream  # type: ignore[method-assign]


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
