"""Access to the fake service: as an httpx transport, or as a server on a loopback port."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from countersign._steps import until

__all__ = [
    "Answer",
    "FakeTransport",
    "Hold",
    "Invalid",
    "LoopbackServer",
    "RecordedCall",
    "offline",
]


@dataclass(frozen=True)
class RecordedCall:
    """A request that the fake service received."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """An answer of the fake service."""

    status: int
    body: Any


@dataclass(frozen=True)
class Hold:
    """An answer that waits for a future, as in long polling."""

    until: Future[None]
    seconds: float
    then: Callable[[], Answer]


class Invalid(Exception):
    """The service refuses a member of a request's body or a parameter of its query."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(f"{pointer} {detail}")
        self.errors = [{"pointer": pointer, "detail": detail}]


Handle = Callable[[RecordedCall], "Answer | Hold"]


class FakeTransport(httpx.MockTransport):
    """Serves sync and async clients without a socket."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(self.handle_request)
        self._handle = handle

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return _response(_release(self._answer(request)))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        answer = self._answer(request)
        if isinstance(answer, Hold):
            await until(answer.until, answer.seconds)
            answer = answer.then()
        return _response(answer)

    def _answer(self, request: httpx.Request) -> Answer | Hold:
        path = request.url.raw_path.decode("ascii")
        return self._handle(_recorded(request.method, path, dict(request.headers), request.content))


def offline(_: RecordedCall) -> Answer:
    """Fail a request as if nothing listened."""
    raise httpx.ConnectError("the fake service is offline")


class LoopbackServer:
    """A fake service on a free port of 127.0.0.1."""

    def __init__(self, handle: Handle) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = 1 << 16

            def respond(self) -> None:
                content = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {k.lower(): v for k, v in self.headers.items()}
                answer = _release(handle(_recorded(self.command, self.path, headers, content)))
                body = json.dumps(answer.body).encode("utf-8")
                self.send_response(answer.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = respond  # noqa: N815

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

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _release(answer: Answer | Hold) -> Answer:
    if isinstance(answer, Answer):
        return answer
    try:
        answer.until.result(answer.seconds)
    except FutureTimeoutError:
        pass
    return answer.then()


def _recorded(method: str, path: str, headers: dict[str, str], content: bytes) -> RecordedCall:
    # Without the API key, because the output of tests is often shared.
    shown = {k: v for k, v in headers.items() if k != "authorization"}
    return RecordedCall(method, path, json.loads(content) if content else None, shown)


def _response(answer: Answer) -> httpx.Response:
    return httpx.Response(answer.status, json=answer.body)
