"""Finding secrets in text. The rules are the service's, plus the caller's patterns."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence

from countersign._words import lower, words_of

__all__ = ["REDACTED", "TextRedactor", "is_cookie", "without_credentials"]

REDACTED = "[REDACTED]"

# Lengths in characters. Shorter words are probably names: pk_id, hf_hub.
_MIN_SECRET = 8
_MIN_BEARER = 8  # if it contains a digit
_MIN_PLAIN_BEARER = 20

# Prefixes that only secrets have, in addition to the configurable patterns.
_BEGINNINGS = (
    *("sk-ant-", "sk-proj-", "sk-svcacct-", "sk-or-v1-", "xoxb-", "xoxp-", "xoxa-", "xoxr-"),
    *("xoxs-", "xapp-", "AIza", "github_pat_", "gho_", "ghu_", "ghs_", "ghr_", "glpat-", "ya29."),
    *("dop_v1_", "shpat_", "whsec_"),
)
# Prefixes that words have too: a secret continues with this many letters and digits.
_LIKELY = re.compile(
    r"ASIA[A-Za-z0-9]{8,}|SG\.[A-Za-z0-9]{16,}|npm_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9]{20,}"
)
_MAX_BASIC = 1000  # characters; longer base64 is not a name and password
_MAX_NAME = 1000  # characters at the end of a name that are searched for its last word
_MAX_LABEL = 59  # bytes between the dashes of a PEM key's first or last line

_RUN = re.compile(r"[A-Za-z0-9_]+")
_SECRET = re.compile(r"[A-Za-z0-9_\-.~+/=%]*")
_BEARER = re.compile(r"bearer ", re.IGNORECASE | re.ASCII)
_BASIC = re.compile(r"basic ", re.IGNORECASE | re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/]*=*")
_SCHEMES = frozenset(
    "basic bearer digest negotiate ntlm token apikey key hawk aws4-hmac-sha256".split()
)
_AUTHORITY = re.compile(r"""[^/?#\\"<>`\x00-\x20]*""")
_HEADER = re.compile(r"""[^\r\n"'`]*""")
# The first line of a private key, and the last line of any key.
_KEY_BEGINS = re.compile(rf"-----BEGIN (?=[A-Z0-9 ]{{0,{_MAX_LABEL}}}-----)[A-Z0-9 ]*PRIVATE KEY")
_KEY_ENDS = re.compile(r"-----END ")
_NEXT = re.compile(r"[A-Za-z0-9_]|-----BEGIN ")
# The ways to assign a value to a name: name=value, name="value", "name": "value".
_GIVES = re.compile(r"""=(?P<quote>["']?)|["'] ?: ?(?P<json>["'])""")
_UNQUOTED = re.compile(r"""[^\x00-\x20&;,"'`<>)}]*""")


class TextRedactor:
    """Redacts words that begin like a secret, bearer tokens and the values of sensitive names.
    Redacting is idempotent."""

    def __init__(
        self,
        prefixes: Sequence[str],
        is_sensitive: Callable[[str], bool],
        is_counter: Callable[[str], bool],
    ) -> None:
        self._prefixes = tuple(prefixes)
        self._is_sensitive = is_sensitive
        self._is_counter = is_counter
        self._prefixes += tuple(p for p in _BEGINNINGS if p not in self._prefixes)
        starts = "|".join(re.escape(p) for p in self._prefixes)
        # Most texts contain none of these and need no full search. The prefixes are compared only
        # where a word begins, as in the full search.
        words = rf"{starts}|{_LIKELY.pattern}|(?i:bearer |basic )"
        self._trigger = re.compile(rf"""\b(?:{words})|=|["'] ?:|: |://|-----BEGIN """, re.ASCII)
        self._start = re.compile(starts)

    def value(self, text: str) -> str:
        """Redact a value. If it begins like a secret, all of it is one."""
        if text.startswith(self._prefixes):
            return REDACTED
        return self.inside(text)

    def prose(self, text: str) -> str:
        """Redact free text. A secret at the start does not extend to the rest."""
        if found := self._start.match(text):
            end = _end_of_secret(text, found.end())
            return REDACTED + self.inside(text[end:])
        return self.inside(text)

    def inside(self, text: str) -> str:
        """Redact the secrets inside a text."""
        if self._trigger.search(text) is None:
            return text
        parts: list[str] = []
        copied = 0
        for start, end in self._secrets(text):
            parts += (text[copied:start], REDACTED)
            copied = end
        return "".join(parts) + text[copied:]

    def _secrets(self, text: str) -> list[tuple[int, int]]:
        """Return the start and end of every secret, in order."""
        walk = _Walk(text)
        at = 0
        while at < len(text):
            if at == walk.password[0] and at > 0:
                at = walk.note(at, walk.password[1])
            elif run := _RUN.match(text, at):
                at = self._word(walk, at, run.end())
            elif _KEY_BEGINS.match(text, at):
                at = walk.note(at, _end_of_key(text, at))
            elif walk.ended != at or at == 0:
                at = walk.next(at + 1)
            elif text[at] == "-":
                at = walk.ended = at + 1  # api-key is one name
            else:
                at = self._after_name(walk, at)
        return walk.found

    def _word(self, walk: _Walk, at: int, end: int) -> int:
        if walk.ended != at or at == 0:
            walk.name = at
        if secret := self._secret_at(walk.text, at):
            return walk.note(*secret)
        walk.ended = end
        return end

    def _secret_at(self, text: str, at: int) -> tuple[int, int] | None:
        if start := self._start.match(text, at):
            end = _end_of_secret(text, start.end())
            if end - start.end() >= _MIN_SECRET:
                return at, end
        if likely := _LIKELY.match(text, at):
            return at, _end_of_secret(text, likely.end())
        if bearer := _BEARER.match(text, at):
            end = _end_of_secret(text, bearer.end())
            if _is_bearer(text, at, bearer.end(), end):
                return bearer.end(), end
        if basic := _BASIC.match(text, at):
            return _basic_credentials(text, at, basic.end())
        return None

    def _after_name(self, walk: _Walk, at: int) -> int:
        """Note the value after a name if it is a secret. Returns where to continue."""
        text, name = walk.text, walk.text[walk.name : at]
        if text[at] == ":":
            return self._after_colon(walk, at, name)
        given = _GIVES.match(text, at)
        if given is None or not (self._is_sensitive(name) or is_cookie(name)):
            return at + 1
        start = given.end()
        quote = given["quote"] or given["json"]
        stop = _end_of_quoted(text, start, quote) if quote else _end_of_value(text, start)
        value = text[start:stop]
        number = value.isascii() and value.isdigit()
        if not value or (number and (self._is_counter(name) or is_cookie(name))):
            return stop
        return walk.note(start, stop)

    def _after_colon(self, walk: _Walk, at: int, name: str) -> int:
        """Note a secret after a URL scheme or a header's name. Returns where to continue."""
        text = walk.text
        if text.startswith("://", at):
            walk.password = _password_in(text, at + 3)
            return at + 3
        start = at + 1
        while text[start : start + 1] == " ":
            start += 1
        if start == at + 1:
            return start
        end = _end_of_value(text, start)
        if is_cookie(name) and text.find("=", start, end) > start:
            return walk.note(start, _HEADER.match(text, start).end())  # type: ignore[union-attr]
        # An earlier redaction's marks must not make a value look longer, and random.
        value = text[start:end].replace(REDACTED, "")
        if "-" in name and self._is_sensitive(name) and _is_random(value):
            return walk.note(start, end)
        return at + 1


class _Walk:
    """The state of one search."""

    __slots__ = ("ended", "found", "name", "password", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[tuple[int, int]] = []
        self.name = 0  # start of the words and hyphens before the cursor
        self.ended = 0  # end of those words
        self.password = (0, 0)  # start and end of the password in the current URL

    def note(self, start: int, end: int) -> int:
        self.found.append((start, end))
        return end

    def next(self, at: int) -> int:
        """Return the next position at which a word, key or password can begin."""
        found = _NEXT.search(self.text, at)
        after = found.start() if found else len(self.text)
        return self.password[0] if at <= self.password[0] < after else after


def is_cookie(name: str) -> bool:
    """Whether the last word of a name is cookie. cookie_policy and cookies_accepted are not."""
    words = words_of(name[-_MAX_NAME:])
    return bool(words) and words[-1] in ("cookie", "cookies")


def without_credentials(name: str, value: str) -> str | None:
    """Return the value of an authorization header without its credentials. None if it has none:
    ``authorization`` can also be a state, such as pending."""
    if words_of(name[-_MAX_NAME:])[-1:] != ["authorization"]:
        return None
    scheme, blank, rest = value.partition(" ")
    if not blank:
        whole = _is_random(value) and _end_of_secret(value, 0) == len(value)
        return REDACTED if whole else None
    if lower(scheme) in _SCHEMES and rest.strip(" "):
        return f"{scheme} {REDACTED}"
    return None


def _basic_credentials(text: str, at: int, start: int) -> tuple[int, int] | None:
    """Return the bounds of the credentials after "basic". Without a header's name before it, they
    must be a name and password in base64: "basic research" has none."""
    name = at
    while name > 0 and text[name - 1] in " :=\"'":
        name -= 1
    if name < at and lower(text[max(name - 13, 0) : name]) == "authorization":
        end = _end_of_secret(text, start)
        return (start, end) if end > start else None
    end = _BASE64.match(text, start).end()  # type: ignore[union-attr]
    return (start, end) if _holds_password(text[start:end]) else None


def _holds_password(token: str) -> bool:
    token = token.rstrip("=")
    if not _MIN_SECRET <= len(token) <= _MAX_BASIC:
        return False
    try:
        plain = base64.b64decode(token + "=" * (-len(token) % 4), validate=True)
    except ValueError:
        return False
    return plain.find(b":") > 0 and all(0x20 <= b <= 0x7E for b in plain)


def _password_in(text: str, start: int) -> tuple[int, int]:
    authority = _AUTHORITY.match(text, start)[0]  # type: ignore[index]
    user, _, _ = authority.rpartition("@")
    colon = user.find(":")
    if colon < 0 or colon + 1 == len(user):
        return 0, 0
    return start + colon + 1, start + len(user)


def _end_of_key(text: str, at: int) -> int:
    """Return the end of a PEM key; the end of the text if the key was cut."""
    if ends := _KEY_ENDS.search(text, at):
        dashes = text.find("-----", ends.end(), ends.end() + _MAX_LABEL + 5)
        if dashes >= 0 and len(text[ends.end() : dashes].encode("utf-8", "replace")) <= _MAX_LABEL:
            return dashes + 5
    return len(text)


def _end_of_value(text: str, start: int) -> int:
    return _UNQUOTED.match(text, start).end()  # type: ignore[union-attr]


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
        return True  # the text is only the header
    return _is_random(token)


def _is_random(token: str) -> bool:
    """Whether a text looks like a token rather than a word. Lengths are in bytes, as in the
    service."""
    size = len(token) if token.isascii() else len(token.encode("utf-8", "replace"))
    if size >= _MIN_PLAIN_BEARER:
        return True
    return size >= _MIN_BEARER and any("0" <= c <= "9" for c in token)


def _end_of_quoted(text: str, at: int, quote: str) -> int:
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" else 1
    return min(at, len(text))
