"""Keys that are well formed and open nothing."""

from __future__ import annotations

from countersign._secret import API_KEY_PREFIX, check_of

__all__ = ["example_api_key"]


def example_api_key(fill: str = "0") -> str:
    """An API key of the right form that no service has issued.

    >>> example_api_key()[:8]
    'csk_0000'
    """
    signed = API_KEY_PREFIX + (fill * 43)[:43]
    return signed + check_of(signed)
