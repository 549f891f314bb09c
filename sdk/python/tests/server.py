"""Starts, kills and looks into a real service."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import httpx

import countersign

_DEADLINE = 60.0
_ADDRESS = re.compile(r'"msg":"serving","address":"http://127\.0\.0\.1:(\d+)"')
_KEY = re.compile(r"csk_[0-9A-Za-z]+")


class Server:
    """One service on one store. It can be killed and started again on the same port."""

    def __init__(self, binary: str, data: Path, database: str | None, *options: str) -> None:
        self._command = [binary, "serve", "--data", str(data), "--public-rate", "0", *options]
        # The address has a password, and every process can read the command line.
        self._environment = {"COUNTERSIGN_DATABASE": database} if database else {}
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.key = ""
        self.log: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = process = subprocess.Popen(
            [*self._command, "--listen", f"127.0.0.1:{self.port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | self._environment,
        )
        serving, announced = threading.Event(), threading.Event()
        readers = (
            threading.Thread(target=self._read_log, args=(process, serving), daemon=True),
            threading.Thread(target=self._read_key, args=(process, announced), daemon=True),
        )
        for reader in readers:
            reader.start()
        if not serving.wait(_DEADLINE):
            raise RuntimeError("the service does not serve:\n" + "".join(self.log))
        if not self.key and not announced.wait(_DEADLINE):
            raise RuntimeError("the service announced no key")

    def _read_log(self, process: subprocess.Popen[str], serving: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self.log.append(line)
                if found := _ADDRESS.search(line):
                    self.port = int(found[1])
                    serving.set()

    def _read_key(self, process: subprocess.Popen[str], announced: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if not self.key and (found := _KEY.search(line)):
                    self.key = found[0]
                    announced.set()

    def kill(self) -> None:
        """End it without warning, as a power cut would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(_DEADLINE)
            self._process = None

    def freeze(self) -> None:
        """Let it stand still, as a machine does that is out of memory or being moved."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    # -- what the service holds --------------------------------------------------------

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(self, path: str, body: Any = None) -> Any:
        return self.call("POST", path, body)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"authorization": f"Bearer {self.key}"}
        # No TLS is spoken here, and reading the machine's certificates takes longer than the call.
        with httpx.Client(trust_env=False, verify=False) as client:
            answer = client.request(
                method, self.url + path, json=body, headers=headers, timeout=_DEADLINE
            )
        answer.raise_for_status()
        return json.loads(answer.content)

    def events(self, chain_id: str | None) -> list[dict[str, Any]]:
        """Every event of a chain, in order."""
        events: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = self.get(f"/v1/chains/{chain_id}/events?limit=200{cursor}")
            events += page["data"]
            if page["next_cursor"] is None:
                return events
            cursor = f"&cursor={page['next_cursor']}"

    def config(self, **settings: Any) -> countersign.ChainConfig:
        return countersign.init(**{"api_key": self.key, "backend_url": self.url, **settings})
