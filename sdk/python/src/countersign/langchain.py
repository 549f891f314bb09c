"""The same as :mod:`countersign.adapters.langchain`."""

from typing import TYPE_CHECKING, Any

from countersign.adapters import langchain as _adapter
from countersign.adapters.langchain import govern

if TYPE_CHECKING:
    from countersign.adapters.langchain import GovernanceMiddleware as GovernanceMiddleware

__all__ = ["GovernanceMiddleware", "govern"]


def __getattr__(name: str) -> Any:
    return getattr(_adapter, name)
