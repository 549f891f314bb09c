"""LangGraph: graphs whose tools, model calls and nodes are governed before they run.

::

    from countersign.adapters.langgraph import govern

    graph = govern(builder.compile())
    graph.invoke({"messages": [("user", "pay invoice 7")]})

Hooks: the framework's callbacks before tools, models, retrievers and nodes (``_callbacks.py``),
and every public method of the graph (``_runnables.py``, ``_methods.py``). They do not see functions
that are called directly, such as a tool's ``func``, nor graphs that run elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from countersign._action import new_key
from countersign.adapters._shared import RunChain, SavedChain, missing_extra, step_key

try:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.errors import GraphInterrupt
    from langgraph.pregel import Pregel
except ImportError as error:
    raise missing_extra("langgraph", error) from error

from langchain_core.runnables.config import ensure_config, merge_configs

from countersign.adapters._governance import Governance
from countersign.adapters._runnables import governed_copy

__all__ = ["govern"]

G = TypeVar("G", bound="Pregel[Any, Any, Any, Any]")

_KEY = "countersign_run"
_CHAIN = "countersign_chain"
_CHECKPOINT = "checkpoint_id"
_CHECKPOINTS = "checkpoint_map"
_NAMESPACE = "checkpoint_ns"
_TASK = "__pregel_task_id"
"""What LangGraph gives to the parts of a node, and by which it tells a graph inside of another."""


def govern(
    compiled_graph: G,
    chain_name: str = "langgraph_workflow",
    metadata: Mapping[str, Any] | None = None,
) -> G:
    """A governed copy of a compiled graph, to be used wherever the graph was.

    Each run is one chain. Tool calls, model calls and entered nodes are recorded, and decided
    on, before they happen; the first denial ends the run and is raised from the outermost call.
    A run that is interrupted keeps its chain open until it is resumed.
    """
    if not isinstance(compiled_graph, Pregel):
        raise TypeError(_why_not(compiled_graph))
    name = compiled_graph.get_name()
    return governed_copy(compiled_graph, GraphGovernance(chain_name, metadata, name))


def _why_not(given: Any) -> str:
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    if hasattr(given, "compile"):
        return f"cannot govern a {kind} before it is compiled: pass the result of its compile()"
    if type(given).__name__ == "RemoteGraph":
        return f"cannot govern a {kind} from here: govern the graph in the process that runs it"
    return f"cannot govern a {kind}: langgraph.govern takes a compiled graph"


class GraphGovernance(Governance):
    """Runs of graphs, which can be interrupted and resumed, in another process too.

    What a chain was opened with is kept in the metadata of the graph's own checkpoints. A call
    that resumes finds it there and opens the same chain again; steps that are replayed have been
    recorded in it under the same idempotency keys.
    """

    def __init__(
        self, chain_name: str, metadata: Mapping[str, Any] | None, agent: str, graph: Any = None
    ) -> None:
        super().__init__(chain_name, metadata, agent)
        self._graph = graph  # the one that can be interrupted, where it is a part of what runs

    def extended(self, governed: Any) -> GraphGovernance:
        graph = self._graph or governed
        return GraphGovernance(self.chain_name, self.metadata, self.agent, graph)

    def configured(self, config: RunnableConfig, chain: RunChain) -> RunnableConfig:
        return _keeping(config, chain.saved)

    def remembering(self, runnable: Any, config: Any) -> Any:
        earlier = self.unfinished(runnable, config)
        return config if earlier is None else _keeping(config, earlier)

    async def remembering_async(self, runnable: Any, config: Any) -> Any:
        earlier = await self.unfinished_async(runnable, config)
        return config if earlier is None else _keeping(config, earlier)

    def unfinished(self, runnable: Any, config: Any) -> SavedChain | None:
        graph = self._graph or runnable
        if key := _key_in_parent(config):
            return SavedChain(key)
        if not _is_resumable(graph, config):
            return None
        begin = _begin(graph, config)
        earlier = _earlier(graph.get_state({"configurable": begin}))
        if earlier is not None and (given := begin.get(_CHECKPOINT)):
            return _as_branch(earlier, given, graph.get_state(_newest(graph, config)))
        return earlier

    async def unfinished_async(self, runnable: Any, config: Any) -> SavedChain | None:
        graph = self._graph or runnable
        if key := _key_in_parent(config):
            return SavedChain(key)
        if not _is_resumable(graph, config):
            return None
        begin = _begin(graph, config)
        earlier = _earlier(await graph.aget_state({"configurable": begin}))
        if earlier is not None and (given := begin.get(_CHECKPOINT)):
            return _as_branch(earlier, given, await graph.aget_state(_newest(graph, config)))
        return earlier

    def is_paused(self, runnable: Any, config: Any) -> bool:
        graph = self._graph or runnable
        return _is_resumable(graph, config) and _is_unfinished(
            graph.get_state(_newest(graph, config))
        )

    async def is_paused_async(self, runnable: Any, config: Any) -> bool:
        graph = self._graph or runnable
        return _is_resumable(graph, config) and _is_unfinished(
            await graph.aget_state(_newest(graph, config))
        )

    def is_pause(self, error: Exception) -> bool:
        return isinstance(error, GraphInterrupt)


def _keeping(config: RunnableConfig, opened: SavedChain) -> RunnableConfig:
    """The configuration, whose metadata the checkpoints of a run have."""
    kept = json.dumps(
        {"id": opened.chain_id, "opening": opened.opening, "branch": opened.branch}, default=str
    )
    return merge_configs(config, {"metadata": {_KEY: opened.key, _CHAIN: kept}})


def _is_resumable(graph: Any, config: Any) -> bool:
    configurable = _configurable(graph, config)
    return isinstance(graph.checkpointer, BaseCheckpointSaver) and "thread_id" in configurable


def _configurable(graph: Any, config: Any) -> Mapping[str, Any]:
    merged = merge_configs(graph.config, ensure_config(config))
    return merged.get("configurable") or {}


def _begin(graph: Any, config: Any) -> dict[str, Any]:
    """Where in its thread a run begins. LangGraph runs the outermost graph whichever namespace it
    is given, such as that of a subgraph's snapshot, and finds its checkpoint among those around."""
    given = dict(_configurable(graph, config))
    checkpoints = given.pop(_CHECKPOINTS, None) or {}
    namespace = given.get(_NAMESPACE)
    if namespace and _TASK not in given:
        namespace = given[_NAMESPACE] = ""
        given.pop(_CHECKPOINT, None)
    if namespace in checkpoints:
        given[_CHECKPOINT] = checkpoints[namespace]
    return given


