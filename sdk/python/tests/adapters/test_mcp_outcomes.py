"""What became of a call to an MCP server, and of one whose caller has given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from mcp_servers import Friendly, Marks, client_of, friendly, handle, in_thread, low_level
from office import Office

import countersign
from countersign.adapters.mcp import MCPAdapter

pytestmark = pytest.mark.filterwarnings("ignore:Field .lifespan. has an incomplete definition")


def governed(chain: countersign.Chain, server: Any) -> Any:
    MCPAdapter(chain=chain, agent_name="helper").install(server)
    return server


@pytest.mark.parametrize("make", [friendly, low_level])
def test_success_is_recorded(office: Office, make: Callable[[Marks], Any]) -> None:
    """A call that is answered has succeeded; one that was denied has no outcome."""

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            async with client_of(governed(chain, make(Marks()))) as client:
                await client.call_tool("plain", {"amount": 1})
                await client.call_tool("denied_wipe", {})
        return chain

    assert office.outcomes(asyncio.run(main()).id) == [("succeeded", None), None]


def test_a_failure_is_recorded_by_its_type(office: Office) -> None:
    """The SDK answers an error as a text. Its type is recorded, and never its text."""

    async def main() -> countersign.Chain:
        server = Friendly("tools")

        async def plain() -> str:
            raise LookupError("card 4111")

        server.add_tool(plain, name="plain")
        async with countersign.Chain("mcp") as chain:
            async with client_of(governed(chain, server)) as client:
                await client.call_tool("plain", {})
        return chain

    assert office.outcomes(asyncio.run(main()).id) == [("failed", "LookupError")]


def test_an_answer_that_is_an_error_is_a_failure(office: Office) -> None:
    """A handler may say itself that the tool has failed."""
    from mcp import types

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        return types.CallToolResult.model_validate({"content": [], "isError": True})

    async def main() -> countersign.Chain:
        server = low_level(Marks())
        handle(server, call)
        async with countersign.Chain("mcp") as chain:
            async with client_of(governed(chain, server)) as client:
                await client.call_tool("plain", {})
        return chain

    assert office.outcomes(asyncio.run(main()).id) == [("failed", "handled by the tool")]


def test_handlers_and_functions_have_outcomes(office: Office) -> None:
    """The other two ways of governing a call report too, also of a coroutine that is returned by
    what is no coroutine function."""

    class Lookup:
        async def __call__(self, amount: int) -> str:
            raise LookupError("card 4111")

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            adapter = MCPAdapter(chain=chain, agent_name="helper")

            @adapter.tool()
            def plain(amount: int) -> str:
                if amount:
                    raise LookupError("card 4111")
                return "fine"

            await plain(0)
            with pytest.raises(LookupError):
                await plain(1)
            with pytest.raises(LookupError):
                await adapter.tool("callable")(Lookup())(1)
            await adapter.handle_tool_call("plain", {}, lambda given: "fine")
        return chain

    done, failed = ("succeeded", None), ("failed", "LookupError")
    assert office.outcomes(asyncio.run(main()).id) == [done, failed, failed, done]


@pytest.mark.parametrize("make", [friendly, low_level])
def test_a_caller_that_gives_up_cancels_its_approval(
    office: Office, make: Callable[[Marks], Any]
) -> None:
    """Nobody is left to decide on a call whose caller is gone, and its body does not run."""
    marks = Marks()

    async def main() -> str:
        async with countersign.Chain("mcp") as chain:
            async with client_of(governed(chain, make(marks))) as client:
                call = asyncio.create_task(client.call_tool("asked_pay", {"amount": 5}))
                (approval,) = await in_thread(office.waiting)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
        return str(approval["id"])

    approval_id = asyncio.run(main())
    assert office.server.get(f"/v1/approvals/{approval_id}")["status"] == "cancelled"
    assert marks == []


def test_a_cancelled_function_cancels_its_approval(office: Office) -> None:
    """The same for a function that is called without a server."""
    marks = Marks()

    async def main() -> str:
        async with countersign.Chain("mcp") as chain:
            adapter = MCPAdapter(chain=chain, agent_name="helper")
            governed_pay = adapter.tool("asked_pay")(marks.append)
            call = asyncio.create_task(governed_pay(5))
            (approval,) = await in_thread(office.waiting)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        return str(approval["id"])

    approval_id = asyncio.run(main())
    assert office.server.get(f"/v1/approvals/{approval_id}")["status"] == "cancelled"
    assert marks == []


def test_defaults_are_recorded(office: Office) -> None:
    """What a registered tool or a function is carried out with stands in the record."""

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            server = governed(chain, friendly(Marks()))
            async with client_of(server) as client:
                await client.call_tool("plain", {"amount": 1})
            adapter = MCPAdapter(chain=chain, agent_name="helper")

            @adapter.tool()
            def plain(amount: int, shape: str = "round") -> str:
                return "fine"

            await plain(2)
        return chain

    events = office.server.events(asyncio.run(main()).id)
    assert [e["payload"] for e in events] == [
        {"amount": 1, "items": None},
        {"amount": 2, "shape": "round"},
    ]


def test_an_object_that_changes_during_the_wait_is_not_carried_out(office: Office) -> None:
    """Approved with 5, it must not run with 9,000."""
    marks: list[Any] = []

    class Order:
        amount = 5

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            order = Order()
            order.amount = 5
            pay = MCPAdapter(chain=chain, agent_name="helper").tool("asked_pay")(marks.append)
            call = asyncio.create_task(pay(order))
            await in_thread(office.waiting)
            order.amount = 9000
            await in_thread(office.decide, "approve")
            with pytest.raises(countersign.PolicyViolationError):
                await call
        return chain

    chain = asyncio.run(main())
    assert marks == []
    assert "5" in str(office.server.events(chain.id)[0]["payload"])
