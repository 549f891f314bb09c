"""Scripted models and tools that leave a mark when their body runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bodies import Around, unchanged
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool
from office import Office

from countersign import ActionDeniedError

QUESTION: Any = {"messages": [("user", "go")]}


class ScriptedModel(BaseChatModel):
    """Says what its script says: in each turn, which tools to call; after the last one, "done".
    It keeps no state, so runs can share it."""

    script: list[list[str]]
    tokens: int = 10

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": "scripted-1"}

    def _get_ls_params(self, stop: Any = None, **kwargs: Any) -> Any:
        return {"ls_model_name": "scripted-1", "ls_model_type": "chat"}

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        turn = sum(isinstance(m, AIMessage) for m in messages)
        names = self.script[turn] if turn < len(self.script) else []
        said = AIMessage(
            "" if names else "done",
            tool_calls=[
                {"name": name, "args": {"n": i}, "id": f"call-{turn}-{i}"}
                for i, name in enumerate(names)
            ],
            usage_metadata={
                "input_tokens": self.tokens,
                "output_tokens": 1,
                "total_tokens": self.tokens + 1,
            },
        )
        return ChatResult(generations=[ChatGeneration(message=said)])


class Marks(list[str]):
    """The names of the tools whose body ran, in order."""

    def __init__(self, around: Around = unchanged) -> None:
        super().__init__()
        self._around = around

    def tool(self, name: str, body: Callable[[int], Any] | None = None) -> BaseTool:
        def run(n: int = 0) -> str:
            self.append(name)
            return str(body(n)) if body else f"{name} {n}"

        async def arun(n: int = 0) -> str:
            return run(n)

        bodies = self._around(run), self._around(arun)
        return StructuredTool.from_function(*bodies, name=name, description=f"does {name}")

    def tools(self, *names: str) -> list[BaseTool]:
        return [self.tool(name) for name in names]


def agent(marks: Marks, *script: Sequence[str], name: str | None = None, **options: Any) -> Any:
    """A ``create_agent`` graph that calls the script's tools, turn by turn."""
    names = dict.fromkeys(name for turn in script for name in turn)
    model = ScriptedModel(script=[list(turn) for turn in script])
    return create_agent(model, marks.tools(*names), name=name, **options)


def agent_with(*tools: BaseTool, **options: Any) -> Any:
    """A ``create_agent`` graph that calls all of the tools at once."""
    model = ScriptedModel(script=[[tool.name for tool in tools]])
    return create_agent(model, list(tools), **options)


def approving(office: Office, run: Callable[[], Any], count: int = 1, how: str = "approve") -> Any:
    """Run something in another thread, and decide the approvals that it asks for."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        office.decide(how, count)
        return running.result(60)


def approving_after_denial(office: Office, run: Callable[[], Any]) -> None:
    """Run something, and approve what it asks for once a denial has reached the framework. Where
    the denied call overtakes the other one, that one is never asked for: then run it again."""
    reached = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: reached.set()  # type: ignore[method-assign]
    callbacks = logging.getLogger("langchain_core.callbacks.manager")
    callbacks.addHandler(handler)
    try:
        with ThreadPoolExecutor(1) as pool:
            for _ in range(20):
                reached.clear()
                running = pool.submit(run)
                assert reached.wait(60)
                while not (asked := office.pending()) and not running.done():
                    threading.Event().wait(0.02)
                if asked:
                    office.decide("approve")
                    running.result(60)
                    return
                assert isinstance(running.exception(), ActionDeniedError)
    finally:
        callbacks.removeHandler(handler)
    raise AssertionError("nothing was asked for before the denial")
