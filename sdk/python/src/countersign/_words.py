"""The words of names, as the service cuts them."""

from __future__ import annotations

import re
import string

__all__ = ["lower", "normal", "words_of"]

# Characters beyond ASCII count as lower case letters: they match nothing, and never cut a word
# in two. HTTPServer2 is HTTP, Server, 2.
_LOWER = r"[^\x00-\x60\x7b-\x7f]"  # what is left is a-z and all beyond: quick to compile
_WORD = re.compile(f"[A-Z]+(?=[A-Z]{_LOWER})|[A-Z]?{_LOWER}+|[A-Z]+|[0-9]+")
_FOLD = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def lower(text: str) -> str:
    """Folds ASCII alone: other letters differ from language to language."""
    return text.lower() if text.isascii() else text.translate(_FOLD)


def words_of(name: str) -> list[str]:
    """The words of a name, in lower case.

    >>> words_of("sendHTTPRequest-2")
    ['send', 'http', 'request', '2']
    """
    return [lower(word) for word in _WORD.findall(name)]


def normal(name: str) -> str:
    """The one spelling under which names are looked up."""
    return "_".join(words_of(name))
