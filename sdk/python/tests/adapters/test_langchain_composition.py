"""Whatever is made of a governed object is governed, or is refused loudly."""

from __future__ import annotations

import asyncio
import copy
import functools
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_classic.chains.base import Chain as ClassicChain
from langchain_core.load import dumps, loads
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompt_values import StringPromptValue
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnableSequence,
)
from langchain_core.runnables.history import RunnableWithMessageHistory
from langgraph.graph import START, MessagesState, StateGraph
from matrix import NIGHTLY
from office import Office
from scripted_agents import QUESTION, Marks, ScriptedModel, agent

import countersign
from countersign.adapters import last_chain
from countersign.adapters._methods import CALL_STYLES, DERIVING, PLAIN, methods_of
from countersign.adapters._runnables import Governed
from countersign.adapters.langchain import govern

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::PendingDeprecationWarning"
)

DENIED = countersign.ActionDeniedError
TOOL = Marks().tool("denied_tool")
RAN: list[str] = []  # the bodies that ran, of the parts that can be pickled


def _use(given: Any) -> Any:
    RAN.append("before")
    return TOOL.invoke({"n": 1})


def _after(given: Any) -> Any:
    RAN.append("after")
    return given


def _first(given: Any) -> Any:
    return given


def sequence() -> Any:
    """A governed sequence: the kind that others take apart."""
    return govern(RunnableLambda(_first) | RunnableLambda(_use), "composed")


def plain() -> Any:
    return govern(RunnableLambda(_use), "composed")


def bound() -> Any:
    return govern(
        (RunnableLambda(_first) | RunnableLambda(_use)).with_config(tags=["t"]), "composed"
    )


def graph() -> Any:
    return govern(agent(Marks(), ["denied_tool"]), "composed")


