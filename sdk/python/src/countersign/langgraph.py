"""The same as :mod:`countersign.adapters.langgraph`."""

from countersign.adapters.langgraph import govern

__all__ = ["govern"]
