"""HTTP clients: one for all threads, and one for each event loop.

An async client belongs to the loop that opened its connections; another loop that used it
would lose requests. httpx's transports are used without its ``Client``, which would write
every address, and with it tokens and ids, into the log.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from countersign._secret import SecretStr
from countersign._steps import Reply, Send
from countersign._validate import is_loopback
from countersign.exceptions import APIError

if TYPE_CHECKING:
    import asyncio

__all__ = ["Clients", "Unreachable"]

_MAX_ANSWER = 64 << 20  # bytes; beyond any honest answer
# As many connections as there are waits: five hundred approvals must not queue for ten.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30)
_POOL = 8  # requests at once in one pool of an event loop
_KEPT_POOLS = 8  # pools that stay open when a crowd of requests is over
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_FAULTS = (httpx.TransportError, httpx.DecodingError, httpx.StreamError)


class Unreachable(Exception):
    """No usable answer came: the request may or may not have had its effect."""

    def __init__(self, reason: str, *, slow: bool = False, sent: bool = True) -> None:
        super().__init__(reason)
        self.slow = slow
        """Whether finding out took the whole timeout."""
        self.sent = sent
        """Whether the request may have arrived. Without a connection it cannot have."""
        self.address = ""
        """Where the service was looked for, without path and credentials."""

    def __str__(self) -> str:
        reason = super().__str__()
        return f"{reason} at {self.address}" if self.address else reason


class Clients:
    """Sends single requests; every fault of the network becomes :class:`Unreachable`."""

    def __init__(
        self, base_url: str, key: SecretStr, version: str, mock: httpx.MockTransport | None
    ) -> None:
        self._base_url = base_url
        parts = urlsplit(base_url)
        # Without what could be in front of the host: no credentials get into a message.
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._mock = mock
        python = ".".join(map(str, sys.version_info[:3]))
        self._plain = {
            "accept": "application/json",
            "user-agent": f"countersign-python/{version} python/{python}",
        }
        self._authorized = {**self._plain, "authorization": f"Bearer {key.reveal()}"}
        self._lock = threading.Lock()
        self._forget()
        _every.add(self)

    def _forget(self) -> None:
        self._sync: httpx.BaseTransport | None = None
        # A loop's client lives inside an async generator, which asyncio.run() closes with
        # the loop, and which asyncio closes by itself when this object is gone.
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClient] = (
            weakref.WeakKeyDictionary()
        )

    def send(self, send: Send) -> Reply:
        """Send a request, blocking."""
        client = self._sync or self._open()
        reading = _Reading(send.timeout)
        try:
            response = client.handle_request(self._request(send))
            try:
                for chunk in response.iter_bytes():
                    reading.take(chunk)
            finally:
                response.close()
        except _FAULTS as fault:
            raise _unreachable(fault) from fault
        return Reply(response.status_code, response.headers, reading.body())

    async def send_async(self, send: Send) -> Reply:
        """Send a request on the running event loop."""
        pools = await self._of_this_loop()
        reading = _Reading(send.timeout)
        async with pools.borrow() as client:
            try:
                response = await client.handle_async_request(self._request(send))
                try:
                    async for chunk in response.aiter_bytes():
                        reading.take(chunk)
                finally:
                    await response.aclose()
            except _FAULTS as fault:
                raise _unreachable(fault) from fault
        return Reply(response.status_code, response.headers, reading.body())

    def close(self) -> None:
        """Close the threads' connections. The next request opens new ones."""
        with self._lock:
            client, self._sync = self._sync, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        import asyncio

        opened = self._by_loop.pop(asyncio.get_running_loop(), None)
        if opened is not None:
            await opened[1].aclose()

    def _request(self, send: Send) -> httpx.Request:
        headers = dict(self._authorized if send.authenticated else self._plain)
        headers.update(send.headers)
        if send.body is not None:
            headers["content-type"] = "application/json"
        timeout = dict.fromkeys(("connect", "read", "write", "pool"), send.timeout)
        return httpx.Request(
            send.method,
            self._base_url + send.path,
            headers=headers,
            content=send.body,
            extensions={"timeout": timeout},
        )

    def _open(self) -> httpx.BaseTransport:
        with self._lock:
            if self._sync is None:
                self._sync = self._mock or httpx.HTTPTransport(**self._options())
            return self._sync

    async def _of_this_loop(self) -> _Pools:
        import asyncio

        loop = asyncio.get_running_loop()
        opened = self._by_loop.get(loop)
        if opened is None:
            lifetime = self._lifetime()
            # Nothing is awaited between here and the entry: no second task comes between.
            pools = await lifetime.__anext__()
            opened = self._by_loop[loop] = (pools, lifetime)
        return opened[0]

    async def _lifetime(self) -> AsyncGenerator[_Pools, None]:
        if self._mock is not None:
            pools = _Pools(lambda: self._mock, math.inf)  # type: ignore[arg-type,return-value]
        else:
            options = self._options()
            pools = _Pools(lambda: httpx.AsyncHTTPTransport(**options), _POOL)
        try:
            yield pools
        finally:
            await pools.aclose()

    def _options(self) -> dict[str, Any]:
        # Loading the certificates takes longer than many a call; plain HTTP needs none.
        encrypted = self._base_url.startswith("https")
        return {
            "limits": _LIMITS,
            "proxy": _proxy_for(self._base_url),
            "verify": httpx.create_ssl_context() if encrypted else False,
        }


