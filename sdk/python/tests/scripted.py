"""A service on a real socket that answers events as it is told."""

from __future__ import annotations

import json
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time: close() sends a reset


class ScriptedService:
    """Opens and completes chains, and answers events with ``answer``: a status and a body, or
    one of the faults ``reset``, ``cut`` and ``silence``."""

    def __init__(self) -> None:
        self.answer: tuple[int, Any] | str = (200, {"policy_decision": "allow"})
        self.asked = 0
        self.over = threading.Event()
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = 1 << 16

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.path == "/v1/chains":
                    self.respond(201, {"id": "c1", "status": "active", "act_number": 1})
                elif self.path.endswith("/complete"):
                    self.respond(200, {"receipt": {"receipt_number": "x"}})
                elif self.path.endswith("/batch"):
                    self.respond(200, {"results": [], "act_number": 1})
                else:
                    script.asked += 1
                    self.event(script.answer)

            def event(self, answer: tuple[int, Any] | str) -> None:
                if isinstance(answer, tuple):
                    self.respond(*answer)
                    return
                self.close_connection = True
                if answer == "silence":
                    script.over.wait(10)
                elif answer == "cut":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
                    self.wfile.flush()
                else:
                    linger = (socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    self.connection.setsockopt(*linger)

            def respond(self, status: int, body: Any) -> None:
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/problem+json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ScriptedService:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
