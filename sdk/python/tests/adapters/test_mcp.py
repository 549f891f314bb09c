"""Servers of the MCP SDK, governed, against the real service."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from mcp_servers import (
    Friendly,
    Marks,
    add_tool,
    client_of,
    friendly,
    handle,
    in_thread,
    is_error,
    low_level,
    register,
    text_of,
)
from office import Office

import countersign
from countersign.adapters.mcp import MCPAdapter
from countersign.mcp import MCPAdapter as Alias

# What the first major of the SDK says of its own settings.
pytestmark = pytest.mark.filterwarnings("ignore:Field .lifespan. has an incomplete definition")

KINDS = [friendly, low_level]


def adapter_for(chain: countersign.Chain) -> MCPAdapter:
    return MCPAdapter(chain=chain, agent_name="helper", parent_agent_name="desk")


@pytest.mark.parametrize("make", KINDS)
def test_allowed_calls_run_and_are_on_the_receipt_in_order(
    office: Office, make: Callable[[Marks], Any]
) -> None:
    marks = Marks()

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            server = make(marks)
            adapter_for(chain).install(server)
            async with client_of(server) as client:
                for amount in (1, 2):
                    result = await client.call_tool("plain", {"amount": amount})
                    assert not is_error(result)
                    assert text_of(result) == "plain done"
        return chain

    chain = asyncio.run(main())
    assert [arguments["amount"] for _, arguments in marks] == [1, 2]
    events = office.server.events(chain.id)
    assert [(e["agent_name"], e["parent_agent_name"]) for e in events] == [("helper", "desk")] * 2
    defaults = {"items": None} if make is friendly else {}
    assert [e["payload"] for e in events] == [{"amount": n, **defaults} for n in (1, 2)]
    assert chain.receipt is not None
    assert chain.receipt["total_actions"] == 2


@pytest.mark.parametrize("make", KINDS)
def test_a_denial_is_a_tool_error_and_the_server_goes_on(
    office: Office, make: Callable[[Marks], Any]
) -> None:
    marks = Marks()

    async def main() -> None:
        async with countersign.Chain("mcp") as chain:
            server = make(marks)
            adapter_for(chain).install(server)
            async with client_of(server) as client:
                denied = await client.call_tool("denied_wipe", {})
                assert is_error(denied)
                assert "This is never done." in text_of(denied)
                assert marks == []
                assert not is_error(await client.call_tool("plain", {}))

    asyncio.run(main())
    assert [name for name, _ in marks] == ["plain"]


@pytest.mark.parametrize("make", KINDS)
def test_an_approval_pauses_that_call_alone_and_releases_it_once(
    office: Office, make: Callable[[Marks], Any]
) -> None:
    marks = Marks()

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            server = make(marks)
            adapter_for(chain).install(server)
            async with client_of(server) as client:
                paused = asyncio.create_task(client.call_tool("asked_pay", {"amount": 5}))
                await in_thread(office.waiting)
                assert not is_error(await client.call_tool("plain", {}))
                assert [name for name, _ in marks] == ["plain"]
                await in_thread(office.decide, "approve")
                assert not is_error(await paused)
        return chain

    chain = asyncio.run(main())
    assert [name for name, _ in marks] == ["plain", "asked_pay"]
    assert office.story(chain.id) == [
        "helper: tool_call asked_pay",
        "helper: tool_call plain",
    ]
    assert chain.receipt is not None
    assert [a["status"] for a in chain.receipt["approvals"]] == ["approved"]


def test_a_reviewer_who_denies_is_heard(office: Office) -> None:
    marks = Marks()

    async def main() -> None:
        async with countersign.Chain("mcp") as chain:
            server = friendly(marks)
            adapter_for(chain).install(server)
            async with client_of(server) as client:
                paused = asyncio.create_task(client.call_tool("asked_pay", {}))
                await in_thread(office.decide, "deny")
                assert is_error(await paused)

    asyncio.run(main())
    assert marks == []


def test_the_kill_switch_is_a_tool_error(office: Office) -> None:
    marks = Marks()

    async def main() -> None:
        async with countersign.Chain("mcp") as chain:
            server = friendly(marks)
            adapter_for(chain).install(server)
            async with client_of(server) as client:
                await in_thread(lambda: office.kill_switch(active=True))
                try:
                    stopped = await client.call_tool("plain", {})
                finally:
                    await in_thread(lambda: office.kill_switch(active=False))
                assert is_error(stopped)
                assert "kill switch" in text_of(stopped)
                assert marks == []
                assert not is_error(await client.call_tool("plain", {}))

    asyncio.run(main())


@pytest.mark.parametrize("make", KINDS)
def test_parallel_calls_are_each_governed(office: Office, make: Callable[[Marks], Any]) -> None:
    marks = Marks()

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            server = make(marks)
            adapter_for(chain).install(server)
            async with client_of(server) as client:
                names = ["plain", "denied_wipe"] * 5
                calls = (client.call_tool(n, {"amount": i}) for i, n in enumerate(names))
                results = await asyncio.gather(*calls)
                assert [is_error(r) for r in results] == [False, True] * 5
        return chain

    chain = asyncio.run(main())
    assert sorted(arguments["amount"] for _, arguments in marks) == [0, 2, 4, 6, 8]
    assert len(office.story(chain.id)) == 10


@pytest.mark.parametrize("make", KINDS)
def test_what_was_approved_is_what_runs(office: Office, make: Callable[[Marks], Any]) -> None:
    marks = Marks()
    given: dict[str, Any] = {"amount": 5, "items": ["bread"]}

    async def main() -> None:
        async with countersign.Chain("mcp") as chain:
            server = make(marks)
            adapter_for(chain).install(server)
            async with client_of(server) as client:
                paused = asyncio.create_task(client.call_tool("asked_pay", given))
                approvals = await in_thread(office.waiting)
                assert approvals[0]["payload"] == {"amount": 5, "items": ["bread"]}
                given["amount"] = 5000
                given["items"].append("a car")
                await in_thread(office.decide, "approve")
                assert not is_error(await paused)

    asyncio.run(main())
    assert marks == [("asked_pay", {"amount": 5, "items": ["bread"]})]


def test_what_was_approved_is_what_a_handler_and_a_function_get(office: Office) -> None:
    marks = Marks()

    async def main() -> None:
        async with countersign.Chain("mcp") as chain:
            adapter = adapter_for(chain)

            @adapter.tool("asked_list")
            async def decorated(items: list[str]) -> None:
                marks.append(list(items))

            items = ["bread"]
            calls = (
                adapter.handle_tool_call("asked_pay", {"items": items}, marks.append),
                decorated(items),
            )
            paused = [asyncio.create_task(call) for call in calls]
            await in_thread(office.waiting, 2)
            items.append("a car")
            await in_thread(office.decide, "approve")
            await asyncio.gather(*paused)

    asyncio.run(main())
    assert {"items": ["bread"]} in marks
    assert ["bread"] in marks


def test_a_server_that_changes_the_arguments_is_asked_again(office: Office) -> None:
    marks = Marks()

    class Generous(Friendly):  # type: ignore[misc]
        async def call_tool(self, name: str, arguments: dict[str, Any], *rest: Any) -> Any:
            return await super().call_tool(name, {"amount": arguments["amount"] * 2}, *rest)

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            server = Generous("tools")
            add_tool(server, marks, "plain")
            adapter_for(chain).install(server)
            async with client_of(server) as client:
                assert not is_error(await client.call_tool("plain", {"amount": 1}))
        return chain

    chain = asyncio.run(main())
    assert marks == [("plain", {"amount": 2, "items": None})]
    payloads = [event["payload"] for event in office.server.events(chain.id)]
    assert payloads == [{"amount": n, "items": None} for n in (1, 2)]


def test_a_tool_that_calls_itself_is_recorded_each_time(office: Office) -> None:
    marks = Marks()

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            server = friendly(marks)

            async def plain_again(amount: int) -> str:
                marks.append(amount)
                if len(marks) == 1:
                    await server.call_tool("plain_again", {"amount": amount})
                return "done"

            server.add_tool(plain_again)
            adapter_for(chain).install(server)
            async with client_of(server) as client:
                assert not is_error(await client.call_tool("plain_again", {"amount": 1}))
        return chain

    chain = asyncio.run(main())
    assert marks == [1, 1]
    assert len(office.story(chain.id)) == 2


def test_tools_and_handlers_registered_after_install_are_governed(office: Office) -> None:
    marks = Marks()

    async def main() -> None:
        async with countersign.Chain("mcp") as chain:
            for empty in (friendly(marks), low_level(marks)):
                adapter_for(chain).install(empty)
                if hasattr(empty, "add_tool"):
                    add_tool(empty, marks, "denied_later")
                else:
                    register(empty, marks)
                async with client_of(empty) as client:
                    assert is_error(await client.call_tool("denied_later", {}))

    asyncio.run(main())
    assert marks == []


@pytest.mark.parametrize("make", KINDS)
def test_installing_again_records_once_and_on_the_last_chain(
    office: Office, make: Callable[[Marks], Any]
) -> None:
    marks = Marks()

    async def main() -> tuple[countersign.Chain, countersign.Chain]:
        first, second = countersign.Chain("mcp"), countersign.Chain("mcp")
        async with first, second:
            server = make(marks)
            once = adapter_for(first)
            once.install(server)
            once.install(server)
            async with client_of(server) as client:
                await client.call_tool("plain", {})
                adapter_for(second).install(server)
                await client.call_tool("plain", {})
        return first, second

    first, second = asyncio.run(main())
    assert len(marks) == 2
    assert len(office.story(first.id)) == len(office.story(second.id)) == 1


def test_a_call_on_a_completed_chain_is_not_carried_out(office: Office) -> None:
    marks = Marks()

    async def main() -> None:
        server = friendly(marks)
        async with countersign.Chain("mcp") as chain:
            adapter_for(chain).install(server)
        async with client_of(server) as client:
            assert is_error(await client.call_tool("plain", {}))

    asyncio.run(main())
    assert marks == []


def test_calls_by_the_program_and_by_other_tools_are_governed(office: Office) -> None:
    marks = Marks()

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            server = friendly(marks)

            async def plain_outer(inner: str) -> str:
                marks.append(("outer", inner))
                await server.call_tool(inner, {})
                return "done"

            server.add_tool(plain_outer)
            adapter_for(chain).install(server)
            await server.call_tool("plain", {})
            with pytest.raises(countersign.ActionDeniedError, match=r"never done\."):
                await server.call_tool("denied_wipe", {})
            async with client_of(server) as client:
                nested = await client.call_tool("plain_outer", {"inner": "denied_wipe"})
                assert is_error(nested)
                assert "never done." in text_of(nested)
                assert not is_error(await client.call_tool("plain_outer", {"inner": "plain"}))
        return chain

    chain = asyncio.run(main())
    assert [name for name, _ in marks] == ["plain", "outer", "outer", "plain"]
    assert [line.split()[-1] for line in office.story(chain.id)] == [
        "plain",
        "denied_wipe",
        "plain_outer",
        "denied_wipe",
        "plain_outer",
        "plain",
    ]


def test_a_server_that_dispatches_itself_can_ask(office: Office) -> None:
    marks = Marks()

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            adapter = adapter_for(chain)

            def body(arguments: dict[str, Any]) -> str:
                marks.append(arguments)
                return "done"

            async def slow_body(arguments: dict[str, Any]) -> str:
                return body(arguments)

            assert await adapter.handle_tool_call("plain", {"amount": 1}, body) == "done"
            assert await adapter.handle_tool_call("plain", None, slow_body) == "done"
            denied = await adapter.handle_tool_call("denied_wipe", {}, body)
            assert is_error(denied)
            with pytest.raises(ZeroDivisionError):
                await adapter.handle_tool_call("plain", {}, lambda _: 1 // 0)
        return chain

    chain = asyncio.run(main())
    assert marks == [{"amount": 1}, {}]
    assert len(office.story(chain.id)) == 4


def test_decorated_functions_are_governed_and_recorded_once(office: Office) -> None:
    marks = Marks()

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            adapter = adapter_for(chain)
            server = friendly(marks)

            @adapter.tool()
            async def plain_sum(left: int, right: int = 1) -> int:
                """Adds."""
                marks.append(("plain_sum", left, right))
                return left + right

            @adapter.tool("denied_sum")
            def blocking(left: int) -> int:
                marks.append("denied_sum")
                return left

            @adapter.tool("plain_sync")
            def allowed(left: int) -> int:
                marks.append("plain_sync")
                return left

            for name, function in (
                ("plain_sum", plain_sum),
                ("denied_sum", blocking),
                ("plain_sync", allowed),
            ):
                server.add_tool(function, name=name)
            assert await plain_sum(1) == 2
            with pytest.raises(countersign.ActionDeniedError):
                await blocking(1)
            async with client_of(server) as client:
                refused = await client.call_tool("denied_sum", {"left": 1})
                assert is_error(refused)
                assert "never done." in text_of(refused)
                assert not is_error(await client.call_tool("plain_sync", {"left": 1}))
                adapter.install(server)
                assert not is_error(await client.call_tool("plain_sum", {"left": 3}))
        return chain

    chain = asyncio.run(main())
    assert marks == [("plain_sum", 1, 1), "plain_sync", ("plain_sum", 3, 1)]
    assert [line.split()[-1] for line in office.story(chain.id)] == [
        "plain_sum",
        "denied_sum",
        "denied_sum",
        "plain_sync",
        "plain_sum",
    ]


def test_a_decorated_function_begins_when_it_is_allowed(office: Office) -> None:
    """However many other functions keep the threads of the event loop: an allow is for now."""
    ran = []

    async def main() -> None:
        adapter = MCPAdapter(chain_name="busy threads", agent_name="helper")

        @adapter.tool()
        def note(function: str) -> None:
            ran.append(function)

        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        ended = threading.Event()
        busy = loop.run_in_executor(None, ended.wait)
        try:
            async with adapter:
                await asyncio.wait_for(note("x"), 60)
        finally:
            ended.set()
            await busy

    asyncio.run(main())
    assert ran == ["x"]
    (chain,) = office.chains("busy threads")
    assert chain["status"] == "completed"


def test_a_decorated_function_with_other_arguments_is_another_call(office: Office) -> None:
    """What was approved with 1 does not run with 9,000, though a tool of the same name passes it
    on; and the function's own types make no other call of it."""
    marks = Marks()

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            adapter = adapter_for(chain)
            server = friendly(marks)

            @adapter.tool()
            async def plain_set(level: float = 1, tags: tuple[str, ...] = ()) -> str:
                marks.append((level, tags))
                return "set"

            async def more(level: int = 1) -> str:
                """Sets more than it was asked to."""
                return str(await plain_set(9000))

            server.add_tool(more, name="plain_set")
            server.add_tool(adapter.tool("plain_typed")(plain_typed), name="plain_typed")
            adapter.install(server)
            async with client_of(server) as client:
                await client.call_tool("plain_set", {"level": 1})
                await client.call_tool("plain_set", {})
                await client.call_tool("plain_set", {"level": "1"})
                typed = {"level": "0.1", "day": "2026-11-17", "tags": ["a", "b"]}
                assert not is_error(await client.call_tool("plain_typed", typed))
        return chain

    async def plain_typed(level: Decimal, day: date, tags: tuple[str, str]) -> str:
        marks.append((level, tags))
        return day.isoformat()

    chain = asyncio.run(main())
    assert marks == [(9000, ())] * 3 + [(Decimal("0.1"), ("a", "b"))]
    events = office.server.events(str(chain.id))
    assert [(e["action_name"], e["payload"].get("level")) for e in events] == [
        ("plain_set", 1),
        ("plain_set", 9000),
        ("plain_set", 1),
        ("plain_set", 9000),
        ("plain_set", "1"),
        ("plain_set", 9000),
        ("plain_typed", "0.1"),
    ]


