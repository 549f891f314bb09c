"""Does a text name a host outside the own network? The service's rules, cut down to yes or no."""

from __future__ import annotations

import ipaddress
import re
import string

from countersign._words import lower

__all__ = ["holds_host", "names_host"]

_PRIVATE = tuple(
    ipaddress.ip_network(n) for n in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)
_WEB_SCHEMES = ("http", "https", "ws", "wss", "ftp")
# Letters and digits, and everything beyond ASCII.
_WORD_CHARACTER = re.compile(r"[^\x00-/:-@\[-`{-\x7f]")
_AUTHORITY = re.compile(r"""[^/?#\\"<>`\x00-\x20]*""")
_DOMAIN = re.compile(r"[^\x00-,/:-@\[-^`{-\x7f]*")  # these, and . - _
# It may end a URL in prose, and may also stand in the user part that an authority begins with.
_PUNCTUATION = re.compile(r"[,;()'}!*|]")
_BEFORE_NO_AT = frozenset("/([{<>@")


def holds_host(text: str) -> bool:
    """Whether a URL of any scheme, or an e-mail address, stands in a text.

    >>> holds_host("see https://example.com/x"), holds_host("see http://localhost:8080")
    (True, False)
    """
    return (":" in text and _holds_url(text)) or ("@" in text and _holds_email(text))


def _holds_url(text: str) -> bool:
    at = text.find(":")
    while at >= 0:
        end = at + 1
        while text[end : end + 1] in ("/", "\\"):  # web clients take any number of either
            end += 1
        slashes = text[at + 1 : end]
        if slashes and at > 0 and _WORD_CHARACTER.match(text[at - 1]):
            if _ends_with_web_scheme(text[:at]):
                start: int | None = end
            else:
                start = at + 3 if slashes.startswith("//") else None
            if start is not None:
                end = start
                if _is_external_authority(_AUTHORITY.match(text, start)[0]):  # type: ignore[index]
                    return True
        at = text.find(":", max(end, at + 1))
    return False


def _ends_with_web_scheme(before: str) -> bool:
    return lower(before[-5:]).endswith(_WEB_SCHEMES)


def _is_external_authority(text: str) -> bool:
    """The host behind the last @. When punctuation stands before it, the text may also be a
    host and an e-mail address side by side."""
    user, at, host = text.rpartition("@")
    if at and (cut := _PUNCTUATION.search(user)) and _is_external_host(user[: cut.start()]):
        return True
    host = _PUNCTUATION.split(host, maxsplit=1)[0]
    return _is_external_host(host if host.startswith("[") else host.rstrip("]"))


def _holds_email(text: str) -> bool:
    at = text.find("@")
    while at >= 0:
        if text[at + 1 : at + 2] == "[":
            domain = _AUTHORITY.match(text, at + 1)[0]  # type: ignore[index]
        else:
            domain = _DOMAIN.match(text, at + 1)[0]  # type: ignore[index]
        end = at + 1 + len(domain)
        domain = domain.rstrip(".-")
        local = at > 0 and text[at - 1] > " " and text[at - 1] not in _BEFORE_NO_AT
        if local and _is_mail_domain(domain) and _is_external_host(domain):
            return True
        at = text.find("@", end)
    return False


def _is_mail_domain(domain: str) -> bool:
    # In name@1.2.3 stands a version.
    if domain.startswith("["):
        return True
    name, _, top = domain.rpartition(".")
    return bool(name) and bool(top) and top[0] not in string.digits


def names_host(text: str) -> bool:
    """The same for the value of a key that is said to hold hosts, with or without a scheme."""
    joined = text.translate(_NO_BREAKS)  # some clients drop these inside an address
    if joined != text and holds_host(joined):
        return True
    return any(_is_bare_host(part.strip(" ")) for part in re.split("[,;]", joined))


_NO_BREAKS = {ord(c): None for c in "\t\r\n"}


def _is_bare_host(text: str) -> bool:
    if "://" in text or " " in text:
        return False
    scheme, colon, rest = text.partition(":")
    if colon and _ends_with_web_scheme(scheme):
        text = rest
    host = text.lstrip("/\\")
    if len(text) - len(host) == 1 or host.startswith("."):
        return False
    return _is_external_authority(_AUTHORITY.match(host)[0])  # type: ignore[index]


def _is_external_host(text: str) -> bool:
    host = _without_port(text)
    if not host:
        return False
    if host[0] in string.digits or ":" in host:
        try:
            return _is_external_address(ipaddress.ip_address(host))
        except ValueError:
            pass
    host = lower(host).rstrip(".")
    if not host:
        return False
    # When in doubt a host is external: what cannot be judged must not slip past an allowlist.
    if not host.isascii() or "%" in host:
        return True
    top = host.rpartition(".")[2]
    if (top.isdigit() and top.isascii()) or top.startswith("0x"):
        return True  # an IP address in one of its odder spellings
    if top == host or top in ("localhost", "local", "internal"):
        return False
    return host != "home.arpa" and not host.endswith(".home.arpa")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host


def _is_external_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or ipaddress.IPv6Address(int(address))  # without its zone
    if address.is_loopback or address.is_unspecified:
        return False
    return not any(address.version == n.version and address in n for n in _PRIVATE)
