"""The same as :mod:`countersign.adapters.openai_agents`."""

from countersign.adapters.openai_agents import GovernedRunner

__all__ = ["GovernedRunner"]
