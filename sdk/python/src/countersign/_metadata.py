"""A chain's metadata: opaque, and sent as it was given."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from countersign._plain import Snapshot
from countersign._redact import Sanitizer
from countersign.exceptions import ConfigurationError

__all__ = ["chain_metadata"]

logger = logging.getLogger("countersign")


def chain_metadata(given: Mapping[str, Any], sanitizer: Sanitizer) -> dict[str, Any]:
    """The metadata as it is sent: not redacted, cut or bounded. What is no JSON is refused here;
    how large it may be is for the service to say."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"metadata must be a mapping, not {type(given).__name__}")
    snapshot = Snapshot(given)
    if not isinstance(snapshot.value, dict) or not snapshot.faithful:
        raise ConfigurationError(
            "metadata must be JSON: finite numbers and integers up to 2**53, Unicode text, no "
            "object that JSON does not know, no cycle, and at most 60 levels"
        )
    _warn_of_secrets(snapshot.value, sanitizer)
    return snapshot.value


def _warn_of_secrets(value: dict[str, Any], sanitizer: Sanitizer) -> None:
    suspects = sanitizer.secrets_in(value)
    if suspects:
        logger.warning(
            "the chain's metadata stands in its receipt as it is, and %d of its values look like "
            "secrets, the first at %s: take them out",
            len(suspects),
            suspects[0],
        )
