"""Threads, pools, tasks and processes: what a run starts is part of it, and of no other."""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langgraph._internal import _runnable
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from matrix import NIGHTLY
from office import Office
from scripted_agents import QUESTION, Marks, agent

import countersign
from countersign.adapters._callbacks import Governor
from countersign.adapters._shared import current_run
from countersign.adapters.langgraph import govern

THREAD: Any = {"configurable": {"thread_id": "1"}}
Act = Callable[[], Any]


def graph_of(**nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(MessagesState)
    builder.add_sequence(list(nodes.items()))
    builder.add_edge(START, next(iter(nodes)))
    return builder


# -- threads ------------------------------------------------------------------------------


def _thread(act: Act, pool: Any) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _timer(act: Act, pool: Any) -> None:
    done: list[Any] = []

    def run() -> None:
        try:
            done.append(act())
        except BaseException as error:
            done.append(error)

    timer = threading.Timer(0, run)
    timer.start()
    timer.join()
    if isinstance(done[0], BaseException):
        raise done[0]


def _in_loop(start: Callable[[Act, Any], Any]) -> Callable[[Act, Any], None]:
    async def main(act: Act, pool: Any) -> None:
        await start(act, pool)

    def run(act: Act, pool: Any) -> None:
        asyncio.run(main(act, pool))

    return run


def _new(kind: Any, call: Callable[[Any, Act], Any]) -> Callable[[Act, Any], None]:
    def run(act: Act, pool: Any) -> None:
        with kind(1) as made:
            call(made, act)

    return run


def _queue(act: Act, pool: Any) -> None:
    """A worker that was there before takes work from a queue."""
    given, done = pool[2]
    inside = current_run() is not None
    given.put(countersign.carry(act) if inside else act)
    result = done.get()
    if isinstance(result, BaseException):
        raise result


def _worker(given: Any, done: Any) -> None:
    while (act := given.get()) is not None:
        try:
            done.put(act())
        except BaseException as error:
            done.put(error)


WAYS: dict[str, Callable[[Act, Any], Any]] = {
    "a queue's worker": _queue,
    "Thread": _thread,
    "Timer": _timer,
    "a pool of the run": _new(ThreadPoolExecutor, lambda p, act: p.submit(act).result()),
    "a pool's map": _new(ThreadPoolExecutor, lambda p, act: list(p.map(lambda _: act(), [1]))),
    "LangChain's pool": _new(ContextThreadPoolExecutor, lambda p, act: p.submit(act).result()),
    "ThreadPool.apply": _new(ThreadPool, lambda p, act: p.apply(act)),
    "ThreadPool.map": _new(ThreadPool, lambda p, act: p.map(lambda _: act(), [1])),
    "ThreadPool.imap": _new(ThreadPool, lambda p, act: list(p.imap(lambda _: act(), [1]))),
    "an older pool": lambda act, pool: pool[0].submit(act).result(),
    "an older ThreadPool": lambda act, pool: pool[1].apply(act),
    "an older ThreadPool's starmap": lambda act, pool: pool[1].starmap(lambda _: act(), [(1,)]),
    "an older ThreadPool's imap_unordered": lambda act, pool: list(
        pool[1].imap_unordered(lambda _: act(), [1])
    ),
    "a thread of a thread": lambda act, pool: _thread(lambda: _thread(act, pool), pool),
    "a pool in a thread": lambda act, pool: _thread(lambda: pool[0].submit(act).result(), pool),
    "run_in_executor": _in_loop(
        lambda act, pool: asyncio.get_running_loop().run_in_executor(None, act)
    ),
    "run_in_executor of an older pool": _in_loop(
        lambda act, pool: asyncio.get_running_loop().run_in_executor(pool[0], act)
    ),
    "to_thread": _in_loop(lambda act, pool: asyncio.to_thread(act)),
    "a copied context": lambda act, pool: contextvars.copy_context().run(act),
}


@pytest.fixture(scope="module")
def older() -> Iterator[Any]:
    """Pools that were there, with their threads, before any run."""
    queues: Any = (queue.SimpleQueue(), queue.SimpleQueue())
    worker = threading.Thread(target=_worker, args=queues)
    worker.start()
    with ThreadPoolExecutor(1) as pool, ThreadPool(1) as threads:
        pool.submit(int).result()
        threads.apply(int)
        yield pool, threads, queues
        queues[0].put(None)
        worker.join()
        # What served a run serves nobody else as a part of it.
        assert pool.submit(lambda: len(Marks().tool("denied_tool").invoke({"n": 1}))).result()


TRIED = [
    (way, where)
    for at, way in enumerate(WAYS)
    for where in (("node", "tool") if NIGHTLY else (("node", "tool")[at % 2],))
]


@pytest.mark.parametrize(("way", "where"), TRIED)
def test_threads_of_a_run_are_part_of_it(way: str, where: str, older: Any, office: Office) -> None:
    """Whatever thread a node or a tool has its work done in, it is recorded under the node, in
    the run's chain, and a denial ends the run."""
    marks, name = Marks(), f"{way} in a {where}"
    look_up, denied, after = marks.tools("write_note", "denied_tool", "look_up")

    def act() -> Any:
        look_up.invoke({"n": 1})
        denied.invoke({"n": 1})
        return after.invoke({"n": 1})

    outer = marks.tool("outer", lambda _: WAYS[way](act, older))
    work: Act = (
        (lambda: outer.invoke({"n": 1})) if where == "tool" else lambda: WAYS[way](act, older)
    )
    graph = govern(graph_of(one=lambda state: work() and {}).compile(), name)
    with pytest.raises(countersign.ActionDeniedError):
        graph.invoke(QUESTION)
    assert "denied_tool" not in marks
    assert "look_up" not in marks
    (chain,) = office.chains(name)
    told = [line for line in office.story(chain["id"]) if "tool_call" in line]
    expected = ["one: tool_call write_note", "one: tool_call denied_tool"]
    assert told == (["one: tool_call outer"] if where == "tool" else []) + expected
    # Without a run, the same threads do what they did.
    WAYS[way](lambda: denied.invoke({"n": 1}), older)
    assert marks[-1] == "denied_tool"


# -- a context that outlives its run ----------------------------------------------------------


def test_a_late_action_is_refused_and_says_why(office: Office) -> None:
    marks = Marks()
    tool, kept = marks.tool("write_note"), []

    def node(state: Any) -> Any:
        kept.append(contextvars.copy_context())
        return {}

    govern(graph_of(one=node).compile(), "outlived").invoke(QUESTION)
    with pytest.raises(RuntimeError, match=r"the run of 'outlived' .* has ended"):
        kept[0].run(tool.invoke, {"n": 1})
    assert marks == []


@pytest.mark.parametrize("how", ["context", "thread", "task"])
def test_a_context_that_outlives_its_run_opens_chains_of_its_own(office: Office, how: str) -> None:
    """A governed run in a task or thread that an earlier run has left behind is a run of its own,
    as often as there is one."""
    marks, name = Marks(), f"left behind: {how}"
    part = govern(agent(marks, ["write_note"]), f"{name}, later")
    go = threading.Event()
    left: list[Any] = []

    def later() -> None:
        go.wait(30)
        for _ in range(2):
            part.invoke(QUESTION)

    async def alater() -> None:
        await asyncio.to_thread(go.wait, 30)
        for _ in range(2):
            await part.ainvoke(QUESTION)

    def node(state: Any) -> Any:
        if how == "context":
            left.append(contextvars.copy_context())
        else:
            left.append(threading.Thread(target=later))
            left[0].start()
        return {}

    async def anode(state: Any) -> Any:
        left.append(asyncio.create_task(alater()))
        return {}

    async def main() -> None:
        await govern(graph_of(one=anode).compile(), name).ainvoke(QUESTION)
        go.set()
        await left[0]

    if how == "task":
        asyncio.run(main())
    else:
        govern(graph_of(one=node).compile(), name).invoke(QUESTION)
        go.set()
        left[0].run(later) if how == "context" else left[0].join(60)
    assert marks == ["write_note"] * 2
    assert [c["status"] for c in office.chains(f"{name}, later")] == ["completed"] * 2
    assert [c["status"] for c in office.chains(name)] == ["completed"]


# -- processes --------------------------------------------------------------------------------


def _child(act: Callable[[], Any]) -> str:
    """What something comes to in a forked child; nothing if it does not end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            os.write(writer, str(act()).encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader, "rb") as pipe:
        return pipe.read().decode()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("where", ["after a run", "in a run"])
def test_a_child_after_a_sync_call_in_a_running_loop(where: str, office: Office) -> None:
    """The parent's threads are gone in a child: it starts its own, and opens its own chains."""
    marks, name, told = Marks(), f"forked {where}", []
    graph = govern(agent(marks, ["write_note"]), name)

    def run() -> str:
        async def main() -> Any:
            return graph.invoke(QUESTION)["messages"][-1].content

        return str(asyncio.run(main()))

    assert run() == "done"
    if where == "after a run":
        told.append(_child(run))
    else:

        def node(state: Any) -> Any:
            told.append(_child(run))
            return {}

        govern(graph_of(one=node).compile()).invoke(QUESTION)
    assert told == ["done"]
    assert [c["status"] for c in office.chains(name)] == ["completed"] * 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_is_no_part_of_the_run(office: Office) -> None:
    """The run would not learn of a denial there: what its hooks see in a child is refused."""
    marks, told = Marks(), []
    tool = marks.tool("write_note")

    def node(state: Any) -> Any:
        told.append(_child(lambda: tool.invoke({"n": 1})))
        tool.invoke({"n": 2})
        return {}

    govern(graph_of(one=node).compile(), "child").invoke(QUESTION)
    assert "another process" in told[0]
    assert marks == ["write_note"]
    (chain,) = office.chains("child")
    assert len(office.outcomes(chain["id"])) == 1


# -- Pythons on which a task cannot be given a context ------------------------------------------


@contextmanager
def as_before_311(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """What LangGraph does on Python 3.10, and what the adapter does there."""
    patch.setattr(_runnable, "ASYNCIO_ACCEPTS_CONTEXT", False)
    patch.setattr(Governor, "_leaves_word", True)
    yield


def test_an_async_node_keeps_its_place(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes that make the same call, the second after a breakpoint: two bodies, two records,
    under the nodes' names."""
    marks = Marks()
    tool = marks.tool("write_note")

    async def node(state: Any) -> Any:
        await tool.ainvoke({"n": 1})
        await asyncio.gather(*(tool.ainvoke({"n": n}) for n in (2, 3)))
        return {}

    builder = graph_of(one=node, two=node)
    graph = builder.compile(checkpointer=InMemorySaver(), interrupt_before=["two"])
    with as_before_311(monkeypatch):
        asyncio.run(govern(graph, "places").ainvoke(QUESTION, THREAD))
        asyncio.run(govern(graph, "places").ainvoke(None, THREAD))
    assert marks == ["write_note"] * 6
    (chain,) = office.chains("places")
    assert chain["status"] == "completed"
    told = [line for line in office.story(chain["id"]) if "tool_call" in line]
    assert told == ["one: tool_call write_note"] * 3 + ["two: tool_call write_note"] * 3
