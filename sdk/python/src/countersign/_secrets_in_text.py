"""Secrets inside longer texts: the service's rules, with the caller's patterns added."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

__all__ = ["REDACTED", "TextRedactor"]

REDACTED = "[REDACTED]"

# Shorter words are more likely names: pk_id, hf_hub.
_MIN_SECRET = 8
_MIN_BEARER = 8  # with a digit in it
_MIN_PLAIN_BEARER = 20

_RUN = re.compile(r"[A-Za-z0-9_]+")
_SECRET = re.compile(r"[A-Za-z0-9_\-.~+/=%]*")
_BEARER = re.compile(r"bearer ", re.IGNORECASE | re.ASCII)
# What a name can be followed by to give it a value: name=value, name="value", "name": "value".
_GIVES = re.compile(r"""=(?P<quote>["']?)|["'] ?: ?(?P<json>["'])""")
_UNQUOTED = re.compile(r"""[^\x00-\x20&;,"'`<>)}]*""")


class TextRedactor:
    """Takes out words that begin like a secret, bearer tokens, and the values given to
    sensitive names. Redacting twice changes nothing more."""

    def __init__(
        self,
        prefixes: Sequence[str],
        is_sensitive: Callable[[str], bool],
        is_counter: Callable[[str], bool],
    ) -> None:
        self._prefixes = tuple(prefixes)
        self._is_sensitive = is_sensitive
        self._is_counter = is_counter
        starts = "|".join(re.escape(p) for p in prefixes) or "(?!)"
        # Most texts hold none of these, and need no closer look.
        self._trigger = re.compile(rf"""{starts}|(?i:bearer )|=|["'] ?:""", re.ASCII)
        self._start = re.compile(starts)

    def value(self, text: str) -> str:
        """Redact a string that stands alone: one that begins like a secret is one."""
        if text.startswith(self._prefixes):
            return REDACTED
        return self.inside(text)

    def prose(self, text: str) -> str:
        """Redact free text: a secret at the start does not take the rest with it."""
        if found := self._start.match(text):
            end = _end_of_secret(text, found.end())
            return REDACTED + self.inside(text[end:])
        return self.inside(text)

    def inside(self, text: str) -> str:
        """Redact what stands in the text, from its second word on or alone."""
        if self._trigger.search(text) is None:
            return text
        parts: list[str] = []
        copied = 0
        for start, end in self._secrets(text):
            parts += (text[copied:start], REDACTED)
            copied = end
        return "".join(parts) + text[copied:]

    def _secrets(self, text: str) -> list[tuple[int, int]]:
        """The bounds of every secret, in order."""
        found: list[tuple[int, int]] = []
        at = 0
        while word := _RUN.search(text, at):
            begin, at = word.span()
            while True:  # api-key is one name, of which each word may itself be a secret
                secret = self._secret_at(text, word.start())
                if secret is not None:
                    found.append(secret)
                    at = secret[1]
                    break
                at = word.end()
                while text[at : at + 1] == "-":
                    at += 1
                following = _RUN.match(text, at) if at > word.end() else None
                if following is None:
                    at = self._value_after(text, begin, at, found)
                    break
                word = following
        return found

    def _secret_at(self, text: str, at: int) -> tuple[int, int] | None:
        if start := self._start.match(text, at):
            end = _end_of_secret(text, start.end())
            if end - start.end() >= _MIN_SECRET:
                return at, end
        if bearer := _BEARER.match(text, at):
            end = _end_of_secret(text, bearer.end())
            if _is_bearer(text, at, bearer.end(), end):
                return bearer.end(), end
        return None

    def _value_after(self, text: str, begin: int, end: int, found: list[tuple[int, int]]) -> int:
        """Look at what follows a name, note its value if it is a secret, and say where to go on."""
        given = _GIVES.match(text, end)
        name = text[begin:end]
        if given is None or not self._is_sensitive(name):
            return end
        start = given.end()
        quote = given["quote"] or given["json"]
        stop = _end_of_quoted(text, start, quote) if quote else _UNQUOTED.match(text, start).end()  # type: ignore[union-attr]
        value = text[start:stop]
        if value and not (self._is_counter(name) and value.isascii() and value.isdigit()):
            found.append((start, stop))
        return stop


def _end_of_secret(text: str, start: int) -> int:
    end = _SECRET.match(text, start).end()  # type: ignore[union-attr]
    while end > start and text[end - 1] == ".":
        end -= 1  # the dot that ends a sentence
    return end


def _is_bearer(text: str, at: int, start: int, end: int) -> bool:
    token = text[start:end]
    if not token:
        return False
    if at == 0 and end == len(text):
        return True  # nothing but the header
    long = len(token) >= _MIN_PLAIN_BEARER
    return long or (len(token) >= _MIN_BEARER and any("0" <= c <= "9" for c in token))


def _end_of_quoted(text: str, at: int, quote: str) -> int:
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" else 1
    return min(at, len(text))