def _in_a_node(it: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("one", it)
    builder.add_edge(START, "one")
    return builder.compile()


MAKE: dict[str, Callable[[Any], Any]] = {
    "x | it": lambda it: RunnableLambda(_first) | it,
    "it | x": lambda it: it | RunnableLambda(_first),
    "function | it": lambda it: _first | it,
    "it | function": lambda it: it | _first,
    "dict | it": lambda it: {"messages": lambda given: QUESTION["messages"]} | it,
    "sequence | it": lambda it: RunnableLambda(_first) | RunnableLambda(_first) | it,
    "it | sequence": lambda it: it | (RunnableLambda(_first) | RunnableLambda(_first)),
    "x.pipe(it)": lambda it: RunnableLambda(_first).pipe(it),
    "it.pipe(x)": lambda it: it.pipe(RunnableLambda(_first)),
    "RunnableSequence(x, it)": lambda it: RunnableSequence(RunnableLambda(_first), it),
    "RunnableSequence(it, x)": lambda it: RunnableSequence(it, RunnableLambda(_first)),
    "a sequence of sequences": lambda it: RunnableSequence(
        RunnableLambda(_first), RunnableLambda(_first) | it
    ),
    "RunnableParallel": lambda it: RunnableParallel(a=it, b=_first),
    "RunnablePassthrough.assign": lambda it: RunnablePassthrough.assign(a=it),
    "RunnableBranch": lambda it: RunnableBranch((lambda given: True, it), it),
    "a function that returns it": lambda it: RunnableLambda(lambda given: it),
    "a function that calls it": lambda it: RunnableLambda(lambda given: it.invoke(given)),
    "add_node": _in_a_node,
    "add_node of a sequence": lambda it: _in_a_node(RunnableLambda(_first) | it),
    "with_types": lambda it: it.with_types(input_type=dict),
    "with_config": lambda it: it.with_config(tags=["x"]),
    "with_listeners": lambda it: it.with_listeners(on_end=lambda run: None),
    "with_retry": lambda it: it.with_retry(stop_after_attempt=2),
    "with_fallbacks": lambda it: it.with_fallbacks([RunnableLambda(_after)]),
    "bind": lambda it: it.bind(),
    "bind, and more": lambda it: RunnableLambda(_first) | it.bind().with_config(tags=["x"]),
    "assign": lambda it: it.assign(a=_first),
    "pick": lambda it: it.pick("messages"),
    "map": lambda it: RunnableLambda(lambda given: [given]) | it.map(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "copy, then compose": lambda it: RunnableLambda(_first) | copy.copy(it),
    "governed again": lambda it: govern(it, "again"),
    "the whole is governed": lambda it: govern(RunnableLambda(_first) | it, "whole"),
}
KINDS = {"sequence": sequence, "lambda": plain, "binding": bound, "graph": graph}


OTHERS = [kind for kind in KINDS if kind != "sequence"]
# Sequences are what the frameworks take apart; the others are tried at night.
COMPOSED = [
    (made, kind)
    for at, made in enumerate(MAKE)
    for kind in (KINDS if NIGHTLY else ["sequence", *OTHERS][: 2 if at % 4 == 0 else 1])
    if (made, kind) != ("copy.deepcopy", "graph")  # LangGraph's own copies do not run
]


@pytest.mark.parametrize(("made", "kind"), COMPOSED)
def test_what_is_made_of_it_is_governed(made: str, kind: str, office: Office) -> None:
    """The denial comes out of whatever the object has become a part of, sync and async."""
    RAN.clear()
    whole = MAKE[made](KINDS[kind]())
    with pytest.raises(DENIED):
        whole.invoke(QUESTION)
    with pytest.raises(DENIED):
        asyncio.run(whole.ainvoke(QUESTION))
    if NIGHTLY:
        with pytest.raises(DENIED):
            list(whole.stream(QUESTION))
    assert "after" not in RAN


@pytest.mark.parametrize("kind", ["sequence", "lambda", "binding"])
def test_it_can_be_pickled(kind: str, office: Office) -> None:
    made = pickle.loads(pickle.dumps(KINDS[kind]()))
    assert isinstance(made, Governed)
    with pytest.raises(DENIED):
        made.invoke(QUESTION)


def test_what_is_loaded_from_it_would_not_be_governed(office: Office) -> None:
    """The frameworks' own serialization names a class to construct: that is refused."""
    with pytest.raises((NotImplementedError, ValueError)):
        loads(dumps(govern(ScriptedModel(script=[]))), valid_namespaces=["scripted_agents"])


def test_a_governed_object_as_a_tool(office: Office) -> None:
    tool = sequence().as_tool(arg_types={"n": int}, name="part", description="a part")
    with pytest.raises(DENIED):
        tool.invoke({"n": 1})


# -- every method ---------------------------------------------------------------------------


def _classes() -> Iterator[type]:
    """Every class of a runnable that the frameworks have."""
    for name in ("runnables", "language_models", "output_parsers", "prompts"):
        package = importlib.import_module(f"langchain_core.{name}")
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    found: dict[Any, bool] = {}
    todo: list[Any] = [Runnable]
    while todo:
        kind = todo.pop()
        found[kind] = True
        todo += kind.__subclasses__()
    frameworks = ("langchain", "langchain_core", "langchain_classic", "langgraph")
    return (k for k in found if k.__module__.partition(".")[0] in frameworks)


CALLS = frozenset(
    """__call__ aapply aapply_and_parse acall acombine_docs agenerate agenerate_prompt aparse
    aparse_result aparse_with_prompt apply apply_and_parse apredict apredict_and_parse aprep_inputs
    aprep_outputs aprep_prompts arun combine_docs generate generate_prompt parse parse_array
    parse_iter parse_result parse_with_prompt predict predict_and_parse prep_inputs prep_outputs
    prep_prompts run""".split()
)
"""The methods of today's frameworks that open a run because no table names them."""


def test_every_method_was_looked_at() -> None:
    """A method that a new version brings is governed as a call. This test names it, so that
    somebody says whether it is one."""
    known = CALL_STYLES | DERIVING | PLAIN | CALLS
    unknown = {
        f"{kind.__name__}.{name}"
        for kind in _classes()
        for name in methods_of(kind)
        if name not in known and not name.startswith("model_")
    }
    assert not unknown, f"say in _methods.py, or here in CALLS, what these do: {sorted(unknown)}"
    assert (
        not CALL_STYLES & DERIVING
        | CALL_STYLES & PLAIN
        | DERIVING & PLAIN
        | CALLS & (DERIVING | PLAIN)
    )


MODEL_CALLS: dict[str, Callable[[Any], Any]] = {
    "generate": lambda m: m.generate([[HumanMessage("go")]]),
    "agenerate": lambda m: asyncio.run(m.agenerate([[HumanMessage("go")]])),
    "generate_prompt": lambda m: m.generate_prompt([StringPromptValue(text="go")]),
    "agenerate_prompt": lambda m: asyncio.run(m.agenerate_prompt([StringPromptValue(text="go")])),
    "invoke": lambda m: m.invoke("go"),
    "ainvoke": lambda m: asyncio.run(m.ainvoke("go")),
    "bind_tools": lambda m: m.bind_tools([]).invoke("go"),
    "bound, generate": lambda m: m.bind(stop=["x"]).generate([[HumanMessage("go")]]),
    "with_structured_output": lambda m: m.with_structured_output({"title": "t"}).invoke("go"),
}


class Model(ScriptedModel):
    """One that binds tools as the providers' models do."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=tools)


@pytest.mark.parametrize("call", MODEL_CALLS)
@pytest.mark.parametrize("made", ["model", "bound model", "renamed model"])
def test_every_call_of_a_model_is_recorded(made: str, call: str, office: Office) -> None:
    """A model's own methods do not come through invoke: each is a run with a chain."""
    model: Any = Model(script=[])
    if made != "model":
        model = model.bind(stop=["y"])
    name = f"{made} {call}"
    governed = govern(model, name)
    if made == "renamed model":
        governed = governed.with_config(run_name="renamed")
    MODEL_CALLS[call](governed)
    assert [c["status"] for c in office.chains(name)] == ["completed"]
    chain = last_chain()
    assert chain is not None
    story = office.story(office.chains(name)[0]["id"])
    assert [told.partition(": ")[2] for told in story if "llm_call" in told] == [
        "llm_call scripted-1"
    ]


class OwnChain(ClassicChain):
    """A chain of a user's own, with methods that nobody knows."""

    @property
    def input_keys(self) -> list[str]:
        return ["input"]

    @property
    def output_keys(self) -> list[str]:
        return ["output"]

    def _call(self, inputs: Any, run_manager: Any = None) -> Any:
        return {"output": TOOL.invoke({"n": 1})}

    def ask(self) -> Any:
        return TOOL.invoke({"n": 1})

    async def aask(self) -> Any:
        return await TOOL.ainvoke({"n": 1})

    def each(self) -> Any:
        yield TOOL.invoke({"n": 1})

    async def aeach(self) -> Any:
        yield await TOOL.ainvoke({"n": 1})

    def later(self) -> Any:
        return self.aask()


class OwnRunnable(Runnable[Any, Any]):
    """A runnable of a user's own whose methods are no plain functions."""

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002
        return input

    def _use(self, number: int) -> Any:
        return TOOL.invoke({"n": number})

    partial_use = functools.partialmethod(_use, 1)
    cached_use = functools.lru_cache(_use)
    dispatched_use = functools.singledispatchmethod(_use)


@pytest.mark.parametrize("method", ["partial_use", "cached_use", "dispatched_use"])
def test_a_method_that_is_no_function_is_governed(method: str, office: Office) -> None:
    """A cached, partial or dispatched method is a run, as a plain one is."""
    governed: Any = govern(OwnRunnable())
    given = () if method == "partial_use" else (1,)
    with pytest.raises(DENIED):
        getattr(governed, method)(*given)


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]


OWN: dict[str, Callable[[Any], Any]] = {
    "ask": lambda it: it.ask(),
    "aask": lambda it: asyncio.run(it.aask()),
    "each": lambda it: list(it.each()),
    "aeach": lambda it: asyncio.run(_all(it.aeach())),
    "run": lambda it: it.run("go"),
    "arun": lambda it: asyncio.run(it.arun("go")),
    "apply": lambda it: it.apply([{"input": "go"}]),
    "call": lambda it: it({"input": "go"}),
    "acall": lambda it: asyncio.run(it.acall({"input": "go"})),
}


@pytest.mark.parametrize("how", OWN)
@pytest.mark.parametrize("bound", [False, True])
def test_every_method_of_a_class_of_ones_own_is_governed(
    how: str, bound: bool, office: Office
) -> None:
    chain: Any = OwnChain()
    if bound:
        if how == "call":
            return  # a binding cannot be called
        chain = chain.with_config(tags=["t"])
    with pytest.raises(DENIED):
        OWN[how](govern(chain))


def test_a_method_that_returns_work_to_be_done_is_refused(office: Office) -> None:
    with pytest.raises(TypeError, match="would be done after its run"):
        govern(OwnChain()).later()


def test_streams_that_come_past_the_object_are_refused(office: Office) -> None:
    if "version" not in inspect.signature(Runnable.astream_events).parameters:
        return
    for it in (govern(ScriptedModel(script=[])), sequence(), bound()):
        with pytest.raises(NotImplementedError, match="not governed"):
            it.stream_events("go", version="v3")
        with pytest.raises(NotImplementedError, match="not governed"):
            it.astream_events("go", version="v3")


def test_a_history_around_it(office: Office) -> None:
    from langchain_core.chat_history import InMemoryChatMessageHistory

    history = InMemoryChatMessageHistory()
    with pytest.raises(DENIED):
        RunnableWithMessageHistory(sequence(), lambda: history).invoke([HumanMessage("go")])
    assert AIMessage("after") not in history.messages
