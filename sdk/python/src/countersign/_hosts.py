"""The hosts outside the own network that a text names: the service's rules."""

from __future__ import annotations

import ipaddress
import re
import string

from countersign._words import lower

__all__ = ["Hosts"]

_MAX_DOMAINS = 100
_MAX_DOMAIN = 253  # bytes, the longest name that DNS knows
_MORE = "*"
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
_NO_BREAKS = {ord(c): None for c in "\t\r\n"}


class Hosts:
    """Collects external domains.

    >>> hosts = Hosts()
    >>> hosts.scan("see https://example.com/x and http://localhost:8080")
    >>> hosts.sorted()
    ('example.com',)
    """

    def __init__(self) -> None:
        self._found: set[str] = set()

    def sorted(self) -> tuple[str, ...]:
        """The domains in the order of their bytes. Beyond a hundred, * stands for the rest."""
        found = sorted(self._found, key=lambda host: host.encode("utf-8", "replace"))
        if len(found) > _MAX_DOMAINS:
            found = [_MORE, *found[: _MAX_DOMAINS - 1]]
        return tuple(found)

    def scan(self, text: str) -> None:
        """Find URLs of any scheme and e-mail addresses in a text."""
        if ":" in text:
            self._urls(text)
        if "@" in text:
            self._emails(text)

    def _urls(self, text: str) -> None:
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
                    self._authority(_AUTHORITY.match(text, start)[0])  # type: ignore[index]
            at = text.find(":", max(end, at + 1))

    def _authority(self, text: str) -> None:
        """The host behind the last @. When punctuation stands before it, the text may also be a
        host and an e-mail address side by side."""
        user, at, host = text.rpartition("@")
        if at and (cut := _PUNCTUATION.search(user)):
            self._add(user[: cut.start()])
        host = _PUNCTUATION.split(host, maxsplit=1)[0]
        self._add(host if host.startswith("[") else host.rstrip("]"))

    def _emails(self, text: str) -> None:
        at = text.find("@")
        while at >= 0:
            if text[at + 1 : at + 2] == "[":
                domain = _AUTHORITY.match(text, at + 1)[0]  # type: ignore[index]
            else:
                domain = _DOMAIN.match(text, at + 1)[0]  # type: ignore[index]
            end = at + 1 + len(domain)
            domain = domain.rstrip(".-")
            local = at > 0 and text[at - 1] > " " and text[at - 1] not in _BEFORE_NO_AT
            if local and _is_mail_domain(domain):
                self._add(domain)
            at = text.find("@", end)

    def bare(self, text: str) -> None:
        """The value of a key that is said to hold hosts, with or without a scheme."""
        joined = text.translate(_NO_BREAKS)  # some clients drop these inside an address
        if joined != text:
            self.scan(joined)
        for part in re.split("[,;]", joined):
            self._bare_one(part.strip(" "))

    def _bare_one(self, text: str) -> None:
        if "://" in text or " " in text:
            return
        scheme, colon, rest = text.partition(":")
        if colon and _ends_with_web_scheme(scheme):
            text = rest
        host = text.lstrip("/\\")
        if len(text) - len(host) == 1 or host.startswith("."):
            return
        self._authority(_AUTHORITY.match(host)[0])  # type: ignore[index]

    def _add(self, text: str) -> None:
        host = _without_port(text)
        if not host:
            return
        if host[0] in string.digits or ":" in host:
            try:
                address = ipaddress.ip_address(host)
            except ValueError:
                pass
            else:
                self._add_address(address)
                return
        host = lower(host).rstrip(".")
        if _is_external(host):
            self._found.add(_last_bytes(host))

    def _add_address(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
        # Link-local addresses count: credentials of clouds are served there.
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or ipaddress.IPv6Address(int(address))  # without its zone
        if address.is_loopback or address.is_unspecified:
            return
        if not any(address.version == n.version and address in n for n in _PRIVATE):
            self._found.add(str(address))


def _ends_with_web_scheme(before: str) -> bool:
    return lower(before[-5:]).endswith(_WEB_SCHEMES)


def _is_mail_domain(domain: str) -> bool:
    # In name@1.2.3 stands a version.
    if domain.startswith("["):
        return True
    name, _, top = domain.rpartition(".")
    return bool(name) and bool(top) and top[0] not in string.digits


def _is_external(host: str) -> bool:
    """When in doubt a host is external: what cannot be judged must not slip past an allowlist."""
    if not host:
        return False
    if not host.isascii() or "%" in host:
        return True
    top = host.rpartition(".")[2]
    if top.isdigit() or top.startswith("0x"):
        return True  # an IP address in one of its odder spellings
    if top == host or top in ("localhost", "local", "internal"):
        return False
    return host != "home.arpa" and not host.endswith(".home.arpa")


def _last_bytes(host: str) -> str:
    """The end, which is what an allowlist looks at."""
    if len(host) * 4 <= _MAX_DOMAIN:
        return host
    return host.encode("utf-8", "replace")[-_MAX_DOMAIN:].decode("utf-8", "ignore")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host
