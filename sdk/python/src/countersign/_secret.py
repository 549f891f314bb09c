"""Secrets that are never printed, and the format of API keys."""

from __future__ import annotations

import string
import zlib

from countersign.exceptions import ConfigurationError

__all__ = ["API_KEY_PREFIX", "SecretStr", "parse_api_key"]

API_KEY_PREFIX = "csk_"
_BODY_LENGTH = 43
_CHECK_LENGTH = 6
_KEY_LENGTH = len(API_KEY_PREFIX) + _BODY_LENGTH + _CHECK_LENGTH
_BASE62 = string.digits + string.ascii_lowercase + string.ascii_uppercase


class SecretStr:
    """A string that is shown only by :meth:`reveal`.

    >>> key = SecretStr("hunter2")
    >>> print(key, [key])
    <redacted> [<redacted>]
    >>> key.reveal()
    'hunter2'
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __repr__(self) -> str:
        return "<redacted>"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretStr) and other._text == self._text

    def __hash__(self) -> int:
        return hash(("SecretStr", self._text))

    def __reduce__(self) -> str:
        # A pickle would contain the text in the clear.
        raise TypeError("a secret cannot be pickled; call countersign.init() in the other process")


def parse_api_key(text: str) -> SecretStr:
    """Check the format of an API key. No error repeats any part of it."""
    if not text.startswith(API_KEY_PREFIX):
        raise ConfigurationError(f"api_key: it must begin with {API_KEY_PREFIX}")
    if len(text) != _KEY_LENGTH:
        raise ConfigurationError(
            f"api_key: it must be {_KEY_LENGTH} characters long; "
            "was it cut off, or pasted with a space?"
        )
    if any(c not in _BASE62 for c in text[len(API_KEY_PREFIX) :]):
        raise ConfigurationError(
            f"api_key: after {API_KEY_PREFIX} it may hold only the letters a-z, A-Z and digits"
        )
    if check_of(text[:-_CHECK_LENGTH]) != text[-_CHECK_LENGTH:]:
        raise ConfigurationError(
            f"api_key: its last {_CHECK_LENGTH} characters do not match the rest; was it mistyped?"
        )
    return SecretStr(text)


def check_of(signed: str) -> str:
    """Return the check characters of a key: the CRC-32 of everything before them, in base62."""
    value = zlib.crc32(signed.encode("ascii"))
    digits = ""
    for _ in range(_CHECK_LENGTH):
        value, digit = divmod(value, 62)
        digits = _BASE62[digit] + digits
    return digits
