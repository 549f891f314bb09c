"""HTTP connections: one pool for all threads, and pools for each event loop.

The connections of an async client belong to the event loop that opened them and do not work on
another one. httpx's transports are used without its ``Client``, which logs every URL and with it
tokens and ids.
"""

from __future__ import annotations

import math
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

from countersign._deadline import Deadline, keep_deadlines
from countersign._fork import reset_in_child
from countersign._secret import SecretStr
from countersign._steps import Reply, Send
from countersign._validate import is_loopback
from countersign.exceptions import APIError

if TYPE_CHECKING:
    import asyncio

__all__ = ["Clients", "Unreachable"]

_MAX_ANSWER = 64 << 20  # bytes
# Unlimited, because each waiting approval holds a connection.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30)
_POOL_SIZE = 8  # concurrent requests in one pool of an event loop
_IDLE_POOLS = 8  # pools that stay open after a burst of requests
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_FAULTS = (httpx.TransportError, httpx.DecodingError, httpx.StreamError)


class Unreachable(Exception):
    """No usable answer arrived. The request may or may not have taken effect."""

    def __init__(self, reason: str, *, slow: bool = False, sent: bool = True) -> None:
        super().__init__(reason)
        self.slow = slow
        """Whether the whole timeout elapsed."""
        self.sent = sent
        """Whether the request may have reached the service. Without a connection it cannot have."""
        self.address = ""
        """The service's address, without path and credentials."""

    def __str__(self) -> str:
        reason = super().__str__()
        return f"{reason} at {self.address}" if self.address else reason


class Clients:
    """Sends single requests. Every network error becomes :class:`Unreachable`."""

    def __init__(
        self, base_url: str, key: SecretStr, version: str, mock: httpx.MockTransport | None
    ) -> None:
        self._base_url = base_url
        parts = urlsplit(base_url)
        # Without user info, so that no credentials get into a message.
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._mock = mock
        python = ".".join(map(str, sys.version_info[:3]))
        self._plain = {
            "accept": "application/json",
            "user-agent": f"countersign-python/{version} python/{python}",
        }
        self._authorized = {**self._plain, "authorization": f"Bearer {key.reveal()}"}
        self.reset_after_fork()
        reset_in_child(self)

    def reset_after_fork(self) -> None:
        """Forget all connections: parent and child would send over each other on one."""
        self._lock = threading.Lock()
        self._sync: httpx.BaseTransport | None = None
        # The pools of a loop live inside an async generator, so that asyncio closes them with the
        # loop or when this object is collected.
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClient] = (
            weakref.WeakKeyDictionary()
        )

    def send(self, send: Send) -> Reply:
        """Send a request and block until the answer has arrived."""
        client = self._sync or self._open()
        reader = _BodyReader(send.timeout)
        try:
            response = client.handle_request(self._request(send))
            try:
                for chunk in response.iter_bytes():
                    reader.add(chunk)
            finally:
                response.close()
        except Exception as fault:
            if not _is_of_network(fault):
                raise
            raise _unreachable(fault) from fault
        return Reply(response.status_code, response.headers, reader.body())

    async def send_async(self, send: Send) -> Reply:
        """Send a request on the running event loop."""
        pools = await self._loop_pools()
        reader = _BodyReader(send.timeout)
        async with pools.borrow() as client:
            try:
                response = await client.handle_async_request(self._request(send))
                try:
                    async for chunk in response.aiter_bytes():
                        reader.add(chunk)
                finally:
                    await response.aclose()
            except Exception as fault:
                if not _is_of_network(fault):
                    raise
                raise _unreachable(fault) from fault
        return Reply(response.status_code, response.headers, reader.body())

    def close(self) -> None:
        """Close the connections of sync code. The next request opens new ones."""
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
        timeout = dict.fromkeys(("connect", "read", "write", "pool"), Deadline(send.timeout))
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
                self._sync = self._mock or keep_deadlines(httpx.HTTPTransport(**self._options()))
            return self._sync

    async def _loop_pools(self) -> _Pools:
        import asyncio

        loop = asyncio.get_running_loop()
        opened = self._by_loop.get(loop)
        if opened is None:
            self._forget_closed_loops()
            lifetime = self._lifetime(loop)
            # __anext__ does not suspend here, so no other task runs before the entry is stored.
            pools = await lifetime.__anext__()
            opened = self._by_loop[loop] = (pools, lifetime)
        return opened[0]

    def _forget_closed_loops(self) -> None:
        """Let go of the pools of loops that were closed without their generators having been ended:
        nothing can use their connections any more, and each has a socket."""
        for known in self._by_loop.keyrefs():
            loop = known()
            if loop is not None and loop.is_closed():
                self._by_loop.pop(loop, None)

    async def _lifetime(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[_Pools, None]:
        if self._mock is not None:
            pools = _Pools(lambda: self._mock, math.inf)  # type: ignore[arg-type,return-value]
        else:
            options = self._options()
            pools = _Pools(lambda: keep_deadlines(httpx.AsyncHTTPTransport(**options)), _POOL_SIZE)
        try:
            yield pools
        finally:
            # A program may use the loop again after ending its generators.
            opened = self._by_loop.get(loop)
            if opened is not None and opened[0] is pools:
                del self._by_loop[loop]
            await pools.aclose()

    def _options(self) -> dict[str, Any]:
        # Plain HTTP needs no certificates, and loading them is slow.
        encrypted = self._base_url.startswith("https")
        return {
            "limits": _LIMITS,
            "proxy": _proxy_for(self._base_url),
            "verify": httpx.create_ssl_context() if encrypted else False,
        }


class _Pools:
    """The connection pools of one event loop, used only on its thread.

    httpx scans all connections of a pool for every request. With five hundred waiting requests in
    one pool that scan would block the loop, and answers would be handled too late. Several small
    pools keep it short.
    """

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport], size: float) -> None:
        self._make = make
        self._size = size
        self._pools: list[_Pool] = []

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[httpx.AsyncBaseTransport]:
        """Lend the first pool that has room for another request."""
        pool = next((p for p in self._pools if p.busy < self._size), None)
        if pool is None:
            pool = _Pool(self._make())
            self._pools.append(pool)
        pool.busy += 1
        try:
            yield pool.client
        finally:
            pool.busy -= 1
            if pool.busy == 0 and pool in self._pools[_IDLE_POOLS:]:
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
    """Number of requests in progress."""


