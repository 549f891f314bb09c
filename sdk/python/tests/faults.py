"""A network that can fail: a small TCP proxy."""

from __future__ import annotations

import re
import socket
import struct
import threading
from types import TracebackType

_REQUEST_LINE = re.compile(rb"[A-Z]+ (\S+) HTTP/1\.1\r\n")
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time: close() sends a reset


class FaultProxy:
    """Stands between a client and a service, and does what ``mode`` says.

    ``pass`` forwards; ``reset`` resets a connection once a request has come; ``hang`` takes the
    request and never answers; ``cut`` forwards the request, and of the answer only the first
    bytes; ``lose`` forwards the request and drops the whole answer.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.mode = "pass"
        self.requests = 0
        self.paths: list[str] = []
        """Of the requests whose beginning was seen, in the order in which they came."""
        self.faulted = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refuse()
        self._accepting.join(10)

    def refuse(self) -> None:
        """Stop listening, and end every connection."""
        # A blocked accept() holds the port open: wake it before closing.
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        with self._lock:
            for connection in self._open:
                _abort(connection)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as upstream:
            with self._lock:
                self._open |= {client, upstream}
            answering = threading.Thread(target=self._answer, args=(upstream, client), daemon=True)
            answering.start()
            try:
                while data := client.recv(1 << 16):
                    self.requests += 1
                    if started := _REQUEST_LINE.match(data):
                        self.paths.append(started[1].decode())
                    if self.mode == "reset":
                        self.faulted.set()
                        _abort(client)
                        break
                    if self.mode == "hang":
                        self.faulted.set()
                        continue
                    upstream.sendall(data)
            except OSError:
                pass
            _abort(upstream)
            answering.join(10)
            with self._lock:
                self._open -= {client, upstream}

    def _answer(self, upstream: socket.socket, client: socket.socket) -> None:
        try:
            while data := upstream.recv(1 << 16):
                if self.mode in ("cut", "lose"):
                    if self.mode == "cut":
                        client.sendall(data[: len(data) // 2])
                    self.faulted.set()
                    _abort(client)
                    return
                client.sendall(data)
        except OSError:
            pass
        finally:
            _shut(client)


def _abort(connection: socket.socket) -> None:
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    except OSError:
        pass
    _shut(connection)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
