"""One deadline for a whole request.

httpcore passes a request's timeouts to its network streams, where each read and write has them
anew. A peer that sends a byte now and then would never be too late. The streams here give a read
what is left of the request's time.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
import time
from concurrent import futures
from typing import Any

import httpx

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


def _addresses_of(host: str, port: int, timeout: float | None) -> list[str]:
    """Look up the addresses of a host. The system's resolver cannot be given a timeout, so it runs
    on a thread of its own, which is left behind if it takes too long."""
    answer: futures.Future[list[str]] = futures.Future()

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # the latter for what cannot be a host's name
            answer.set_exception(httpx.ConnectError(str(error)))
        except BaseException as error:
            answer.set_exception(error)
        else:
            answer.set_result(list(dict.fromkeys(str(address[0]) for *_, address in found)))

    try:
        if sys.is_finalizing():
            look_up()  # before Python 3.12 a thread that is started now never begins
        else:
            threading.Thread(target=look_up, name="countersign-resolver", daemon=True).start()
    except RuntimeError:  # there are too many threads
        look_up()
    try:
        return answer.result(_left(timeout, httpx.ConnectTimeout))
    except futures.TimeoutError:
        raise httpx.ConnectTimeout(f"the address of {host} was not found in time") from None


class _AsyncBackend(_Inner):
    # anyio tries all addresses of a host within the timeout.
    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, **options: Any
    ) -> _AsyncStream:
        left = _left(timeout, httpx.ConnectTimeout)
        return _AsyncStream(await self._inner.connect_tcp(host, port, left, **options), timeout)
