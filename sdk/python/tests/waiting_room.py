"""A service for one test: every action needs approval, and all are approved together once a
given number of clients wait. A program of its own, so that its work is not the client's."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any


async def main(crowd: int) -> None:
    everybody = asyncio.Event()
    asked = waiting = 0

    def answer(line: str) -> dict[str, Any]:
        nonlocal asked
        if line.startswith("POST /v1/chains "):
            return {"id": "chain", "fast_path": False}
        if "/events" in line:
            asked += 1
            if asked > crowd:  # asked once more, after the wait
                return {"policy_decision": "allow"}
            return {"policy_decision": "require_approval", "approval_id": str(asked)}
        if "/complete" in line:
            return {"receipt": {"receipt_number": "CSN-2026-00001"}}
        return {"status": "approved", "decision": {"policy_decision": "allow"}}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        while True:
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            if length := re.search(r"(?i)content-length: (\d+)", head):
                await reader.readexactly(int(length[1]))
            if "?wait=" in head:
                waiting += 1
                if waiting == crowd:
                    everybody.set()
                await everybody.wait()
            body = json.dumps(answer(head)).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