def _newest(graph: Any, config: Any) -> RunnableConfig:
    """The thread as it is now, also after a run that began at an earlier checkpoint."""
    kept = _begin(graph, config)
    kept.pop(_CHECKPOINT, None)
    return {"configurable": kept}


def _is_unfinished(snapshot: Any) -> bool:
    """LangGraph 1.0 names no next node after a node has asked its second question."""
    return bool(snapshot.next or snapshot.interrupts)


def _earlier(snapshot: Any) -> SavedChain | None:
    """The chain of an unfinished run."""
    kept = snapshot.metadata or {}
    key = kept.get(_KEY)
    if not _is_unfinished(snapshot) or not isinstance(key, str):
        return None
    try:
        opened = json.loads(kept.get(_CHAIN) or "{}")
        branch = str(opened.get("branch") or "")
        return SavedChain(key, opened.get("id"), opened.get("opening"), branch)
    except (AttributeError, TypeError, ValueError):
        return SavedChain(key)


def _as_branch(earlier: SavedChain, checkpoint: str, newest: Any) -> SavedChain:
    """The chain for a run that begins at a checkpoint which its caller has named. What the graph
    did after an old one is done once more, and is not what was approved then."""
    if newest.config["configurable"].get(_CHECKPOINT) == checkpoint:
        return earlier
    return replace(earlier, branch=new_key())


def _key_in_parent(config: Any) -> str | None:
    """The key of a run inside a graph that is not governed itself: from the step that it is."""
    configurable = ensure_config(config).get("configurable") or {}
    step = configurable.get(_NAMESPACE)
    is_inside = bool(step) and _TASK in configurable
    return step_key(configurable.get("thread_id"), step) if is_inside else None
