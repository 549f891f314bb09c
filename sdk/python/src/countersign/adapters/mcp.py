"""Governs the tool calls that reach an MCP server.

::

    async with countersign.Chain("support-tools") as chain:
        adapter = MCPAdapter(chain=chain, agent_name="support-agent")
        adapter.install(server)  # a low-level Server, FastMCP (1.x) or MCPServer (2.x)
        await server.run_stdio_async()

A call is recorded before its tool runs, and waits for its reviewer without holding up
others. A call that may not be carried out is answered as a tool error, which the model can
read; the server goes on.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from countersign._action import new_key
from countersign._chain import Chain
from countersign.adapters._mcp_permit import Permit, copy_of, current_permit
from countersign.adapters._outcomes import HANDLED, Ending, Outcomes, ending_of
from countersign.adapters._shared import missing_extra
from countersign.exceptions import ConfigurationError

try:
    from countersign.adapters import _mcp_sdk as sdk
except ImportError as error:
    raise missing_extra("mcp", error) from error

__all__ = ["MCPAdapter"]

logger = logging.getLogger("countersign")

_GIVEN_UP = "the caller has given up"

T = TypeVar("T")
Function = Callable[..., Any]


class MCPAdapter:
    """Records the tool calls of an MCP server on a chain, and keeps denied ones from running.

    The chain must be open while calls are served. Every call is recorded as a ``tool_call``
    of ``agent_name``.
    """

    def __init__(
        self, *, chain: Chain, agent_name: str, parent_agent_name: str | None = None
    ) -> None:
        self.chain = chain
        self.agent_name = agent_name
        self.parent_agent_name = parent_agent_name
        self._outcomes = Outcomes(chain)

    def install(self, server: Any) -> None:
        """Govern every tool call of ``server``, whether its handler or tool is registered
        already or later. Installing again is harmless; the adapter that was installed last
        governs."""
        low, manager = sdk.parts_of(server)
        if low in _INSTALLED:
            _INSTALLED[low].adapter = self
            return
        gates = _INSTALLED[low] = _Gates(self)
        sdk.wrap_requests(low, gates.request)
        if manager is not None:
            sdk.wrap_manager(manager, gates.manager)

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
        try:
            permit = await self._permit("call", tool_name, arguments)
        except Exception as denial:
            return sdk.error_result(denial)

        async def body() -> Any:
            result = handler(permit.arguments())
            return await result if inspect.isawaitable(result) else result

        return await self._carry_out(permit, body)

    def tool(self, tool_name: str | None = None) -> Callable[[Function], Function]:
        """Decorate a tool's function, so that it is recorded under its name before it runs.

        The function becomes async; the body of one that is not runs in a worker thread. A
        denial is raised, as an error that the SDK answers as a tool error.
        """
        if callable(tool_name):
            raise TypeError("write @adapter.tool(), with brackets")

        def decorate(function: Function) -> Function:
            name = tool_name or function.__name__
            signature = inspect.signature(function)

            @wraps(function)
            async def governed(*args: Any, **kwargs: Any) -> Any:
                call = signature.bind(*args, **kwargs)
                given = call.arguments.items()
                recorded = {k: copy_of(v) for k, v in given if not sdk.is_context(v)}
                call.arguments.update(recorded)
                try:
                    permit = await self._permit("function", name, recorded)
                except Exception as denial:
                    raise sdk.tool_error(denial) from denial

                async def body() -> Any:
                    if inspect.iscoroutinefunction(function):
                        return await function(*call.args, **call.kwargs)
                    return await asyncio.to_thread(function, *call.args, **call.kwargs)

                return await self._carry_out(permit, body)

            return governed

        return decorate

    async def _permit(self, gate: str, name: str, arguments: Mapping[str, Any] | None) -> Permit:
        """Return when the call may be carried out; raise when it must not."""
        current = current_permit()
        if current is not None and current.extends_to(gate, self.chain, name, arguments):
            return current
        permit = Permit(self.chain, name, arguments, passed=gate)
        key = new_key()
        try:
            permit.decision = await self.chain.record_agent_action(
                self.agent_name,
                "tool_call",
                name,
                permit.arguments(),
                parent_agent_name=self.parent_agent_name,
                idempotency_key=key,
            )
        except Exception:
            raise
        except BaseException:
            await self._given_up(key)
            raise
        self._outcomes.begin(permit.decision)
        return permit

    async def _carry_out(self, permit: Permit, body: Callable[[], Awaitable[T]]) -> T:
        """Run the body of a call, and report how it ended. Of the gates on its way, the first
        one reports."""
        is_first = not permit.in_use
        assert permit.decision is not None
        try:
            with permit.used():
                result = await body()
        except BaseException as error:
            if is_first:
                with sdk.shielded():
                    ending = ending_of(sdk.cause_of(permit.error or error))
                    await self._outcomes.end_async(permit.decision, ending)
            raise
        if is_first:
            await self._outcomes.end_async(permit.decision, _ending(permit, result))
        return result

    async def _given_up(self, key: str) -> None:
        """The caller is gone: nobody is to decide on its call any more."""
        with sdk.shielded():
            try:
                await self.chain.cancel_approval(idempotency_key=key, comment=_GIVEN_UP)
            except ConfigurationError:
                pass  # it did not wait for an approval
            except Exception as fault:
                logger.warning(
                    "countersign: the approval of a call that was given up was not cancelled (%s)",
                    type(fault).__name__,
                )


class _Gates:
    """Where a server's calls are held, on behalf of the adapter that was installed last."""

    def __init__(self, adapter: MCPAdapter) -> None:
        self.adapter = adapter

    async def request(
        self, name: str, arguments: Any, carry_out: Callable[[Any], Awaitable[T]]
    ) -> T | Any:
        """A call that came in by the protocol: a denial is its answer."""
        try:
            permit = await self.adapter._permit("request", name, arguments)
        except Exception as denial:
            return sdk.error_answer(denial)
        return await self.adapter._carry_out(permit, lambda: carry_out(permit.arguments()))

    async def manager(
        self, name: str, arguments: Any, carry_out: Callable[[Any], Awaitable[T]]
    ) -> T:
        """A call made by the program, or by another tool: a denial is raised."""
        try:
            permit = await self.adapter._permit("manager", name, arguments)
        except Exception as denial:
            raise sdk.tool_error(denial) from denial
        return await self.adapter._carry_out(permit, lambda: carry_out(permit.arguments()))


def _ending(permit: Permit, result: Any) -> Ending:
    if not sdk.is_error(result):
        return ending_of(None)
    return ending_of(sdk.cause_of(permit.error)) if permit.error is not None else HANDLED


_INSTALLED: WeakKeyDictionary[Any, _Gates] = WeakKeyDictionary()
