"""LangGraph: graphs whose tools, model calls and nodes are governed before they run.

::

    from countersign.adapters.langgraph import govern

    graph = govern(builder.compile())
    graph.invoke({"messages": [("user", "pay invoice 7")]})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from countersign.adapters._shared import RunChain, missing_extra, step_key

try:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.errors import GraphInterrupt
    from langgraph.pregel import Pregel
except ImportError as error:
    raise missing_extra("langgraph", error) from error

from langchain_core.runnables.config import ensure_config, merge_configs

from countersign.adapters._governance import Governance
from countersign.adapters._governed import governed_copy

__all__ = ["govern"]

G = TypeVar("G", bound="Pregel[Any, Any, Any, Any]")

_KEY = "countersign_run"


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

    The chain's key is kept in the metadata of the graph's own checkpoints. A call that resumes
    finds it there and opens the same chain again; steps that are replayed have been recorded
    in it under the same idempotency keys.
    """

    def configured(self, config: RunnableConfig, chain: RunChain) -> RunnableConfig:
        return merge_configs(config, {"metadata": {_KEY: chain.key}})

    def unfinished(self, runnable: Any, config: Any) -> str | None:
        if key := _key_in_parent(config):
            return key
        if not _is_resumable(runnable, config):
            return None
        return _key_of(runnable.get_state(ensure_config(config)))

    async def unfinished_async(self, runnable: Any, config: Any) -> str | None:
        if key := _key_in_parent(config):
            return key
        if not _is_resumable(runnable, config):
            return None
        return _key_of(await runnable.aget_state(ensure_config(config)))

    def is_paused(self, runnable: Any, config: Any) -> bool:
        return _is_resumable(runnable, config) and bool(
            runnable.get_state(_newest(runnable, config)).next
        )

    async def is_paused_async(self, runnable: Any, config: Any) -> bool:
        return _is_resumable(runnable, config) and bool(
            (await runnable.aget_state(_newest(runnable, config))).next
        )

    def is_pause(self, error: Exception) -> bool:
        return isinstance(error, GraphInterrupt)


def _is_resumable(graph: Any, config: Any) -> bool:
    configurable = _configurable(graph, config)
    return isinstance(graph.checkpointer, BaseCheckpointSaver) and "thread_id" in configurable


def _configurable(graph: Any, config: Any) -> Mapping[str, Any]:
    merged = merge_configs(graph.config, ensure_config(config))
    return merged.get("configurable") or {}


def _newest(graph: Any, config: Any) -> RunnableConfig:
    """The thread as it is now, also after a run that began at an earlier checkpoint."""
    kept = {
        name: value
        for name, value in _configurable(graph, config).items()
        if name not in ("checkpoint_id", "checkpoint_map")
    }
    return {"configurable": kept}


def _key_of(snapshot: Any) -> str | None:
    """The key of an unfinished run's chain."""
    return (snapshot.metadata or {}).get(_KEY) if snapshot.next else None


def _key_in_parent(config: Any) -> str | None:
    """The key of a run inside a graph that is not governed itself: from the step that it is."""
    configurable = ensure_config(config).get("configurable") or {}
    step = configurable.get("checkpoint_ns")
    return step_key(configurable.get("thread_id"), step) if step else None
