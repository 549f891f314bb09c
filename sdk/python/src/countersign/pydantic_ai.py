"""The same as :mod:`countersign.adapters.pydantic_ai`."""

from countersign.adapters.pydantic_ai import govern

__all__ = ["govern"]
