"""The same as :mod:`countersign.adapters.crewai`."""

from countersign.adapters.crewai import govern

__all__ = ["govern"]
