"""Validation of parameters. Every message begins with the parameter's name and never contains a
value that could be a secret."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from countersign._words import fold_name
from countersign.exceptions import ConfigurationError

_N = TypeVar("_N", bound=float)
# What the service accepts. It would refuse anything else only when the first chain is opened.
_DOMAIN = re.compile(
    r"([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII
)
_DOTS = re.compile("[.\u3002\uff0e\uff61]")
# Older and newer standards for domains read these differently: sharp s, final sigma, joiners.
_READ_DIFFERENTLY = re.compile("[\u00df\u1e9e\u03c2\u200c\u200d]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BLANK = re.compile(r"[\s\x00-\x1f\x7f]")
# Words between dots, without anything that would need quotes. An IP address is in brackets.
_WORD = r"[^\s\x00-\x1f\x7f.@,:;<>()\[\]\"\\]+"
_WORDS = rf"{_WORD}(?:\.{_WORD})*"
_ADDRESS = re.compile(rf"{_WORDS}@(?:{_WORDS}|\[(?P<ip>[0-9A-Fa-f.:]+)\])")


def text(name: str, value: Any, longest: int) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} must be a string, not {type(value).__name__}")
    if not value.strip():
        raise ConfigurationError(f"{name} must not be empty")
    if len(value) > longest:
        raise ConfigurationError(f"{name} must be at most {longest} characters long")
    if "\x00" in value:
        raise ConfigurationError(f"{name} must not contain the character U+0000")
    return opaque(name, value)


def label(name: str, value: Any, longest: int) -> str:
    if _CONTROL.search(text(name, value, longest)):
        raise ConfigurationError(f"{name} must not contain control characters")
    return str(value)


def opaque(name: str, value: Any) -> str:
    """Check a text that the service stores unchanged. The service enforces further limits."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} must be a string, not {type(value).__name__}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name} must be valid Unicode: it has a lone surrogate") from None
    return value


def texts(name: str, value: Any, most: int, longest: int) -> tuple[str, ...] | None:
    if value is None:
        return None
    # A string is a sequence of its letters: an easy mistake without an error.
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, set, frozenset)):
        raise ConfigurationError(f"{name} must be a list of strings")
    if len(value) > most:
        raise ConfigurationError(f"{name} must have at most {most} elements")
    items = sorted(value) if isinstance(value, (set, frozenset)) else value
    return tuple(text(f"{name}[{i}]", item, longest) for i, item in enumerate(items))


def domains(name: str, value: Any) -> tuple[str, ...] | None:
    """Return domains in the spelling that the service compares."""
    given = texts(name, value, 1000, 254)
    if given is None:
        return None
    return tuple(_domain(f"{name}[{i}]", domain) for i, domain in enumerate(given))


def _domain(name: str, given: str) -> str:
    spelled = given.lower()
    if not given.isascii():
        try:
            spelled = given.encode("idna").decode("ascii").lower()
        except UnicodeError:
            spelled = ""
        labels = list(zip(_DOTS.split(given), spelled.split("."), strict=False))
        # Some letters of other scripts become Latin ones: nobody sees which domain is meant.
        if not all(was.isascii() or now.startswith("xn--") for was, now in labels):
            spelled = ""
        if _READ_DIFFERENTLY.search(given) or (spelled and not all(map(_is_current, labels))):
            raise ConfigurationError(
                f"{name} must be in the form that is looked up, such as xn--..."
            )
    spelled = spelled.removesuffix(".")
    if len(spelled) > 253 or not _DOMAIN.fullmatch(spelled):
        raise ConfigurationError(f"{name} must be a domain, such as example.com")
    return spelled


def _is_current(label: tuple[str, str]) -> bool:
    """Whether the newer standard, which the service follows, reads a label the same: Python's codec
    follows the older one, with the normalization of that time."""
    was, now = label
    if was.isascii():
        return True
    return now == "xn--" + fold_name(was).encode("punycode").decode("ascii")


def addresses(name: str, value: Any) -> tuple[str, ...] | None:
    given = texts(name, value, 20, 254)
    for i, address in enumerate(given or ()):
        found = _ADDRESS.fullmatch(address)
        if not found or (found["ip"] is not None and _ip(found["ip"]) is None):
            raise ConfigurationError(f"{name}[{i}] must be an e-mail address")
    return given


def patterns(name: str, defaults: tuple[str, ...], value: Any) -> tuple[str, ...]:
    """Return the defaults followed by the caller's patterns, without duplicates."""
    if isinstance(value, tuple) and value[: len(defaults)] == defaults:
        # Those of other settings. The defaults do not count as the caller's.
        value = value[len(defaults) :]
    return tuple(dict.fromkeys(defaults + (texts(name, value, 1000, 200) or ())))


def number(name: str, value: _N, least: float, most: float) -> _N:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigurationError(f"{name} must be a number, not {type(value).__name__}")
    if not math.isfinite(value) or not least <= value <= most:
        raise ConfigurationError(f"{name} must be a number from {least:g} to {most:g}")
    return value


def integer(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{name} must be an integer, not {type(value).__name__}")
    return int(number(name, value, least, most))


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def fail_mode(name: str, value: Any) -> str:
    if value not in ("allow", "deny"):
        raise ConfigurationError(f'{name} must be "allow" or "deny"')
    return str(value)


def fail_modes(name: str, value: Any) -> Mapping[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{name} must be a dict of category to mode")
    return MappingProxyType(
        {text(name, k, 200): fail_mode(f"{name}[{k!r}]", v) for k, v in value.items()}
    )


def url(name: str, value: Any) -> str:
    address = text(name, value, 2000)
    if _BLANK.search(address):
        raise ConfigurationError(f"{name} must not contain spaces or line breaks")
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError(f"{name} must be a URL such as https://countersign.example.com")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigurationError(f"{name} must not contain credentials, a query or a fragment")
    return address.rstrip("/")


def function(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise ConfigurationError(f"{name} must be a function or None")
    return value


def is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    if host == "localhost":
        return True
    ip = _ip(host)
    return ip is not None and ip.is_loopback


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def sends_in_clear(address: str) -> bool:
    return urlsplit(address).scheme == "http" and not is_loopback(address)
