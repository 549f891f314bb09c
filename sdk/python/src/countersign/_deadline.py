"""One deadline for a whole request.

httpcore passes a request's timeouts to its network streams, where each read and write has them
anew. A peer that sends a byte now and then would never be too late. The streams here give a read
what is left of the request's time.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import sys
import threading
import time
from concurrent import futures
from typing import Any

import httpx

from countersign._fork import in_child

__all__ = ["Deadline", "keep_deadlines"]

_MOMENT = 0.001  # seconds; a timeout of zero would mean not to wait at all


class Deadline(float):
    """A timeout in seconds that knows when it ends."""

    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds

    def left(self) -> float:
        return max(self.at - time.monotonic(), 0.0)


def keep_deadlines(transport: Any) -> Any:
    """Return the transport with streams that keep to a :class:`Deadline`, if its timeouts are one.

    httpx has no parameter for the streams of its transports. A version that keeps them elsewhere
    works without these: then only a single read is limited.
    """
    pool = getattr(transport, "_pool", None)
    backend = getattr(pool, "_network_backend", None)
    if backend is not None:
        is_async = isinstance(transport, httpx.AsyncBaseTransport)
        pool._network_backend = (_AsyncBackend if is_async else _Backend)(backend)  # type: ignore[union-attr]
    return transport


def _left(timeout: float | None, fault: type[Exception]) -> float | None:
    if not isinstance(timeout, Deadline):
        return timeout
    left = timeout.left()
    if not left:
        raise fault("the deadline of the request has passed")
    return left


class _Inner:
    """Passes on what is not limited, to what it wraps."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Stream(_Inner):
    """A stream, and the timeout of the request that opened it. That one holds where httpcore gives
    none: while it asks a SOCKS proxy to connect."""

    def __init__(self, inner: Any, opening: float | None) -> None:
        super().__init__(inner)
        self._opening = opening

    # Serves async streams too: what they return is awaited by the caller.
    def read(self, max_bytes: int, timeout: float | None = None) -> Any:
        timeout = self._opening if timeout is None else timeout
        return self._inner.read(max_bytes, _left(timeout, httpx.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> Any:
        timeout = self._opening if timeout is None else timeout
        return self._inner.write(buffer, _left(timeout, httpx.WriteTimeout))

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        if isinstance(timeout, Deadline):
            # Not refused here: a handshake that fails closes the connection.
            timeout = timeout.left() or _MOMENT
        return self._wrapped(self._inner.start_tls(ssl_context, server_hostname, timeout))

    def _wrapped(self, encrypted: Any) -> Any:
        return _Stream(encrypted, self._opening)


class _AsyncStream(_Stream):
    async def _wrapped(self, encrypted: Any) -> Any:
        return _AsyncStream(await encrypted, self._opening)


class _Backend(_Inner):
    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, **options: Any
    ) -> _Stream:
        addresses = _addresses_of(host, port, timeout)
        while True:
            left = _left(timeout, httpx.ConnectTimeout)
            # Shared out: the first address may be dead, and would use up the time of the next.
            share = left and left / len(addresses)
            address = addresses.pop(0)
            try:
                stream = self._inner.connect_tcp(address, port, share, **options)
            except Exception:
                if not addresses:
                    raise
            else:
                return _Stream(stream, timeout)


_PATIENCE = 1.0  # seconds for which a look-up is joined; one lost packet takes it longer
_lock = threading.Lock()  # guards what follows
_under_way: dict[tuple[str, int], list[_LookUp]] = {}
"""The look-ups that have not ended, by host and port, oldest first."""


@in_child
def _after_fork() -> None:
    # The child has none of the threads, and another one may have held the lock.
    global _lock
    _lock = threading.Lock()
    _under_way.clear()


class _LookUp:
    """One look-up of the addresses of a host. The system's resolver cannot be given a timeout, so
    it runs on a thread of its own, which is left behind if it takes too long."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._answer: futures.Future[list[str]] = futures.Future()
        self.began = time.monotonic()
        self.shared = 0
        """How many others have joined it."""

    @property
    def is_under_way(self) -> bool:
        return not self._answer.done()

    def begin(self) -> None:
        try:
            threading.Thread(target=self.run, name="countersign-resolver", daemon=True).start()
        except RuntimeError:  # there are too many threads
            self.run()

    def run(self) -> None:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except BaseException as error:
            self._answer.set_exception(error)
        else:
            self._answer.set_result(list(dict.fromkeys(str(address[0]) for *_, address in found)))

    def addresses(self, timeout: float | None) -> list[str]:
        try:
            return list(self._answer.result(_left(timeout, httpx.ConnectTimeout)))
        except futures.TimeoutError as error:
            if self.is_under_way:
                text = f"the address of {self._host} was not found in time"
                raise httpx.ConnectTimeout(text) from None
            raise httpx.ConnectError(str(error)) from None  # the resolver's own
        except (OSError, UnicodeError) as error:  # the latter for what cannot be a host's name
            raise httpx.ConnectError(str(error)) from None


def _addresses_of(host: str, port: int, timeout: float | None) -> list[str]:
    if _is_address(host):
        return [host]
    if sys.is_finalizing():
        # Before Python 3.12 a thread that is started now never begins.
        look_up = _LookUp(host, port)
        look_up.run()
    else:
        look_up = _look_up(host, port)
    return look_up.addresses(timeout)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # the name of an interface is looked up


def _look_up(host: str, port: int) -> _LookUp:
    """Join the look-up that is under way, or begin one. The longer they hang, the more seldom
    another one is begun: each has a thread."""
    with _lock:
        others = [one for one in _under_way.get((host, port), ()) if one.is_under_way]
        if others and time.monotonic() - others[-1].began < _PATIENCE * len(others):
            others[-1].shared += 1
            return others[-1]
        look_up = _LookUp(host, port)
        _under_way[host, port] = [*others, look_up]
    look_up.begin()
    return look_up


class _AsyncBackend(_Inner):
    # anyio tries all addresses of a host within the timeout.
    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, **options: Any
    ) -> _AsyncStream:
        left = _left(timeout, httpx.ConnectTimeout)
        return _AsyncStream(await self._inner.connect_tcp(host, port, left, **options), timeout)
