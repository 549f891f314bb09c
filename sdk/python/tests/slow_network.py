"""A network that is slow at random, and now and then loses an answer."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from types import TracebackType

_SLOWEST = 5.0  # seconds for which an answer is held back at most
_QUICK = 0.05


class SlowNetwork:
    """A TCP proxy in front of several replicas. Each connection goes to one of them. Most
    answers are held back for a moment, one in four for up to five seconds; a few are lost,
    and end in a reset or in silence."""

    def __init__(self, targets: Sequence[int], seed: int) -> None:
        self._targets = targets
        self._chance = random.Random(seed)  # used by the loop's thread alone
        self._connections: set[asyncio.Task[None]] = set()
        self.held = 0
        """Answers that came later than an allow is good for."""
        self.lost = 0
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0)
        )
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def __enter__(self) -> SlowNetwork:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._pass_on(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self._chance.choice(self._targets)
        there, back = await asyncio.open_connection("127.0.0.1", target)
        answering = asyncio.create_task(self._answer(there, writer))
        try:
            while data := await reader.read(1 << 16):
                back.write(data)
                await back.drain()
        finally:
            answering.cancel()
            back.transport.abort()
            await asyncio.gather(answering, return_exceptions=True)

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client sends its next request when it has the answer: what comes in one piece is
        one answer, or a part of one."""
        while data := await there.read(1 << 20):
            fate = self._chance.random()
            if fate < 0.01:
                self.lost += 1
                writer.transport.abort()
                return
            if fate < 0.015:
                self.lost += 1
                continue
            delay = self._chance.uniform(0, _SLOWEST if fate > 0.75 else _QUICK)
            self.held += delay > 1
            await asyncio.sleep(delay)
            writer.write(data)
            await writer.drain()
        writer.transport.abort()