def test_a_handler_that_asks_on_an_installed_server_records_once(office: Office) -> None:
    marks = Marks()

    async def main() -> countersign.Chain:
        async with countersign.Chain("mcp") as chain:
            adapter = adapter_for(chain)
            server = low_level(marks)

            async def call(name: str, arguments: dict[str, Any]) -> Any:
                async def body(given: dict[str, Any]) -> Any:
                    given.clear()  # what a body does to its arguments is its own affair
                    marks.append(name)
                    return []

                return await adapter.handle_tool_call(name, arguments, body)

            handle(server, call)
            async with client_of(server) as client:
                assert is_error(await client.call_tool("denied_wipe", {}))
                adapter.install(server)
                assert not is_error(await client.call_tool("plain", {"amount": 1}))
        return chain

    chain = asyncio.run(main())
    assert marks == ["plain"]
    assert len(office.story(chain.id)) == 2


@pytest.mark.parametrize("stranger", [object(), "server", None])
def test_unknown_servers_are_refused(stranger: Any) -> None:
    adapter = MCPAdapter(chain=object(), agent_name="helper")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"cannot govern a .* low-level Server"):
        adapter.install(stranger)


def test_the_decorator_is_called() -> None:
    adapter = MCPAdapter(chain=object(), agent_name="helper")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="with parentheses"):
        adapter.tool(lambda: None)  # type: ignore[arg-type]


def test_the_short_name_is_the_same_class() -> None:
    assert Alias is MCPAdapter
