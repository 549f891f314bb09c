"""A chain's metadata: opaque, and sent as it was given."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from countersign._canonical import canonical
from countersign._plain import Snapshot
from countersign._redact import Sanitizer
from countersign.exceptions import ConfigurationError

__all__ = ["chain_metadata"]

logger = logging.getLogger("countersign")

_MAX_BYTES = 16 << 10  # of canonical JSON; metadata stands in the receipt


def chain_metadata(given: Mapping[str, Any], sanitizer: Sanitizer) -> dict[str, Any]:
    """The metadata as it is sent. What the service would refuse is refused here."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"metadata must be a mapping, not {type(given).__name__}")
    snapshot = Snapshot(given)
    if not isinstance(snapshot.value, dict) or not snapshot.faithful:
        raise ConfigurationError(
            "metadata must be JSON: finite numbers and integers up to 2**53, Unicode text, no "
            "object that JSON does not know, no cycle, and at most 60 levels"
        )
    size = len(canonical(snapshot.value))
    if size > _MAX_BYTES:
        raise ConfigurationError(
            f"metadata takes {size} bytes as JSON, and the service takes {_MAX_BYTES}: keep a "
            f"reference in it, and the rest elsewhere"
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
