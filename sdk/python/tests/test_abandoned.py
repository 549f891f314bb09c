"""A run that comes back after its chain was sealed as abandoned goes on, over a real socket."""

from __future__ import annotations

import logging
import threading
import time

import pytest

import countersign
from server import Server

_DEADLINE = 90.0


def _abandon(server: Server, chain_id: str | None) -> None:
    """Wait until the service has sealed the chain. A list is no request for a chain, so
    looking keeps none open."""
    ends = time.monotonic() + _DEADLINE
    pause = threading.Event()
    while chain_id not in {chain["id"] for chain in server.get("/v1/chains?status=failed")["data"]}:
        assert time.monotonic() < ends, "the chain was not sealed"
        pause.wait(0.2)


def _settings(server: Server, **settings: object) -> None:
    server.call("PATCH", "/v1/organization", settings)


def test_a_run_goes_on_in_the_successor(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server = own_server
    server.config(enable_local_fast_path=False)
    _settings(server, abandon_after_hours=1 / 3600)
    caplog.set_level(logging.WARNING, "countersign")
    names = ("events", "completion", "outcome", "fast")
    chains = {name: countersign.Chain(name) for name in names[:3]}
    chains["fast"] = countersign.Chain(
        "fast", config=countersign.init(api_key=server.key, backend_url=server.url)
    )
    decisions = {}
    for name, chain in chains.items():
        chain.__enter__()
        decisions[name] = chain.record_agent_action_sync(
            "agent", "tool_call", "look", {}, idempotency_key="early"
        )
    old = {name: chain.id for name, chain in chains.items()}
    for chain_id in old.values():
        _abandon(server, chain_id)
    _settings(server, abandon_after_hours=72)

    # Events, and repeats of what was recorded before.
    chain = chains["events"]

    def act(name: str, key: str) -> countersign.PolicyDecision:
        return chain.record_agent_action_sync("agent", "tool_call", name, {}, idempotency_key=key)

    late = act("deploy", "late")
    assert chain.id == late.chain_id != old["events"]
    again = act("look", "early")
    assert (again.chain_id, again.event_id) == (old["events"], decisions["events"].event_id)
    with pytest.raises(countersign.APIError) as conflict:
        act("deploy", "early")
    assert conflict.value.code == "idempotency_conflict"
    assert chain.record_outcome_sync(late, "succeeded")
    chain.__exit__(None, None, None)
    assert chain.receipt is not None
    assert (chain.receipt["chain_id"], chain.receipt["total_actions"]) == (late.chain_id, 1)
    before, after = (server.get(f"/v1/chains/{one}") for one in (old["events"], chain.id))
    assert before["error"]["type"] == "abandoned"
    assert (before["continued_by"], after["continues"]) == (after["id"], before["id"])
    assert [event["idempotency_key"] for event in server.events(chain.id)] == ["late"]

    # A completion alone.
    chain = chains["completion"]
    chain.__exit__(None, None, None)
    assert chain.receipt is not None
    assert chain.receipt["chain_id"] == chain.id != old["completion"]
    assert server.get(f"/v1/chains/{chain.id}")["status"] == "completed"

    # The outcome of an action that outlasted its chain, which the client follows.
    chain = chains["outcome"]
    assert chain.record_outcome_sync(decisions["outcome"], "succeeded")
    assert chain.id != old["outcome"]
    (marker,) = server.events(chain.id)
    assert (marker["action_type"], marker["payload"]["outcome"]) == ("late_outcome", "succeeded")
    assert marker["payload"]["event_id"] == decisions["outcome"].event_id
    chain.__exit__(None, None, None)

    # What the client decides by itself.
    chain = chains["fast"]
    for number in range(5):
        chain.record_agent_action_sync("agent", "tool_call", "get_page", {"page": number})
    chain.__exit__(None, None, None)
    assert chain.receipt is not None
    assert (chain.receipt["chain_id"], chain.receipt["total_actions"]) == (chain.id, 5)
    assert chain.id != old["fast"]

    told = [record for record in caplog.records if "abandoned" in record.getMessage()]
    assert len(told) == len(chains)
    for record in told:
        for chain_id in (*old.values(), *(chain.id for chain in chains.values())):
            assert str(chain_id) not in record.getMessage()
