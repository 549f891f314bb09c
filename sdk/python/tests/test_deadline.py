"""The deadline of a request, at the network streams of the client's transports."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from countersign import _deadline
from countersign._clients import Clients, Unreachable
from countersign._deadline import Deadline, keep_deadlines
from countersign._secret import SecretStr
from countersign._steps import Send


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_read_without_a_timeout_ends_at_the_deadline_of_the_connection(sync: bool) -> None:
    """httpcore gives none while it asks a SOCKS proxy to connect: one that accepts connections and
    says nothing would hold up a call for ever."""
    ended = threading.Event()

    def keep_silent(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            ended.wait(3)

    def read(port: int) -> None:
        with httpx.HTTPTransport() as transport:
            backend = keep_deadlines(transport)._pool._network_backend
            stream = backend.connect_tcp("127.0.0.1", port, timeout=Deadline(0.2))
            try:
                stream.read(max_bytes=1)
            finally:
                stream.close()

    async def read_async(port: int) -> None:
        async with httpx.AsyncHTTPTransport() as transport:
            backend = keep_deadlines(transport)._pool._network_backend
            stream = await backend.connect_tcp("127.0.0.1", port, timeout=Deadline(0.2))
            try:
                await stream.read(max_bytes=1)
            finally:
                await stream.aclose()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = threading.Thread(target=keep_silent, args=(listener,))
        silent.start()
        port = listener.getsockname()[1]
        try:
            # An error of httpcore's, which the transport turns into httpx's.
            with pytest.raises(Exception) as raised:
                read(port) if sync else asyncio.run(read_async(port))
        finally:
            ended.set()
            silent.join(10)
    assert type(raised.value).__name__ == "ReadTimeout"


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_an_attempt_that_begins_after_the_deadline_is_too_late(sync: bool) -> None:
    """The pause before it may take longer than it was meant to. The service is unreachable then, as
    after any other timeout, and nothing was sent."""
    clients = Clients("http://127.0.0.1:9", SecretStr("key"), "0", None)
    late = Send("GET", "/", -0.01)
    with pytest.raises(Unreachable, match="ConnectTimeout") as raised:
        clients.send(late) if sync else asyncio.run(clients.send_async(late))
    assert not raised.value.sent


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no second loopback address")
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_dead_address_leaves_time_for_the_next(
    sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host may have two addresses, of which the first does not answer, such as one of IPv6 where
    the network does not carry it."""

    def answer(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            client.recv(1 << 16)
            client.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    def resolve(host: str | bytes | None, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
        hosts = ("127.0.0.2", "127.0.0.1") if host in ("two.test", b"two.test") else (host,)
        return [found for one in hosts for found in getaddrinfo(one, port, *args, **kwargs)]

    getaddrinfo = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with ExitStack() as opened:
        live = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = live.getsockname()[1]
        dead = opened.enter_context(socket.create_server(("127.0.0.2", port), backlog=0))
        for _ in range(3):  # once its queue is full, it answers no more
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(dead.getsockname())
        answering = threading.Thread(target=answer, args=(live,), daemon=True)
        answering.start()
        clients = Clients(f"http://two.test:{port}", SecretStr("key"), "0", None)
        monkeypatch.setenv("no_proxy", "*")
        send = Send("GET", "/", 2.0)
        reply = clients.send(send) if sync else asyncio.run(clients.send_async(send))
        assert reply.status == 204
        answering.join(10)
        clients.close()


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_resolver_that_does_not_answer_is_not_waited_for(
    sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver of the system may take half a minute to give up. The request has less time."""

    def resolve(*args: Any, **kwargs: Any) -> list[Any]:
        ended.wait(10)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    async def send_async() -> None:
        try:
            await clients.send_async(send)
        finally:
            ended.set()  # the event loop waits for its threads

    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setenv("no_proxy", "*")
    clients = Clients("http://slow.test", SecretStr("key"), "0", None)
    send = Send("GET", "/", 0.2)
    try:
        with pytest.raises(Unreachable, match="ConnectTimeout") as raised:
            clients.send(send) if sync else asyncio.run(send_async())
    finally:
        ended.set()
    assert raised.value.slow
    assert not raised.value.sent


def test_a_resolver_that_does_not_answer_is_asked_by_few_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests join the look-up that is under way, until it has been for long. Otherwise each would
    leave a thread behind."""
    asked = []

    def resolve(*args: Any, **kwargs: Any) -> list[Any]:
        asked.append(args)
        if len(asked) == 1:
            ended.wait(10)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setenv("no_proxy", "*")
    clients = Clients("http://hangs.test", SecretStr("key"), "0", None)
    try:
        for _ in range(5):
            with pytest.raises(Unreachable, match="ConnectTimeout"):
                clients.send(Send("GET", "/", 0.05))
            (look_up,) = _deadline._under_way["hangs.test", 80]
            look_up.began = time.monotonic() + 60  # it has just begun, however slow the test is
        assert len(asked) == 1
        look_up.began = time.monotonic() - 1  # about as long as one lost packet takes
        with pytest.raises(Unreachable, match="ConnectError"):
            clients.send(Send("GET", "/", 10.0))
        assert len(asked) == 2
    finally:
        ended.set()


def test_requests_at_once_share_a_look_up_and_not_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exception that is raised in two threads would have the traceback of both."""
    asked = []

    def resolve(*args: Any, **kwargs: Any) -> list[Any]:
        asked.append(args)
        ended.wait(10)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    def look_up() -> BaseException | None:
        begun.release()
        try:
            _deadline._addresses_of("shared.test", 80, Deadline(10))
        except httpx.ConnectError as error:
            return error
        return None

    ended, begun = threading.Event(), threading.Semaphore(0)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(look_up)
        while not asked:
            begun.acquire(timeout=0.01)
        second = pool.submit(look_up)
        while not _deadline._under_way["shared.test", 80][-1].shared:
            begun.acquire(timeout=0.01)
        ended.set()
        errors = first.result(10), second.result(10)
    assert all(isinstance(error, httpx.ConnectError) for error in errors)
    assert errors[0] is not errors[1]
    assert len(asked) == 1


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_an_address_is_not_looked_up(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "getaddrinfo")
    assert _deadline._addresses_of(address, 80, Deadline(10)) == [address]


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("host", ["two..dots", f"{'a' * 64}.test"])
def test_a_name_that_no_host_can_have_is_unreachable(
    host: str, sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver refuses it with an error of its own. That is known at once, and is not taken for
    a resolver that does not answer."""
    monkeypatch.setenv("no_proxy", "*")
    clients = Clients(f"http://{host}", SecretStr("key"), "0", None)
    send = Send("GET", "/", 5.0)
    with pytest.raises(Unreachable, match="ConnectError") as raised:
        clients.send(send) if sync else asyncio.run(clients.send_async(send))
    assert not raised.value.slow
    assert not raised.value.sent


def test_an_error_of_the_look_up_is_raised_where_it_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program may have replaced the resolver by one with errors of its own. They are not lost on
    the thread of the look-up."""

    def resolve(*args: Any, **kwargs: Any) -> list[Any]:
        raise LookupError("no such zone")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setenv("no_proxy", "*")
    clients = Clients("http://replaced.test", SecretStr("key"), "0", None)
    with pytest.raises(LookupError, match="no such zone"):
        clients.send(Send("GET", "/", 5.0))


def test_a_look_up_when_the_interpreter_ends_does_not_hold_it_up() -> None:
    """A thread cannot be started any more, and would be waited for without an end."""
    program = """
from countersign._deadline import Deadline, _addresses_of

class Late:
    def __del__(self, write=print, look_up=_addresses_of, timeout=Deadline(10)):
        write("127.0.0.1" in look_up("localhost", 9, timeout))

Late()  # loads what a look-up needs
left = Late()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("True\n" * 2, "")
