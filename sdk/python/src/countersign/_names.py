"""Names of agents, as they are compared: another spelling is not another agent."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

__all__ = ["folded"]

# Characters without a form of their own that are not of the categories Cc and Cf: fillers,
# joiners and variation selectors.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)


@lru_cache(maxsize=4096)
def folded(name: str) -> str:
    """The name after NFKC, case folding and removal of invisible characters.

    >>> folded("Int\u200bern") == folded("\uff49ntern") == "intern"
    True
    """
    if name.isascii() and name.isprintable():
        return name.casefold().strip()
    visible = _visible(unicodedata.normalize("NFKC", _visible(name)))
    # Folding can undo the normal form, and the normal form can bring capitals back.
    return unicodedata.normalize("NFKC", visible.casefold()).casefold().strip()


def _visible(name: str) -> str:
    kept = (c for c in _BLANK.sub("", name) if unicodedata.category(c) not in ("Cc", "Cf"))
    return "".join(kept)
