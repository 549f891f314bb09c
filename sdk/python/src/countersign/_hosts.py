"""External hosts that a text names. The rules are the service's."""

from __future__ import annotations

import ipaddress
import re
import string

from countersign._domains import ends_like_domain, is_file_name
from countersign._words import lower

__all__ = ["LINK", "TARGET", "URL", "Hosts"]

# How certain it is that a text is a host.
URL = 0
"""Part of a URL, or the value of a host key."""
_NO_PORT = 1  # in a URL without scheme or slashes, where a short number is a port
LINK = 2
"""A word under a link key, where the name of a page is not a host."""
TARGET = 3
"""A word under a target key (to, destination), where only a known domain is a host."""

_MAX_DOMAINS = 100
_MAX_DOMAIN = 253  # bytes, the longest DNS name
_MORE = "*"
_PRIVATE = tuple(
    ipaddress.ip_network(n) for n in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)
_BREAKS = "\t\r\n"  # web clients drop them anywhere in a URL
_ANY_BREAK = re.compile(r"[\t\r\n]+")
_WEB_SCHEMES = ("https", "http", "wss", "ws", "ftp")
_SLASHES = re.compile(r"[/\\\t\r\n]*")
_CONTROLS = "".join(map(chr, range(0x21)))
_MAX_WHOLE = 4096  # bytes that are searched for a host after joining lines
_HOST_MARKS = frozenset(".-@:[]/\\")
_ATTRIBUTE = re.compile(r"""(?<=["'=(])//""")
# Letters and digits, and everything beyond ASCII.
_WORD_CHARACTER = re.compile(r"[^\x00-/:-@\[-`{-\x7f]")
_AUTHORITY = re.compile(r"""[^/?#\\"<>`\x00-\x20]*""")
_DOMAIN = re.compile(r"[^\x00-,/:-@\[-^`{-\x7f]*")  # these, and . - _
# It may end a URL in prose, and may also be part of the authority's user info.
_PUNCTUATION = re.compile(r"[,;()'}!*|]")
_HOST_AND_PORT = re.compile(r"[^,;()'}!*|:]*(?::[^,;()'}!*|:]*)?")
_LITERAL = re.compile(r"\[[^,;()'}!*|\]]{0,64}\]?[^,;()'}!*|:]*(?::[^,;()'}!*|:]*)?")
_PARTS = re.compile(r"[,;\t\r\n]")
_PORT = re.compile(r"[0-9]{1,5}")
_BEFORE_NO_AT = frozenset("/([{<>@")
_NO_BREAKS = {ord(c): None for c in _BREAKS}


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
        """Return the domains, sorted by their bytes. Beyond a hundred, * stands for the rest."""
        found = sorted(self._found, key=lambda host: host.encode("utf-8", "replace"))
        if len(found) > _MAX_DOMAINS:
            found = [_MORE, *found[: _MAX_DOMAINS - 1]]
        return tuple(found)

    def scan(self, text: str) -> None:
        """Find URLs of any scheme and e-mail addresses in a text."""
        if ":" in text:
            self._urls(text)
        if "/" in text or "\\" in text:
            self._relative(text)
        if "@" in text:
            self._emails(text)
        if "\n" in text or "\r" in text or "\t" in text:
            self._whole(text)

    def _urls(self, text: str) -> None:
        span = (0, -1)
        at = text.find(":")
        while at >= 0:
            start, how = _authority_after(text, at)
            if how == _NO_PORT:
                span = self._slashless(text, start, span)
            elif how is not None:
                self._authority(_AUTHORITY.match(text, start)[0], how)  # type: ignore[index]
            at = text.find(":", max(start, at + 1))

    def _slashless(self, text: str, start: int, span: tuple[int, int]) -> tuple[int, int]:
        """Read the authority after a scheme without slashes: the host after the last @, and the
        text before punctuation if it has at most one colon. The authority can contain further
        schemes, so its end and the position of the @ (``span``) are found once for all of them."""
        end, at = span
        if start >= end:
            end = _AUTHORITY.match(text, start).end()  # type: ignore[union-attr]
            at = text.rfind("@", start, end)
            if at >= 0:
                self._authority(text[at:end], _NO_PORT)
        limit = at if at >= start else end
        # An IPv6 address in brackets contains colons.
        shape = _LITERAL if text[start : start + 1] == "[" else _HOST_AND_PORT
        found = shape.match(text, start, limit)
        stop = found.end() if found else start
        if text[stop : stop + 1] == ":" and stop < limit:
            return end, at  # more than a port follows
        if at < start or stop < limit:
            self._authority(text[start:stop], _NO_PORT)
        return end, at

    def _relative(self, text: str) -> None:
        """Find URLs without a scheme: at the start of a text, or in an attribute or a link."""
        begin = _first_visible(text)
        run = _SLASHES.match(text, begin)[0]  # type: ignore[index]
        if _count_slashes(run) > 1:
            self._relative_one(text, begin + len(run))
        at = begin
        while found := _ATTRIBUTE.search(text, at):
            at = _SLASHES.match(text, found.start()).end()  # type: ignore[union-attr]
            self._relative_one(text, at)

    def _relative_one(self, text: str, start: int) -> None:
        if text[start : start + 1] != ".":
            self._authority(_AUTHORITY.match(text, start)[0], _NO_PORT)  # type: ignore[index]

    def _whole(self, text: str) -> None:
        """Read a text that begins like a URL the way a web client reads it: without line breaks.
        Prose that begins with a URL keeps its breaks, except next to a character that continues a
        host."""
        text = text.strip(_CONTROLS)
        head = _first_bytes(text)
        if not _begins_address(head):
            return
        joined = _join_lines(head, " " not in text)
        if joined != head:
            self._urls(joined)
            self._relative(joined)

    def _authority(self, text: str, how: int) -> None:
        """Add the host after the last @. With punctuation before the @, the text may also be a host
        followed by an e-mail address, so both are added."""
        user, at, host = text.rpartition("@")
        if at and (cut := _PUNCTUATION.search(user)):
            self._add(user[: cut.start()], how)
        host = _PUNCTUATION.split(host, maxsplit=1)[0]
        self._add(host if host.startswith("[") else host.rstrip("]"), how)

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
                self._add(domain, URL)
            at = text.find("@", end)

    def bare(self, text: str, how: int) -> None:
        """Read the value of a key that names hosts, with or without a scheme. Some clients drop
        line breaks in a URL and others treat each line as one, so both readings count."""
        joined = text.translate(_NO_BREAKS)
        if joined != text:
            if how == URL:
                self.scan(joined)
            self._bare_parts(joined, how)
        self._bare_parts(text, how)

    def _bare_parts(self, text: str, how: int) -> None:
        for part in _PARTS.split(text):
            self._bare_one(part.strip(_CONTROLS), how)

    def _bare_one(self, text: str, how: int) -> None:
        colon = text.find(":")
        if colon >= 0 and _web_scheme(text, colon) == 0:
            text = text[colon + 1 :]
        host = text.lstrip("/\\")
        if len(text) - len(host) == 1 or host.startswith("."):
            return
        authority = _AUTHORITY.match(host)[0]  # type: ignore[index]
        rest = host[len(authority) : len(authority) + 2]
        if rest == "//" and authority.endswith(":"):
            return  # another scheme, which scan handles
        if rest.startswith(" ") or (how != URL and is_file_name(host)):
            return
        self._authority(authority, how)

    def _add(self, text: str, how: int) -> None:
        host = _without_port(text)
        if not host or (how == _NO_PORT and _PORT.fullmatch(host)):
            return
        if address := _address(host):
            self._add_address(address)
            return
        host = lower(host).rstrip(".")
        if _is_external(host) and (how < LINK or ends_like_domain(host, how == TARGET)):
            self._found.add(_last_bytes(host))

    def _add_address(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
        # Link-local addresses count as external: clouds serve credentials there.
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        if address.is_loopback or address.is_unspecified:
            return
        if not any(address.version == n.version and address in n for n in _PRIVATE):
            self._found.add(str(address))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a host is, without its zone. A zone can be any text: ipaddress
    would refuse one with a percent sign."""
    number, percent, zone = host.partition("%")
    if percent and not (zone and ":" in number):
        return None
    if number[:1] not in string.digits and ":" not in number:
        return None
    try:
        return ipaddress.ip_address(number)
    except ValueError:
        return None


def _authority_after(text: str, colon: int) -> tuple[int, int | None]:
    """Return where the authority of a URL begins whose scheme ends at ``colon``, and how certain it
    is. Web clients treat backslashes as slashes, accept any number of them and drop line breaks."""
    run = _SLASHES.match(text, colon + 1)[0]  # type: ignore[index]
    end = colon + 1 + len(run)
    scheme = colon
    while scheme > 0 and text[scheme - 1] in _BREAKS:
        scheme -= 1
    if scheme == 0 or not _WORD_CHARACTER.match(text[scheme - 1]):
        return end, None
    begin = _web_scheme(text, scheme)
    if begin is not None:
        if _count_slashes(run):
            return end, URL
        # https:443 has a port, and xhttp:a.b has no web scheme.
        alone = begin == 0 or not _WORD_CHARACTER.match(text[begin - 1])
        return end, _NO_PORT if alone else None
    if scheme == colon and run.startswith("//") and not _ANY_BREAK.search(run):
        return colon + 3, URL
    return end, None


def _count_slashes(run: str) -> int:
    return run.count("/") + run.count("\\")


def _web_scheme(text: str, end: int) -> int | None:
    """Return where a web scheme begins that ends at ``end``. It may contain line breaks."""
    for scheme in _WEB_SCHEMES:
        begin = _before(text, end, scheme)
        if begin is not None:
            return begin
    return None


def _before(text: str, end: int, expected: str) -> int | None:
    first = True
    for letter in reversed(expected):
        while end > 0 and not first and text[end - 1] in _BREAKS:
            end -= 1
        first = False
        if end == 0 or lower(text[end - 1]) != letter:
            return None
        end -= 1
    return end


def _first_visible(text: str) -> int:
    begin = 0
    while begin < len(text) and text[begin] <= " ":
        begin += 1
    return begin


def _first_bytes(text: str) -> str:
    head = text[:_MAX_WHOLE]
    if head.isascii():
        return head
    return head.encode("utf-8", "replace")[:_MAX_WHOLE].decode("utf-8", "ignore")


def _begins_address(text: str) -> bool:
    if text[:1] in ("/", "\\"):
        return _count_slashes(_SLASHES.match(text)[0]) > 1  # type: ignore[index]
    colon = text.find(":")
    while colon > 0 and text[colon - 1] in _BREAKS:
        colon -= 1
    return colon >= 0 and _web_scheme(text, colon) == 0


def _join_lines(text: str, everywhere: bool) -> str:
    """Drop line breaks. A break before another URL stays. Unless ``everywhere`` is set, so does a
    break that is not next to a host's punctuation."""
    out = ""
    at = 0
    for found in _ANY_BREAK.finditer(text):
        out += text[at : found.start()]
        at = found.end()
        marked = out[-1:] in _HOST_MARKS or text[at : at + 1] in _HOST_MARKS
        new = bool(out) and out[-1] != ":" and _begins_address(text[at : at + 16])
        if new or not (everywhere or marked):
            out += "\n"
    return out + text[at:]


def _is_mail_domain(domain: str) -> bool:
    # name@1.2.3 is a version.
    if domain.startswith("["):
        return True
    name, _, top = domain.rpartition(".")
    return bool(name) and bool(top) and top[0] not in string.digits


def _is_external(host: str) -> bool:
    """Whether a host is external. In doubt it is, so that nothing slips past an allowlist."""
    if not host:
        return False
    if not host.isascii() or "%" in host:
        return True
    top = host.rpartition(".")[2]
    if top.isdigit() or top.startswith("0x"):
        return True  # an IP address in an unusual notation
    if top == host or top in ("localhost", "local", "internal"):
        return False
    return host != "home.arpa" and not host.endswith(".home.arpa")


def _last_bytes(host: str) -> str:
    """Return the last bytes of a long host: allowlists compare the end."""
    if len(host) * 4 <= _MAX_DOMAIN:
        return host
    return host.encode("utf-8", "replace")[-_MAX_DOMAIN:].decode("utf-8", "ignore")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host