class _Pools:
    """The connections of one event loop. A pool compares all of its connections with each other
    at every request: five hundred waits in one pool would keep the loop from anything else, and
    answers from arriving in time. All of it happens on the loop's own thread."""

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport], size: float) -> None:
        self._make = make
        self._size = size
        self._pools: list[_Pool] = []

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[httpx.AsyncBaseTransport]:
        """The first pool with room for one more request."""
        pool = next((p for p in self._pools if p.busy < self._size), None)
        if pool is None:
            pool = _Pool(self._make())
            self._pools.append(pool)
        pool.busy += 1
        try:
            yield pool.client
        finally:
            pool.busy -= 1
            if pool.busy == 0 and pool in self._pools[_KEPT_POOLS:]:
                self._pools.remove(pool)
                await pool.client.aclose()

    async def aclose(self) -> None:
        pools, self._pools = self._pools, []
        for pool in pools:
            await pool.client.aclose()


@dataclass(eq=False)
class _Pool:
    client: httpx.AsyncBaseTransport
    busy: int = 0
    """How many requests it has just now."""


_LoopClient = tuple[_Pools, AsyncGenerator[_Pools, None]]


def _proxy_for(address: str) -> str | None:
    """The proxy that the environment names. None can reach this machine's own loopback."""
    parts = urlsplit(address)
    if is_loopback(address) or proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


class _Reading:
    """Collects an answer within a time and a size: httpx bounds the time of each piece."""

    def __init__(self, timeout: float) -> None:
        self._deadline = time.monotonic() + timeout
        self._chunks: list[bytes] = []
        self._size = 0

    def take(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > _MAX_ANSWER:
            raise APIError("the answer is too large; is backend_url the service's?")
        if time.monotonic() > self._deadline:
            raise Unreachable("the answer took too long", slow=True)
        self._chunks.append(chunk)

    def body(self) -> bytes:
        return b"".join(self._chunks)


def _unreachable(fault: Exception) -> Unreachable:
    # The fault's kind, not its text: a text could hold the address, and with it a token.
    return Unreachable(
        type(fault).__name__,
        slow=isinstance(fault, httpx.TimeoutException),
        sent=not isinstance(fault, _UNSENT),
    )


_every: weakref.WeakSet[Clients] = weakref.WeakSet()


def _after_fork() -> None:
    # Parent and child would talk over each other on one connection.
    for clients in tuple(_every):
        clients._lock = threading.Lock()
        clients._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
