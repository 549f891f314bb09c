"""Runs of the Claude Agent SDK, for what is measured of many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import claude_agent_sdk
from bodies import Around, unchanged
from claude_agent_scripts import Call, ScriptedCLI

from countersign.adapters import claude_agent

__all__ = ["prepare"]


async def _body(name: str, given: dict[str, Any]) -> Any:
    return {"stdout": "ok"}


def prepare(
    tools: Sequence[str], chain_name: str | None, around: Around = unchanged
) -> Callable[[], Awaitable[Any]]:
    """A stand-in for the CLI that calls the tools in turn; without a chain's name, ungoverned."""
    calls = [Call(name, {"n": n}, call_id=f"toolu_{n}") for n, name in enumerate(tools)]

    async def run() -> None:
        cli: Any = ScriptedCLI(calls, around(_body))
        messages: Any = (
            claude_agent_sdk.query(prompt="go", transport=cli)
            if chain_name is None
            else claude_agent.query(prompt="go", transport=cli, chain_name=chain_name)
        )
        async for _ in messages:
            pass

    return run
