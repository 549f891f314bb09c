"""LangChain: chains and agent executors whose tools and model calls are governed before they run.

::

    from countersign.adapters.langchain import govern

    executor = govern(AgentExecutor(agent=agent, tools=tools))
    executor.invoke({"input": "pay invoice 7"})

Hooks: the framework's callbacks before tools, models and retrievers (``_callbacks.py``), and every
public method of the object (``_runnables.py``, ``_methods.py``). They do not see functions that are
called directly, such as a tool's ``func``, nor the parts of a governed object called by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from countersign.adapters._shared import missing_extra

try:
    from langchain_core.runnables import Runnable
    from langchain_core.tools import BaseTool
except ImportError as error:
    raise missing_extra("langchain", error) from error

from countersign.adapters._governance import Governance
from countersign.adapters._runnables import governed_copy

try:
    from langgraph.pregel import Pregel

    from countersign.adapters.langgraph import GraphGovernance
except ImportError:
    Pregel = GraphGovernance = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from countersign.adapters._middleware import GovernanceMiddleware as GovernanceMiddleware

__all__ = ["GovernanceMiddleware", "govern"]

R = TypeVar("R", bound="Runnable[Any, Any]")


def govern(
    agent_executor_or_chain: R,
    chain_name: str = "langchain_workflow",
    metadata: Mapping[str, Any] | None = None,
) -> R:
    """A governed copy of a chain or an agent executor, to be used wherever the original was.

    Each run is one chain. Tool calls and model calls are recorded, and decided on, before they
    happen, under the name of the object's type; the first denial ends the run and is raised
    from the outermost call. A graph, such as ``create_agent`` makes, may be interrupted and
    resumed as with :mod:`countersign.adapters.langgraph`.
    """
    given = agent_executor_or_chain
    kind = type(given)
    if not isinstance(given, Runnable) or isinstance(given, BaseTool):
        raise TypeError(
            f"cannot govern a {kind.__module__}.{kind.__qualname__}: langchain.govern takes the "
            "chain, agent or agent executor that calls tools and models"
        )
    is_graph = Pregel is not None and isinstance(given, Pregel)
    governance = (GraphGovernance if is_graph else Governance)(chain_name, metadata, kind.__name__)
    return governed_copy(given, governance)


def __getattr__(name: str) -> Any:
    # It needs the package langchain, which chains and executors can do without.
    if name == "GovernanceMiddleware":
        try:
            from countersign.adapters._middleware import GovernanceMiddleware
        except ImportError as error:
            raise ImportError(
                f"GovernanceMiddleware needs the package langchain, 1.0 or later ({error})"
            ) from error
        return GovernanceMiddleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
