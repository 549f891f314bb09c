"""Status by code by known stop by fail mode by category: the table, over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import countersign
from countersign.testing import example_api_key
from scripted import ScriptedService

TABLE: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "testdata" / "vectors" / "client-stops.json").read_text("utf-8")
)
STOPS: dict[str, Any] = {
    "kill_switch": {"kill_switch_active": True, "pause_reason": "fire"},
    "auto_pause": {"auto_paused": True, "pause_reason": "too many events"},
}


@pytest.fixture
def scripted() -> Iterator[ScriptedService]:
    with ScriptedService() as service:
        yield service


def body_of(answer: dict[str, Any]) -> tuple[int, Any] | str:
    if "fault" in answer:
        return str(answer["fault"])
    if answer["code"] is None:
        return answer["status"], b"<html>a proxy's page</html>"
    return answer["status"], {"code": answer["code"], "detail": "no", "status": answer["status"]}


class Way:
    """Sync or async: to record, and to end with a configuration."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop

    def record(self, chain: countersign.Chain, *action: Any) -> str:
        """What becomes of an action: the source of its decision, or the exception's name."""
        try:
            if self._loop is None:
                return chain.record_agent_action_sync(*action).decision_source
            recording = chain.record_agent_action(*action)
            return self._loop.run_until_complete(recording).decision_source
        except Exception as error:
            return type(error).__name__

    def close(self, config: countersign.ChainConfig) -> None:
        if self._loop is not None:
            self._loop.run_until_complete(countersign.aclose(config=config))


@pytest.fixture(params=["sync", "async"])
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    if request.param == "sync":
        yield Way(None)
        return
    loop = asyncio.new_event_loop()
    yield Way(loop)
    loop.close()


def expected(answer: dict[str, Any], known: str, modes: str, category: str) -> str:
    if answer["means"] == "refusal":
        return "APIError"
    if answer["means"] == "kill_switch":
        return "KillSwitchActiveError"
    if known:
        return str(TABLE["known_stops"][known])
    return str(TABLE["unreachable"][modes][category])


@pytest.mark.parametrize("answer", TABLE["answers"], ids=lambda answer: answer["name"])
def test_what_happens(
    scripted: ScriptedService,
    monkeypatch: pytest.MonkeyPatch,
    way: Way,
    answer: dict[str, Any],
) -> None:
    monkeypatch.setattr("countersign._transport._FIRST_BACKOFF", 0.0001)
    monkeypatch.setattr("countersign._transport._AFTER_SILENCE", 0.0)
    wrong = {}
    silent = answer.get("fault") == "silence"
    for modes in TABLE["fail_modes"]:
        config = countersign.ChainConfig(
            example_api_key(),
            backend_url=scripted.url,
            fail_modes=TABLE["fail_modes"][modes],
        )
        for known in ("", *TABLE["known_stops"]):
            with countersign.Chain("table", config=config) as chain:
                assert chain._session is not None
                if known:
                    scripted.answer = (200, {"policy_decision": "deny", **STOPS[known]})
                    stop = way.record(chain, "a", "tool_call", "learn", {})
                    assert stop == TABLE["known_stops"][known]
                chain._session.transport.timeout = 0.03 if silent else 60.0
                for category, action in TABLE["categories"].items():
                    scripted.answer = body_of(answer)
                    found = way.record(
                        chain, "a", "tool_call", action["action_name"], action["payload"]
                    )
                    want = expected(answer, known, modes, category)
                    if found != want:
                        wrong[known, modes, category] = (found, want)
                    if answer["means"] == "kill_switch" and not known:
                        # What was learnt counts for the whole configuration: begin anew.
                        chain._session.transport.kill_switch_active = False
                chain._session.outbox = type(chain._session.outbox)(0)  # for the next chain
                chain._session.transport.kill_switch_active = False
                chain._session.transport.timeout = 60.0
                scripted.answer = (200, {"policy_decision": "allow"})
        way.close(config)
    assert wrong == {}


def test_the_table_speaks_of_everything() -> None:
    assert {answer["means"] for answer in TABLE["answers"]} == {
        "refusal",
        "kill_switch",
        "unreachable",
    }
    for modes in TABLE["fail_modes"]:
        assert set(TABLE["unreachable"][modes]) == set(TABLE["categories"])
    assert set(TABLE["known_stops"]) == set(STOPS)
