"""Denials that the frameworks let pass.

LangGraph's tool nodes, retries and error handlers treat an exception as something that went
wrong with a tool. What derives from ``GraphBubbleUp`` they hand on, whatever it is.
"""

from __future__ import annotations

from countersign import exceptions
from countersign.adapters._outcomes import Ending, ending_of

try:
    from langgraph.errors import GraphBubbleUp, GraphInterrupt
except ImportError:  # LangChain alone, in which nothing is to be passed
    CONTROL_FLOW: tuple[type[BaseException], ...] = ()

    def as_bubble_up(error: Exception) -> Exception:
        """The error as a hook raises it."""
        return error if not isinstance(error, NotImplementedError) else RuntimeError(str(error))

    def body_ending(error: BaseException | None) -> Ending | None:
        """How a body ended that raised an error, or none."""
        return ending_of(error)

else:
    CONTROL_FLOW = (GraphBubbleUp,)

    class Refused(GraphBubbleUp, RuntimeError):
        """Something kept an action from being recorded: it must not be carried out."""

    _KINDS: dict[type[Exception], type[Exception]] = {}

    def as_bubble_up(error: Exception) -> Exception:
        """The error as a hook raises it: both itself and what the framework lets pass."""
        kind = type(error)
        if isinstance(error, GraphBubbleUp):
            return error
        if kind.__module__ != exceptions.__name__:
            return Refused(f"{kind.__name__}: {error}")
        both = _KINDS.get(kind)
        if both is None:
            names = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__repr__": _brief}
            both = _KINDS[kind] = type(kind.__name__, (kind, GraphBubbleUp), names)
        return both(*error.args)

    def body_ending(error: BaseException | None) -> Ending | None:
        """How a body ended; nothing for one that was interrupted to be resumed."""
        if isinstance(error, GraphInterrupt):
            return None
        refused = isinstance(error, Refused) or type(error) in _KINDS.values()
        # What else steers the graph, such as a command to the graph around it, is no failure.
        steers = isinstance(error, GraphBubbleUp) and not refused
        return ending_of(None if steers else error)


def _brief(error: Exception) -> str:
    # The frameworks log what a hook raises: no identifiers of the decision in there.
    return f"{type(error).__name__}({str(error)!r})"


__all__ = ["CONTROL_FLOW", "as_bubble_up", "body_ending"]
