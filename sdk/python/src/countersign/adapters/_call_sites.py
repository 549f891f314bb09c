"""Where in a run something happens: in which agent, and in which step."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from countersign.adapters._shared import step_key

__all__ = ["CallSite", "CallSites"]

_UNNAMED_GRAPH = "LangGraph"
_HIDDEN = "langsmith:hidden"
_PREBUILT = frozenset(
    """agent model tools call_model pre_model_hook post_model_hook
    generate_structured_response __start__""".split()
)
"""Nodes that the frameworks' prebuilt agents consist of: their agent acts in them, not they."""
_MIDDLEWARE = (".before_agent", ".before_model", ".after_model", ".after_agent")


@dataclass(frozen=True)
class CallSite:
    """The surroundings of a call."""

    run: str
    """The name of what runs there: a graph, a node, a runnable."""
    agent: str
    parent_agent: str | None = None
    step: str = ""
    """The node's identity, the same when the node is replayed."""
    outermost: bool = False
    entry: str = ""
    """Of a node: what it shares with those that run beside it in the same step of its graph."""
    _graph: list[str] = field(default_factory=list, compare=False)
    _seen: dict[str, int] = field(default_factory=dict, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False)
    _graph_lock: threading.Lock = field(default_factory=threading.Lock, compare=False)

    def inner(self, run: str, outermost: bool) -> CallSite:
        """The surroundings of what something calls that runs here, and is no node."""
        # Without replace(), which takes far longer: there are more of these than of anything else.
        return CallSite(
            run,
            self.agent,
            self.parent_agent,
            self.step,
            outermost,
            self.entry,
            _seen=self._seen,
            _lock=self._lock,
        )

    def key_of(self, kind: str, name: str, payload: Any, call_id: str | None) -> str:
        """What identifies a call here, but for how often it is made: the step, and the call's
        own identity. See :meth:`countersign.adapters._run.Run.attempt`."""
        return step_key(self.step, kind, name, payload, call_id)

    def graph_key(self) -> str:
        """The identity of a graph's run: the nth of its name within the step around it."""
        with self._graph_lock:
            if not self._graph:
                which = self.key_of("graph", self.run, None, None)
                with self._lock:
                    nth = self._seen[which] = self._seen.get(which, 0) + 1
                self._graph.append(step_key(which, nth))
        return self._graph[0]


class CallSites:
    """The places of one run, by the identifiers that the framework gives to its calls."""

    def __init__(self, agent: str, parent_agent: str | None, step: str = "") -> None:
        self._root = CallSite("", agent, parent_agent, step, outermost=True)
        self._sites: dict[UUID, CallSite] = {}

    def enter(
        self,
        run_id: UUID,
        parent_run_id: UUID | None,
        name: str,
        tags: list[str] | None,
        metadata: dict[str, Any] | None,
    ) -> tuple[CallSite, bool]:
        """The place of something that starts, and whether it is a node of a graph."""
        parent = self._parent_of(parent_run_id)
        entered = _is_node(name, tags, metadata)
        if entered:
            assert metadata is not None
            site = _node(parent, name, metadata)
        else:
            # The outermost call is that of the governed object itself.
            outermost = parent is self._root and not self._sites
            site = parent.inner(name, outermost)
        self._sites[run_id] = site
        return site, entered

    def add_call(self, run_id: UUID, parent_run_id: UUID | None) -> CallSite:
        """The place of a call that happens in what runs already."""
        site = self._parent_of(parent_run_id)
        if site.outermost:
            site = replace(site, outermost=False)
        self._sites[run_id] = site
        return site

    def leave(self, run_id: UUID) -> None:
        self._sites.pop(run_id, None)

    def _parent_of(self, parent_run_id: UUID | None) -> CallSite:
        return self._sites.get(parent_run_id, self._root) if parent_run_id else self._root


def _is_node(name: str, tags: list[str] | None, metadata: dict[str, Any] | None) -> bool:
    if not metadata or metadata.get("langgraph_node") != name or not tags:
        return False
    return _HIDDEN not in tags and any(tag.startswith("graph:step:") for tag in tags)


def _node(graph: CallSite, name: str, metadata: dict[str, Any]) -> CallSite:
    """The place of a node. Its agent is the node itself, unless it is a part of which a
    prebuilt agent is made: then it is that agent."""
    agent, parent = graph.agent, graph.parent_agent
    if not graph.outermost and graph.run not in (_UNNAMED_GRAPH, agent):
        agent, parent = graph.run, agent
    if name not in _PREBUILT and not name.endswith(_MIDDLEWARE):
        agent, parent = name, agent
    step = str(metadata.get("langgraph_checkpoint_ns", ""))
    entry = step_key(graph.graph_key(), name, metadata.get("langgraph_step"))
    return CallSite(name, agent, parent, step, entry=entry)
