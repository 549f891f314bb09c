"""LangChain in the matrix. Run as a program, it is the process that is killed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from langchain_classic.agents import AgentExecutor, create_tool_calling_agent
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from matrix import Framework, Work, replay
from scripted_agents import Marks, ScriptedModel
from ways import WAYS, Way

from countersign.adapters.langchain import govern

__all__ = ["FRAMEWORK"]

_PROMPT = ChatPromptTemplate.from_messages(
    [("user", "{input}"), MessagesPlaceholder("agent_scratchpad")]
)


def governed_executor(work: Work, chain_name: str) -> Any:
    """An agent executor that calls one tool after the other."""
    marks = Marks()
    tools = [marks.tool(name, work.body(name)) for name in work.tools]
    model = ScriptedModel(script=[[name] for name in work.tools])
    agent = create_tool_calling_agent(model, tools, _PROMPT)
    return govern(AgentExecutor(agent=agent, tools=tools), chain_name)


def called(way: Way) -> Callable[[Any], Any]:
    return lambda executor: way(executor, {"input": "go"})


FRAMEWORK = Framework(
    "langchain",
    governed_executor,
    {
        **{name: called(way) for name, way in WAYS.items()},
        "iter": lambda executor: list(executor.iter({"input": "go"})),
    },
    quick=("invoke", "ainvoke", "stream", "astream"),
    program=__file__,
)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    replay(FRAMEWORK)
