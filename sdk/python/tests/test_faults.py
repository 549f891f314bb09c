"""The real service behind a network that fails."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

import countersign
from faults import FaultProxy
from server import Server
from test_decisions import eventually


def config(server: Server, proxy: FaultProxy, **settings: Any) -> countersign.ChainConfig:
    settings = {"fail_mode": "deny", "enable_local_fast_path": False, **settings}
    return countersign.init(server.key, backend_url=proxy.url, **settings)


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("mode", ["reset", "cut", "lose"])
def test_an_event_survives_a_broken_connection_once(
    server: Server, proxy: FaultProxy, mode: str, sync: bool
) -> None:
    config(server, proxy)
    action = ("a", "tool_call", "look", {"n": 1})

    def heal() -> None:
        assert proxy.faulted.wait(30)
        proxy.mode = "pass"

    async def main(chain: countersign.Chain) -> None:
        async with chain:
            proxy.mode = mode
            healing = asyncio.create_task(asyncio.to_thread(heal))
            assert (await chain.record_agent_action(*action)).sequence == 1
            await healing

    chain = countersign.Chain("faulty")
    if sync:
        import threading

        healer = threading.Thread(target=heal)
        with chain:
            proxy.mode = mode
            healer.start()
            assert chain.record_agent_action_sync(*action).sequence == 1
            healer.join()
    else:
        asyncio.run(main(chain))
    assert len(server.events(chain.id)) == 1
    assert chain.receipt is not None
    assert chain.receipt["total_actions"] == 1


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_half_open_connection_ends_at_the_deadline(
    server: Server, proxy: FaultProxy, sync: bool
) -> None:
    # The clients of the library share no connection with the proxy's other requests.
    config(server, proxy, backend_timeout_seconds=0.5)

    async def main() -> None:
        async with countersign.Chain("silent") as chain:
            proxy.mode = "hang"
            await chain.record_agent_action("a", "tool_call", "look", {})

    with pytest.raises(countersign.BackendUnavailableError, match="Timeout"):
        if sync:
            with countersign.Chain("silent") as chain:
                proxy.mode = "hang"
                chain.record_agent_action_sync("a", "tool_call", "look", {})
        else:
            asyncio.run(main())
    proxy.mode = "pass"
    eventually(lambda: countersign.flush(5))


def test_a_refused_connection_is_unavailable(server: Server, proxy: FaultProxy) -> None:
    config(server, proxy)
    proxy.refuse()
    with pytest.raises(countersign.BackendUnavailableError, match="ConnectError"):
        with countersign.Chain("refused"):
            pass


HEADERS = "HTTP/1.1 201 Created\r\nx-drops: "
DROPS = {"headers": (HEADERS, "x"), "body": (HEADERS + "\r\ncontent-length: 60\r\n\r\n", " ")}


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize(("start", "drop"), DROPS.values(), ids=DROPS)
def test_an_answer_in_drops_ends_at_the_deadline(
    server: Server, start: str, drop: str, sync: bool
) -> None:
    """A peer that sends a byte now and then keeps every single read in time. It does not hold up
    the decision: the deadline is one for the whole answer."""
    import threading

    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            client.recv(1 << 16)
            client.sendall(start.encode())
            for _ in range(60):
                if ended.wait(0.05):
                    return
                try:
                    client.sendall(drop.encode())
                except OSError:
                    return

    async def open_chain() -> None:
        async with countersign.Chain("dripping"):
            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        dripping = threading.Thread(target=drip, args=(listener,))
        dripping.start()
        countersign.init(
            server.key,
            backend_url=f"http://127.0.0.1:{listener.getsockname()[1]}",
            backend_timeout_seconds=0.3,
            fail_mode="deny",
        )
        with pytest.raises(countersign.BackendUnavailableError, match=r"ReadTimeout|too long"):
            if sync:
                with countersign.Chain("dripping"):
                    pass
            else:
                asyncio.run(open_chain())
        ended.set()
        dripping.join(10)


def test_opening_is_repeated_under_one_key(server: Server, proxy: FaultProxy) -> None:
    config(server, proxy)
    before = len(server.get("/v1/chains?limit=200")["data"])
    proxy.mode = "lose"

    def heal() -> None:
        assert proxy.faulted.wait(30)
        proxy.mode = "pass"

    import threading

    healer = threading.Thread(target=heal)
    healer.start()
    with countersign.Chain("opened-once") as chain:
        healer.join()
    assert len(server.get("/v1/chains?limit=200")["data"]) == before + 1
    assert server.get(f"/v1/chains/{chain.id}")["status"] == "completed"


def test_completion_is_repeated_after_a_lost_answer(server: Server, proxy: FaultProxy) -> None:
    config(server, proxy)

    def heal() -> None:
        assert proxy.faulted.wait(30)
        proxy.mode = "pass"

    import threading

    healer = threading.Thread(target=heal)
    with countersign.Chain("completed-once") as chain:
        proxy.mode = "lose"
        healer.start()
    healer.join()
    assert chain.receipt is not None
    assert chain.receipt["chain_id"] == chain.id
