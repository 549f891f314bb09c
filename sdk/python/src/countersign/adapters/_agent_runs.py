"""Runs and actions of the frameworks whose hooks are async: they are recorded as those of
``countersign.governed`` and ``countersign.governed_run``, with the agents' names.
"""

from __future__ import annotations

import json
from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

from countersign._action import Action
from countersign._chain import Chain, ChainScope
from countersign._enforce import arguments_changed
from countersign._loops import run_to_completion
from countersign._permit import Denied, OnDenial, Permit, Request
from countersign._run import GovernedRun, raise_final
from countersign._scope import current_scope, inherit_in_threads, innermost_scope, why_closed
from countersign.adapters._content import Content, prompt_payload
from countersign.adapters._outcomes import Ending, ending_of
from countersign.adapters._run_chains import LAST_CHAIN, RunChain
from countersign.exceptions import ConfigurationError

__all__ = [
    "AgentAction",
    "AgentRun",
    "Governance",
    "Reader",
    "RunLifetime",
    "current_agent_run",
    "keep_last_chain",
    "model_call",
    "name_of_agent",
    "performing",
    "prompt_text",
    "record_only",
    "reporting",
    "request_permit",
    "with_defaults",
]


def name_of_agent(agent: Any) -> str:
    """The frameworks take a blank name too, under which the service records nothing."""
    name = str(getattr(agent, "name", None) or "")
    return name if name.strip() else "agent"


@dataclass(frozen=True)
class Governance:
    """How the runs of one governed object are recorded."""

    chain_name: str
    metadata: Mapping[str, Any] | None = None
    on_denial: OnDenial = "raise"

    def __post_init__(self) -> None:
        if self.on_denial not in ("raise", "tell_model"):
            raise ConfigurationError('on_denial must be "raise" or "tell_model"')

    def begin(self, agent: str) -> AgentRun:
        """A run, within the run or the open chain that is around it, or on a chain of its own. It
        is not made the scope of the context: a generator yields to code that is no part of the
        run. See :func:`countersign._scope.entered`."""
        inherit_in_threads()
        around = current_scope()
        tell_model = self.on_denial == "tell_model"
        if isinstance(around, ChainScope):
            return AgentRun(around.chain, agent, around, tell_model)
        return AgentRun(RunChain(self.chain_name, metadata=self.metadata), agent, None, tell_model)

    @asynccontextmanager
    async def opened(self, agent: str) -> AsyncIterator[AgentRun]:
        """:meth:`begin`, and carry it out in the block."""
        run = self.begin(agent)
        async with RunLifetime(run):
            yield run


@dataclass
class Reader:
    """Who reads the stream of a run that a task of its own carries out. That task is cancelled when
    the reader leaves, and would not know why."""

    left: bool = False
    error: BaseException | None = None
    """What made the reader leave, if it was not of its own accord."""

    def leave(self, error: BaseException | None) -> None:
        if not self.left:
            self.left, self.error = True, error

    def reason_for(self, final: BaseException | None) -> BaseException | None:
        """Why the run ended, if it ended with that."""
        return self.error if self.left and isinstance(final, CancelledError) else final


class RunLifetime:
    """Open the run's chain, unless it is another's, and complete it at the end. At the end the
    run's denial is raised, whatever has become of it inside.

    It is no generator: some frameworks run their loops on after they have ended its generators.
    """

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self._latches: list[Callable[[Exception], object]] = []

    async def __aenter__(self) -> None:
        run = self._run
        if not run.is_nested:
            await run.chain.__aenter__()
            _remember(run.chain)
        session = run.session
        assert session is not None
        self._latches = session.latches
        self._latches.append(run.deny)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run = self._run
        self._latches.remove(run.deny)
        try:
            await run.leave()
        finally:  # a run that is cancelled once more here completes its chain too
            final = run._final_error(error)
            if not run.is_nested:
                ending = final if run.reader is None else run.reader.reason_for(final)
                # Whoever reads a stream may have had enough; that is no failure.
                failed = None if isinstance(ending, GeneratorExit) else ending
                await run.chain.__aexit__(None if failed is None else type(failed), failed, None)
        raise_final(final, error)


_FROM_SYNC: ContextVar[list[Chain] | None] = ContextVar("countersign_from_sync", default=None)


@contextmanager
def keep_last_chain() -> Iterator[None]:
    """Around a sync call that runs an event loop: what is set in its tasks is not seen here, and
    :func:`last_chain` is asked here."""
    chains: list[Chain] = []
    token = _FROM_SYNC.set(chains)
    try:
        yield
    finally:
        _FROM_SYNC.reset(token)
        if chains:
            LAST_CHAIN.set(chains[0])


def _remember(chain: Chain) -> None:
    LAST_CHAIN.set(chain)
    chains = _FROM_SYNC.get()
    if chains is not None:
        chains.append(chain)


