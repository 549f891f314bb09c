"""Governance as middleware of ``create_agent``, in a chain that the caller has opened."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool
from office import Office
from scripted_agents import QUESTION, Marks, agent, agent_with, approving

import countersign
from countersign.adapters.langchain import GovernanceMiddleware, govern


def run(marks: Marks, *script: list[str], is_async: bool) -> countersign.Chain:
    chain = countersign.Chain("with middleware")

    async def main() -> None:
        async with chain:
            middleware = [GovernanceMiddleware(chain, "clerk", "desk")]
            await agent(marks, *script, middleware=middleware).ainvoke(QUESTION)

    if is_async:
        asyncio.run(main())
        return chain
    with chain:
        agent(marks, *script, middleware=[GovernanceMiddleware(chain, "clerk", "desk")]).invoke(
            QUESTION
        )
    return chain


both = pytest.mark.parametrize("is_async", [False, True])


@both
def test_allowed_calls_run_and_are_listed_in_order(office: Office, is_async: bool) -> None:
    marks = Marks()
    chain = run(marks, ["look_up"], is_async=is_async)
    assert marks == ["look_up"]
    told = [t.removeprefix("clerk: ").split()[0] for t in office.story(chain.id)]
    assert told == ["llm_call", "llm_usage", "tool_call", "llm_call", "llm_usage"]
    assert office.server.events(chain.id)[0]["parent_agent_name"] == "desk"


@both
def test_a_denied_tool_does_not_run(office: Office, is_async: bool) -> None:
    marks = Marks()
    with pytest.raises(countersign.ActionDeniedError):
        run(marks, ["denied_tool"], ["look_up"], is_async=is_async)
    assert marks == []


@both
def test_an_approval_releases_the_tool_once(office: Office, is_async: bool) -> None:
    marks = Marks()
    chain = approving(office, lambda: run(marks, ["asked_tool"], is_async=is_async))
    assert marks == ["asked_tool"]
    assert office.story(chain.id).count("clerk: tool_call asked_tool") == 1


def test_within_a_governed_run_it_records_nothing_of_its_own(office: Office) -> None:
    marks: Any = Marks()
    with countersign.Chain("unused") as chain:
        made = agent(marks, ["look_up"], middleware=[GovernanceMiddleware(chain)])
        govern(made).invoke(QUESTION)
    assert marks == ["look_up"]
    assert office.story(chain.id) == []


@both
def test_outcomes_are_recorded(office: Office, is_async: bool) -> None:
    """What the middleware lets through has an outcome: a failure with the error's type alone."""
    chain = run(Marks(), ["look_up"], is_async=is_async)
    assert office.outcomes(chain.id) == [("succeeded", None)]
    assert office.outcomes(chain.id, "llm_call") == [("succeeded", None)] * 2


@both
def test_every_attempt_of_a_retried_tool_has_a_record(office: Office, is_async: bool) -> None:
    """Middleware before this one that calls a tool again runs it under a new record."""
    chain, attempts = countersign.Chain("retried by middleware"), []

    class Again(AgentMiddleware[Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            try:
                return handler(request)
            except ConnectionError:
                return handler(request)

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            try:
                return await handler(request)
            except ConnectionError:
                return await handler(request)

    def flaky(n: int) -> str:
        attempts.append(n)
        if len(attempts) < 2:
            raise ConnectionError("card 4111")
        return "fine"

    def made() -> Any:
        tool = Marks().tool("look_up", flaky)
        return agent_with(tool, middleware=[Again(), GovernanceMiddleware(chain)])

    async def main() -> None:
        async with chain:
            await made().ainvoke(QUESTION)

    if is_async:
        asyncio.run(main())
    else:
        with chain:
            made().invoke(QUESTION)
    assert office.outcomes(chain.id) == [("failed", "ConnectionError"), ("succeeded", None)]


@both
def test_an_error_that_became_a_text_is_a_failure(office: Office, is_async: bool) -> None:
    """Arguments that the tool does not take are answered to the model; the call has failed."""
    chain = countersign.Chain("answered")

    def made() -> Any:
        def wrong(n: int, other: int) -> str:
            return "never"

        tool = StructuredTool.from_function(wrong, name="look_up", description="looks")
        return agent_with(tool, middleware=[GovernanceMiddleware(chain)])

    async def main() -> None:
        async with chain:
            await made().ainvoke(QUESTION)

    if is_async:
        asyncio.run(main())
    else:
        with chain:
            made().invoke(QUESTION)
    assert office.outcomes(chain.id) == [("failed", "handled by the tool")]


class Swallowing(AgentMiddleware[Any, Any]):
    """Stands before governance and makes an answer of every error: of tools, or of models."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        try:
            return handler(request)
        except Exception:
            if self._what != "tool":
                raise
            return ToolMessage("all done", tool_call_id=request.tool_call["id"])

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        try:
            return await handler(request)
        except Exception:
            if self._what != "tool":
                raise
            return ToolMessage("all done", tool_call_id=request.tool_call["id"])

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        try:
            return handler(request)
        except Exception:
            if self._what != "model":
                raise
            return AIMessage("all done")

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        try:
            return await handler(request)
        except Exception:
            if self._what != "model":
                raise
            return AIMessage("all done")


class Leaving(AgentMiddleware[Any, Any]):
    """Ends the agent's run as soon as a tool was called."""

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> Any:
        over = any(isinstance(m, ToolMessage) for m in state["messages"])
        return {"jump_to": "end"} if over else None


@both
@pytest.mark.parametrize("end", ["return_direct", "jump", "model"])
def test_no_middleware_swallows_a_denial(office: Office, is_async: bool, end: str) -> None:
    """Whatever stands before it makes of a denial, and however the agent ends: it is raised."""
    marks = Marks()
    tool = marks.tool("denied_tool")
    tool.return_direct = end == "return_direct"
    before = [Swallowing("tool"), *([Leaving()] if end == "jump" else [])]

    async def main() -> None:
        async with countersign.Chain("swallowed") as chain:
            middleware = [*before, GovernanceMiddleware(chain)]
            await agent_with(tool, middleware=middleware).ainvoke(QUESTION)

    with pytest.raises(countersign.ActionDeniedError):
        if is_async:
            asyncio.run(main())
        else:
            with countersign.Chain("swallowed") as chain:
                middleware = [*before, GovernanceMiddleware(chain)]
                agent_with(tool, middleware=middleware).invoke(QUESTION)
    assert marks == []


@both
def test_no_middleware_swallows_the_denial_of_a_model_call(office: Office, is_async: bool) -> None:
    office.kill_switch(active=True)
    try:
        with pytest.raises(countersign.KillSwitchActiveError):
            chain = countersign.Chain("no model")
            before = [Swallowing("model")]

            async def main() -> None:
                async with chain:
                    middleware = [*before, GovernanceMiddleware(chain)]
                    await agent(Marks(), middleware=middleware).ainvoke(QUESTION)

            if is_async:
                asyncio.run(main())
            else:
                with chain:
                    middleware = [*before, GovernanceMiddleware(chain)]
                    agent(Marks(), middleware=middleware).invoke(QUESTION)
    finally:
        office.kill_switch(active=False)
