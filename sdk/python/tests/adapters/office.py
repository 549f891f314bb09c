"""A real service with rules and a reviewer, for the tests of adapters."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx

import countersign
from server import Server

RULES = """
rules:
  - name: never
    when: 'action.action_name.startsWith("denied")'
    decision: deny
    reason: This is never done.
  - name: ask first
    when: 'action.action_name.startsWith("asked")'
    decision: require_approval
    reason: A person looks first.
"""
_DEADLINE = 60.0


class Office:
    """Agents record with a key of their own; the reviewer is the service's first admin."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._http = httpx.Client(
            base_url=server.url,
            headers={"authorization": f"Bearer {server.key}"},
            trust_env=False,
            verify=False,  # no TLS is spoken
            timeout=_DEADLINE,
        )
        self._call("PUT", "/v1/policies", content=RULES, kind="application/yaml")
        self.key: str = self._call("POST", "/v1/api-keys", {"name": "agents", "role": "agent"})[
            "key"
        ]

    def close(self) -> None:
        self._http.close()

    def configure(self) -> countersign.ChainConfig:
        # A slow machine is no outage.
        return countersign.init(
            api_key=self.key, backend_url=self.server.url, backend_timeout_seconds=30
        )

    def kill_switch(self, *, active: bool) -> None:
        if active:
            self._call("POST", "/v1/kill-switch/activate", {"reason": "a drill"})
        else:
            self._call("POST", "/v1/kill-switch/deactivate", {})

    def pending(self) -> list[dict[str, Any]]:
        """The approvals that wait now, at most 200 of them."""
        found: list[dict[str, Any]] = self._call("GET", "/v1/approvals?status=pending&limit=200")[
            "data"
        ]
        return found

    def waiting(self, count: int = 1) -> list[dict[str, Any]]:
        """The approvals that wait, at most 200 of them, once there are that many."""
        end = time.monotonic() + _DEADLINE
        while time.monotonic() < end:
            pending = self.pending()
            if len(pending) >= count:
                return pending
            threading.Event().wait(0.02)
        raise AssertionError(f"{count} approvals were not asked for")

    def decide(self, decision: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait for approvals and decide them: ``approve`` or ``deny``."""
        return [self._decide(approval, decision) for approval in self.waiting(count)]

    def approve(self, approval: dict[str, Any]) -> None:
        self._decide(approval, "approve")

    def chains(self, name: str) -> list[dict[str, Any]]:
        """The chains of that name, the first one first."""
        listed = self._call("GET", "/v1/chains?limit=200")["data"]
        return sorted((c for c in listed if c["name"] == name), key=lambda c: str(c["id"]))

    def story(self, chain_id: Any) -> list[str]:
        """What a chain's events say, in order."""
        events = self.server.events(str(chain_id))
        return [f"{e['agent_name']}: {e['action_type']} {e['action_name']}" for e in events]

    def outcomes(self, chain_id: Any, kind: str = "tool_call") -> list[Any]:
        """What became of a chain's actions of one type: pairs of outcome and detail."""
        return [
            (told["outcome"], told["detail"]) if (told := e.get("outcome")) else None
            for e in self.server.events(str(chain_id))
            if e["action_type"] == kind
        ]

    def receipt_is_valid(self, receipt: Any) -> bool:
        path = f"/v1/verification/v2/receipts/{receipt['receipt_id']}"
        return bool(self._call("GET", path)["verification"]["overall_status"] == "verified")

    def _decide(self, approval: dict[str, Any], decision: str) -> dict[str, Any]:
        decided: dict[str, Any] = self._call(
            "POST", f"/v1/approvals/{approval['id']}/{decision}", {}
        )
        return decided

    def _call(
        self, method: str, path: str, body: Any = None, *, content: str = "", kind: str = ""
    ) -> Any:
        if content:
            headers = {"content-type": kind}
            answer = self._http.request(method, path, content=content, headers=headers)
        else:
            answer = self._http.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json()
