"""A chain's metadata, which is sent unchanged."""

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
    """Return the metadata as it is sent: neither redacted nor cut. Raises ``ConfigurationError``
    for anything that is not JSON. The service limits the size."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"metadata must be a mapping, not {type(given).__name__}")
    snapshot = Snapshot(given)
    if not isinstance(snapshot.value, dict) or not snapshot.faithful:
        raise ConfigurationError(
            "metadata must be JSON: only JSON types, finite numbers, integers up to 2**53, "
            "valid Unicode text, keys of at most 1000 characters, no cycles and at most 60 levels"
        )
    _warn_of_secrets(snapshot.value, sanitizer)
    return snapshot.value


def _warn_of_secrets(value: dict[str, Any], sanitizer: Sanitizer) -> None:
    suspects = sanitizer.secrets_in(value)
    if suspects:
        logger.warning(
            "the chain's metadata is copied into its receipt, and %d of its values look like "
            "secrets, the first at %s: remove them",
            len(suspects),
            suspects[0],
        )
