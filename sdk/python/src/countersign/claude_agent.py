"""The same as :mod:`countersign.adapters.claude_agent`."""

from countersign.adapters.claude_agent import GovernedClient, query

__all__ = ["GovernedClient", "query"]
