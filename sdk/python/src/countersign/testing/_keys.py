"""API keys that are well-formed but not valid."""

from __future__ import annotations

from countersign._secret import API_KEY_PREFIX, check_of

__all__ = ["example_api_key"]


def example_api_key(fill: str = "0") -> str:
    """Return a well-formed API key that no service has issued.

    >>> example_api_key()[:8]
    'csk_0000'
    """
    signed = API_KEY_PREFIX + (fill * 43)[:43]
    return signed + check_of(signed)