class AgentRun(GovernedRun):
    """One run of a framework's agent."""

    def __init__(
        self, chain: Chain, agent: str, outer: ChainScope | None, tell_model: bool
    ) -> None:
        super().__init__(chain, agent, outer)
        self.is_nested = outer is not None
        """Whether the chain is another's, which completes it."""
        self.tell_model = tell_model
        """Whether the denial of a tool call is told to the model."""
        self.parent = outer.agent if isinstance(outer, AgentRun) else None
        """The agent whose tool started the run."""
        self.reader: Reader | None = None
        self.hooks: Any = None
        """Those of the framework's run, where the adapter finds them by the run."""
        self._open: dict[Permit, None] = {}

    def enter(self, agent: str) -> None:
        """Another agent acts in the run from here on."""
        self._agent = agent

    def begin(self, permit: Permit) -> None:
        """A body was released that ends in another hook, if it ends."""
        self._open[permit] = None

    async def end(self, permit: Permit, ending: Ending) -> None:
        """A body has ended. A cancelled task reports first."""
        self._open.pop(permit, None)
        steps = permit.reporting(ending.outcome, ending.detail)
        await run_to_completion(permit._session.transport.run_async(steps))

    async def leave(self) -> None:
        """The run ends: what became of the bodies that are still open is not known."""
        try:
            for permit in tuple(self._open):
                await self.end(permit, Ending("unknown", "the run ended before it did"))
        finally:
            self._ended = True


def current_agent_run() -> AgentRun | None:
    """The run that this code is part of. What it started and is no part of it any more is
    refused: its work after it has ended, and what a forked process does."""
    scope = innermost_scope()
    if not isinstance(scope, AgentRun):
        return None
    if not scope.is_open():
        raise RuntimeError("nothing was carried out: " + why_closed(scope))
    return scope


@dataclass(frozen=True)
class AgentAction:
    """One action of an agent, before it is decided."""

    agent: str
    name: str
    arguments: Mapping[str, Any]
    action_type: str = "tool_call"
    parent: str | None = None
    metadata: Mapping[str, Any] | None = None

    def usage(self, input_tokens: int, output_tokens: int, model: str | None = None) -> AgentAction:
        """What a model call took, known only afterwards: an action of its own, from which the
        service computes the cost."""
        usage = {
            "model": model or self.name,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
        }
        return AgentAction(self.agent, self.name, {}, "llm_usage", self.parent, usage)


def prompt_text(messages: Any) -> str:
    """A prompt as text, for its digest."""
    return json.dumps(Content(messages).value, sort_keys=True, default=str)


def model_call(run: AgentRun, agent: str, model: str, prompt: str, count: int) -> AgentAction:
    """A model call. The prompt's words would be taken for what the agent does: its digest is
    evidence enough."""
    return AgentAction(
        agent, model, prompt_payload(prompt, count), "llm_call", run.parent, {"model": model}
    )


class _Request(Request):
    def __init__(self, run: AgentRun, action: AgentAction, tell_model: bool) -> None:
        session = run.session
        if session is None or not run.is_open():
            raise RuntimeError(f"{action.name} was not called: {why_closed(run)}")
        self._agent_action = action
        self._content = Content(action.arguments)
        super().__init__(
            run,
            session,
            action.agent,
            action.action_type,
            action.name,
            action.arguments,
            None,
            (),
            tell_model,
        )

    def _action(self) -> Action:
        action = self._agent_action
        return Action(
            self._session.config._sanitizer,
            action.agent,
            action.action_type,
            action.name,
            self._content.value,
            action.parent,
            action.metadata,
            None,  # a key of its own: no two runs of a body share a record
        )


async def request_permit(
    run: AgentRun, action: AgentAction, *, tell_model: bool = False
) -> Permit | Denied:
    """Returns when the action may be carried out, once. A denial is raised and ends the run, or,
    where the model is told, is the result."""
    request = _Request(run, action, tell_model)
    permit = await request.decide_async()
    if isinstance(permit, Permit) and request._content.read_again() != request._content.value:
        violation = arguments_changed(action.name, permit.decision)
        await run.end(permit, ending_of(violation))
        raise run.deny(violation)
    return permit


@asynccontextmanager
async def performing(run: AgentRun, action: AgentAction) -> AsyncIterator[None]:
    """Record an action whose denial nobody is told of; the block carries it out."""
    permit = cast("Permit", await request_permit(run, action))
    async with reporting(run, permit):
        yield


@asynccontextmanager
async def reporting(run: AgentRun, permit: Permit) -> AsyncIterator[None]:
    """Report how the block ended, which carries an action out."""
    try:
        yield
    except BaseException as error:
        await run.end(permit, ending_of(error))
        raise
    await run.end(permit, ending_of(None))


async def record_only(run: AgentRun, action: AgentAction) -> None:
    """Record what has no body: usage."""
    await request_permit(run, action)


def with_defaults(given: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """The arguments of a call, and the defaults of those that were left out, by the JSON schema
    of the tool's parameters."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return dict(given)
    defaults = {
        name: member["default"]
        for name, member in properties.items()
        if name not in given and isinstance(member, Mapping) and "default" in member
    }
    return {**given, **defaults}