_LoopClient = tuple[_Pools, AsyncGenerator[_Pools, None]]


def _proxy_for(address: str) -> str | None:
    """Return the proxy from the environment. Loopback addresses never use one."""
    parts = urlsplit(address)
    # NO_PROXY can name a host with or without its port.
    if is_loopback(address) or any(map(proxy_bypass, (parts.hostname or "", parts.netloc))):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    # Many set only the host and the port.
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


class _BodyReader:
    """Collects an answer within a time and a size."""

    def __init__(self, timeout: float) -> None:
        self._deadline = time.monotonic() + timeout
        self._chunks: list[bytes] = []
        self._size = 0

    def add(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > _MAX_ANSWER:
            raise APIError("the answer is too large; is backend_url the service's?")
        if time.monotonic() > self._deadline:
            raise Unreachable("the answer took too long", slow=True)
        self._chunks.append(chunk)

    def body(self) -> bytes:
        return b"".join(self._chunks)


def _is_of_network(fault: Exception) -> bool:
    """Whether the service was not reached. httpx leaves the errors of socksio as they are: those of
    a SOCKS proxy that closes the connection, or is none. That package need not be installed."""
    return isinstance(fault, _FAULTS) or type(fault).__module__.partition(".")[0] == "socksio"


def _unreachable(fault: Exception) -> Unreachable:
    # Only the type: the text could contain the URL, and with it a token.
    return Unreachable(
        type(fault).__name__,
        slow=isinstance(fault, httpx.TimeoutException),
        # A SOCKS proxy is asked before anything is sent.
        sent=isinstance(fault, _FAULTS) and not isinstance(fault, _UNSENT),
    )
