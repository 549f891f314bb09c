"""LangChain in the matrix. Run as a program, it is the process that is killed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_classic.agents import AgentExecutor, create_tool_calling_agent
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from matrix import Framework, Work, replay
from scripted_agents import Marks, ScriptedModel
from ways import WAYS, Way

from countersign.adapters.langchain import govern

__all__ = ["FRAMEWORK", "executor"]

_PROMPT = ChatPromptTemplate.from_messages(
    [("user", "{input}"), MessagesPlaceholder("agent_scratchpad")]
)


def executor(tools: Mapping[str, Any], script: Sequence[str]) -> Any:
    """An agent executor that calls the tools of the script in turn."""
    model = ScriptedModel(script=[[name] for name in script])
    agent = create_tool_calling_agent(model, list(tools.values()), _PROMPT)
    return AgentExecutor(agent=agent, tools=list(tools.values()))


def governed_executor(work: Work, chain_name: str) -> Any:
    marks = Marks()
    tools = {name: marks.tool(name, work.body(name)) for name in work.tools}
    return govern(executor(tools, work.tools), chain_name)


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
