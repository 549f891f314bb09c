"""Governs the tool calls that reach an MCP server.

::

    MCPAdapter(chain_name="support-tools", agent_name="support-agent").install(server)
    server.run()  # a low-level Server, FastMCP (1.x), MCPServer (2.x) or fastmcp.FastMCP

Each session of a client is a chain, which is completed when the session ends. A call is recorded
before its tool runs, and waits for its reviewer without holding up others. A call that may not be
carried out is answered as a tool error, which the model can read; the server goes on.

It holds calls where the server looks up its handler of ``tools/call`` and where its registry calls
a tool. It does not see a tool's own function that is called directly, resources and prompts.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from countersign._action import new_key
from countersign._chain import Chain
from countersign._enforce import arguments_changed
from countersign._fork import reset_in_child
from countersign._scope import entered
from countersign._waiting import notify_of_waits
from countersign.adapters._content import Content
from countersign.adapters._outcomes import HANDLED, Ending, ending_of
from countersign.adapters._shared import missing_extra
from countersign.adapters._threads import to_thread
from countersign.exceptions import ConfigurationError

try:
    from countersign.adapters import _mcp_fastmcp as fastmcp
    from countersign.adapters import _mcp_sdk as sdk
    from countersign.adapters._mcp_caller import Caller, CallerGoneError, SessionLifetime
    from countersign.adapters._mcp_chains import (
        ChainSource,
        GivenChain,
        SessionChain,
        close_at_exit,
    )
    from countersign.adapters._mcp_permit import Permit, copy_of, current_permit
except ImportError as error:
    raise missing_extra("mcp", error) from error

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MCPAdapter"]

logger = logging.getLogger("countersign")

_GIVEN_UP = "the caller has given up"
_UNUSED = Ending("unknown", "not carried out")
_PLAIN = (str, int, float, type(None))  # types of defaults that are values

T = TypeVar("T")
Function = Callable[..., Any]


class MCPAdapter:
    """Records the tool calls of an MCP server, and keeps denied ones from running. Every call is
    recorded as a ``tool_call`` of ``agent_name``.

    With a ``chain_name``, each session of a client is a chain with that name and ``metadata``.
    Before it reaches its limits, a successor takes over, which names it in its metadata; with
    ``max_actions`` and ``max_seconds`` it does so at nine tenths of those. Calls that have no
    session, such as those over stateless HTTP, share one. With a ``chain``, all of them are
    recorded there: it is yours, and must be open while calls are served.
    """

    def __init__(
        self,
        *,
        agent_name: str,
        chain_name: str | None = None,
        chain: Chain | None = None,
        parent_agent_name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_actions: int | None = None,
        max_seconds: float | None = None,
    ) -> None:
        if (chain is None) == (chain_name is None):
            raise ConfigurationError("pass either a chain_name or an open chain to MCPAdapter")
        limits = {"max_events": max_actions, "max_duration_seconds": max_seconds}
        self._limits = {name: limit for name, limit in limits.items() if limit is not None}
        if chain is not None and (metadata is not None or self._limits):
            raise ConfigurationError("metadata and limits belong to the chain: pass them to it")
        if any(limit <= 0 for limit in self._limits.values()):
            raise ConfigurationError("max_actions and max_seconds must be positive")
        self.chain = chain
        self.agent_name = agent_name
        self.parent_agent_name = parent_agent_name
        self.last_chain: Chain | None = chain
        """The chain that was completed last, with its receipt."""
        self._chain_name = chain_name
        self._metadata = metadata
        self._given = GivenChain(chain) if chain is not None else None
        self._lock = threading.Lock()  # guards what follows
        self._shared: SessionChain | None = None
        self._sessions: WeakKeyDictionary[SessionLifetime, SessionChain] = WeakKeyDictionary()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may have held, and leave the chain
        of the calls that have no session to the parent."""
        self._lock = threading.Lock()
        self._shared = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Complete the chain of the calls that have no session. It is done at the end of the
        process too."""
        with self._lock:
            shared, self._shared = self._shared, None
        if shared is not None:
            await shared.aclose()

    def install(self, server: Any) -> None:
        """Govern every tool call of ``server``, whether its handler or tool is registered
        already or later. Installing again is harmless; the adapter that was installed last
        governs."""
        low, manager = sdk.parts_of(server)
        if low in _INSTALLED:
            _INSTALLED[low].adapter = self
            return
        gates = _INSTALLED[low] = _Gates(self, manager)
        sdk.serve_scopes(low)
        sdk.wrap_requests(low, gates.request)
        if manager is not None:
            sdk.wrap_manager(manager, gates.manager)
        if isinstance(manager, fastmcp.Registry):
            manager.hold_tools(gates.tool)

    async def handle_tool_call(
        self,
        tool_name: str,
        arguments: Mapping[str, Any] | None,
        handler: Callable[[dict[str, Any]], Any],
    ) -> Any:
        """Record the call, then return what ``handler(arguments)`` returns.

        For servers that dispatch calls themselves. The handler may be async or not; it gets a
        copy of the arguments as they were recorded. A call that may not be carried out
        returns the tool error to answer with. What the handler raises is raised.
        """

        async def body(permit: Permit) -> Any:
            result = handler(permit.arguments())
            return await result if inspect.isawaitable(result) else result

        try:
            return await self._call("call", tool_name, arguments, body)
        except _Refused as refusal:
            return sdk.error_result(refusal.denial)

    def tool(self, tool_name: str | None = None) -> Callable[[Function], Function]:
        """Decorate a tool's function, so that it is recorded under its name before it runs.

        The function becomes async; the body of one that is not runs in a worker thread. A
        denial is raised, as an error that the SDK answers as a tool error.
        """
        if callable(tool_name):
            raise TypeError("write @adapter.tool(), with parentheses")

        def decorate(function: Function) -> Function:
            name = tool_name or function.__name__
            signature = inspect.signature(function)
            parameters = signature.parameters.values()
            defaults = {p.name: p.default for p in parameters if isinstance(p.default, _PLAIN)}

            @wraps(function)
            async def governed(*args: Any, **kwargs: Any) -> Any:
                call = signature.bind(*args, **kwargs)
                call.apply_defaults()
                given = call.arguments.items()
                recorded = {k: copy_of(v) for k, v in given if not sdk.is_context(v)}
                call.arguments.update(recorded)

                async def body(_: Permit) -> Any:
                    if inspect.iscoroutinefunction(function):
                        return await function(*call.args, **call.kwargs)
                    # A callable object, or a decorator's wrapper, may return a coroutine.
                    result = await to_thread(function, *call.args, **call.kwargs)
                    return await result if inspect.isawaitable(result) else result

                try:
                    return await self._call("function", name, recorded, body, defaults)
                except _Refused as refusal:
                    raise sdk.tool_error(refusal.denial) from refusal.denial

            return governed

        return decorate

    # -- inside --------------------------------------------------------------------------

    async def _call(
        self,
        gate: str,
        name: str,
        arguments: Mapping[str, Any] | None,
        body: Callable[[Permit], Awaitable[T]],
        defaults: Mapping[str, Any] | None = None,
    ) -> T:
        """Carry out a call once it may be. Raises :class:`_Refused` when it must not."""
        source = self._source()
        current = current_permit()
        if current is not None and current.covers(gate, source, name, arguments, defaults):
            return await self._carry_out(current, body)
        permit = Permit(source, name, arguments, passed=gate)
        async with AsyncExitStack() as stack:
            try:
                permit.part = await stack.enter_async_context(source.held())
                await self._decide(permit, name, defaults)
            except Exception as denial:
                raise _Refused(denial) from denial
            if source is not self._given:
                # Governed functions that the tool calls are part of the session.
                stack.enter_context(entered(permit.part.chain._scope))
            return await self._carry_out(permit, body)

    def _source(self) -> ChainSource:
        """Where the calls of the current caller are recorded."""
        if self._given is not None:
            return self._given
        caller = _CALLER.get()
        scope = caller.scope if caller is not None else None
        with self._lock:
            if scope is None:
                if self._shared is None:
                    self._shared = close_at_exit(self._new_session())
                return self._shared
            session = self._sessions.get(scope)
            if session is None:
                session = self._sessions[scope] = self._new_session()
                scope.at_end(session.aclose)
            return session

    def _new_session(self) -> SessionChain:
        assert self._chain_name is not None
        return SessionChain(self._chain_name, self._metadata, self._limits, self._completed)

    def _completed(self, chain: Chain) -> None:
        self.last_chain = chain

    async def _decide(self, permit: Permit, name: str, defaults: Mapping[str, Any] | None) -> None:
        """Return when the call may be carried out; raise when it must not. The defaults are
        recorded too, and left to the tool."""
        assert permit.part is not None
        part, caller, key = permit.part, _CALLER.get(), new_key()
        content = Content({**(defaults or {}), **permit.arguments()})
        recording = part.chain.record_agent_action(
            self.agent_name,
            "tool_call",
            name,
            content.value,
            parent_agent_name=self.parent_agent_name,
            idempotency_key=key,
        )
        try:
            if caller is None:
                permit.decision = await recording
            else:
                with notify_of_waits(caller.tell):
                    permit.decision = await caller.while_connected(recording)
        except BaseException as error:
            if isinstance(error, CallerGoneError) or not isinstance(error, Exception):
                await self._cancel_approval(part.chain, key)
            raise
        part.learn(permit.decision)
        part.outcomes.begin(permit.decision)
        try:
            if content.read_again() != content.value:
                raise arguments_changed(name, permit.decision)
            if caller is not None and permit.decision.decision_source == "human_approval":
                await caller.check()
        except Exception:
            await part.outcomes.end_async(permit.decision, _UNUSED)
            raise

    async def _carry_out(self, permit: Permit, body: Callable[[Permit], Awaitable[T]]) -> T:
        """Run the body of a call, and report how it ended. Of the gates on its way, the first
        one reports."""
        is_first = not permit.in_use
        assert permit.part is not None
        assert permit.decision is not None
        outcomes = permit.part.outcomes
        try:
            with permit.used():
                result = await body(permit)
        except BaseException as error:
            if is_first:
                with sdk.shielded():
                    ending = ending_of(sdk.cause_of(permit.error or error))
                    await outcomes.end_async(permit.decision, ending)
            raise
        if is_first:
            await outcomes.end_async(permit.decision, _ending(permit, result))
        return result

    async def _cancel_approval(self, chain: Chain, key: str) -> None:
        """The caller is gone: nobody is to decide on its call any more."""
        with sdk.shielded():
            try:
                await chain.cancel_approval(idempotency_key=key, comment=_GIVEN_UP)
            except ConfigurationError:
                pass  # it did not wait for an approval
            except Exception as fault:
                logger.warning(
                    "countersign: the approval of a call that was given up was not cancelled (%s)",
                    type(fault).__name__,
                )


class _Refused(Exception):
    """A call that must not be carried out, told apart from what its body raises."""

    def __init__(self, denial: Exception) -> None:
        super().__init__(str(denial))
        self.denial = denial


class _Gates:
    """Where a server's calls are held, on behalf of the adapter that was installed last."""

    def __init__(self, adapter: MCPAdapter, manager: Any) -> None:
        self.adapter = adapter
        self._manager = manager

    async def request(
        self, name: str, arguments: Any, carry_out: Callable[[Any], Awaitable[Any]], caller: Caller
    ) -> Any:
        """A call that came in by the protocol: a denial is its answer."""
        token = _CALLER.set(caller)
        try:
            return await self._call("request", name, arguments, carry_out)
        except _Refused as refusal:
            return sdk.error_answer(refusal.denial)
        finally:
            _CALLER.reset(token)

    async def manager(
        self, name: str, arguments: Any, carry_out: Callable[[Any], Awaitable[T]]
    ) -> T:
        """A call made by the program, or by another tool: a denial is raised."""
        try:
            return await self._call("manager", name, arguments, carry_out)
        except _Refused as refusal:
            raise sdk.tool_error(refusal.denial) from refusal.denial

    async def tool(self, tool: Any, arguments: Any, carry_out: Callable[[Any], Awaitable[T]]) -> T:
        """A tool that the server has given out, and that another server or the program may run."""
        permit = current_permit()
        if permit is not None and permit.takes(tool):
            self._hand_on(permit, tool)
            return await carry_out(arguments)
        given, defaults = dict(arguments or {}), fastmcp.defaults_in(tool)

        async def body(permit: Permit) -> T:
            permit.expect_tool()
            permit.takes(tool)
            return await carry_out(permit.arguments())

        try:
            return await self.adapter._call("tool", str(tool.name), given, body, defaults)
        except _Refused as refusal:
            raise sdk.tool_error(refusal.denial) from refusal.denial

    def _hand_on(self, permit: Permit, tool: Any) -> None:
        """A call that goes on to a mounted server is one call, under its name there, if the same
        adapter governs both."""
        mounted = fastmcp.forwarded_to(tool)
        gates = _INSTALLED.get(mounted[0]) if mounted is not None else None
        if mounted is not None and gates is not None and gates.adapter is self.adapter:
            permit.hand_on(mounted[1])

    async def _call(
        self, gate: str, name: str, arguments: Any, carry_out: Callable[[Any], Awaitable[T]]
    ) -> T:
        async def body(permit: Permit) -> T:
            if gate == "manager" and isinstance(self._manager, fastmcp.Registry):
                permit.expect_tool()
            return await carry_out(permit.arguments())

        defaults = await sdk.defaults_of(self._manager, name)
        return await self.adapter._call(gate, name, arguments, body, defaults)


def _ending(permit: Permit, result: Any) -> Ending:
    if not sdk.is_error(result):
        return ending_of(None)
    return ending_of(sdk.cause_of(permit.error)) if permit.error is not None else HANDLED


_CALLER: ContextVar[Caller | None] = ContextVar("countersign_mcp_caller", default=None)
"""The sender of the request that is being handled here."""

_INSTALLED: WeakKeyDictionary[Any, _Gates] = WeakKeyDictionary()
