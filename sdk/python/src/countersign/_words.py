"""Splitting names into words, and comparing names. The rules are the service's."""

from __future__ import annotations

import re
import string
import unicodedata
from functools import lru_cache

__all__ = ["first_word", "fold_name", "lower", "snake_case", "words_of"]

# Characters beyond ASCII count as lower case letters: they match no known word and never divide
# one. HTTPServer2 is HTTP, Server, 2.
_LOWER = r"[^\x00-\x60\x7b-\x7f]"  # a-z and everything beyond ASCII, in a form that compiles fast
_WORD = re.compile(f"[A-Z]+(?=[A-Z]{_LOWER})|[A-Z]?{_LOWER}+|[A-Z]+|[0-9]+")
_FOLD = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)

# Unicode white space.
_BLANKS = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
# Control characters, Unicode's default-ignorable and format characters, and the Braille blank. The
# ranges are written out, so that Go and Python agree whatever version of Unicode they have.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891"
    "\u08e2\u115f-\u1160\u17b4-\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def lower(text: str) -> str:
    """Fold the case of ASCII letters only: other letters fold differently in each language."""
    return text.lower() if text.isascii() else text.translate(_FOLD)


def words_of(name: str) -> list[str]:
    """Return the words of a name, in lower case.

    >>> words_of("sendHTTPRequest-2")
    ['send', 'http', 'request', '2']
    """
    return [lower(word) for word in _WORD.findall(name)]


def first_word(text: str) -> str:
    """Return the first word of a text, in lower case; an empty string if it has none.

    >>> first_word("-- SELECT name"), first_word("--")
    ('select', '')
    """
    found = _WORD.search(text)
    return lower(found[0]) if found else ""


def snake_case(name: str) -> str:
    """Return a name in snake case, in which names are looked up."""
    return "_".join(words_of(name))


@lru_cache(maxsize=2048)
def fold_name(name: str) -> str:
    """Return a name in the form in which names are compared: compatibility characters replaced
    (NFKC), case folded, invisible characters removed, white space trimmed and collapsed. Letters
    that only look alike, such as Cyrillic and Latin a, stay different.

    >>> fold_name(" In\\u200btern ")
    'intern'
    """
    if not name.isascii():
        name = unicodedata.normalize("NFKC", _visible(name))
        name = unicodedata.normalize("NFKC", name.casefold())
        # Folding can produce characters that must be removed or that combine.
        return unicodedata.normalize("NFKC", _visible(name)).strip(" ")
    return _visible(name.lower()).strip(" ")


def _visible(name: str) -> str:
    return _BLANKS.sub(" ", _INVISIBLE.sub("", name))
