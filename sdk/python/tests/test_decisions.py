"""What each decision does to the caller: sections 3, 4.7 and 7 of the specification, row by row."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import countersign
from conftest import configure
from countersign import PolicyDecision, exceptions
from countersign._decision import allowed_locally
from countersign.testing import FakeService, example_api_key

ACTION = ("clerk", "tool_call", "pay", {"amount_usd": 5})


def eventually(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.002)


def record(sync: bool, *action: Any, **options: Any) -> PolicyDecision:
    """Record one action in a chain of its own, one way or the other."""

    async def main() -> PolicyDecision:
        async with countersign.Chain("test") as chain:
            return await chain.record_agent_action(*(action or ACTION), **options)

    if not sync:
        return asyncio.run(main())
    with countersign.Chain("test") as chain:
        return chain.record_agent_action_sync(*(action or ACTION), **options)


both = pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])


@both
@pytest.mark.parametrize("outcome", ["allow", "allow_with_flag"])
def test_allowed_actions_return_their_decision(fake: FakeService, sync: bool, outcome: str) -> None:
    configure(fake)
    fake.script(outcome, decision_reason="because", policy_name="p", docs_url="https://x.invalid/")
    decision = record(sync)
    assert decision.policy_decision == outcome
    assert decision.decision_reason == "because"
    assert decision.decision_source == "backend_evaluation"
    assert decision.allowed


def test_every_attribute_of_a_decision_is_read(fake: FakeService) -> None:
    configure(fake)
    given: dict[str, Any] = {
        "decision_reason": "r",
        "decision_source": "backend_evaluation",
        "policy_name": "n",
        "pause_reason": "p",
        "remediation": "m",
        "docs_url": "https://x.invalid/",
        "evaluation_mode": "shadow",
        "shadow_decision": "deny",
        "estimated_cost_usd": 0.25,
        "auto_paused": False,
        "unknown_to_this_version": {"a": 1},
    }
    fake.script("allow", **given)
    decision = record(True)
    del given["unknown_to_this_version"]
    for name, value in given.items():
        assert getattr(decision, name) == value
    assert decision.sequence == 1
    assert decision.status == "allowed"
    assert decision.policy_version
    assert decision.cumulative_metrics


def test_a_decision_has_the_defaults_of_the_specification() -> None:
    decision = PolicyDecision("allow")
    assert decision.decision_reason == ""
    assert decision.decision_source == "backend_evaluation"
    assert decision.kill_switch_active is decision.auto_paused is False
    for name in ("policy_name", "pause_reason", "remediation", "docs_url", "evaluation_mode"):
        assert getattr(decision, name) is None
    assert decision.shadow_decision is None
    assert decision.estimated_cost_usd is None


def test_a_local_decision_is_one_like_any_other() -> None:
    made = allowed_locally("safe", "local_fast_path", "chn_1", "v1", "key")
    usual = PolicyDecision(
        "allow",
        decision_reason="safe",
        decision_source="local_fast_path",
        chain_id="chn_1",
        policy_version="v1",
        status="allowed",
        idempotency_key="key",
    )
    assert made == usual
    assert vars(made) == vars(usual)
    assert (hash(made), repr(made)) == (hash(usual), repr(usual))
    assert pickle.loads(pickle.dumps(made)) == copy.copy(made) == usual
    assert dataclasses.replace(made, status=None) == dataclasses.replace(usual, status=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.status = "denied"  # type: ignore[misc]
    assert allowed_locally("other", "offline_stub", None, None, "k") != made


def test_a_decision_that_is_not_understood_is_no_permission() -> None:
    assert not PolicyDecision.from_json({"policy_decision": "shrug"}).allowed
    assert not PolicyDecision.from_json({}).allowed


@both
@pytest.mark.parametrize(
    ("script", "error"),
    [
        ({"decision_reason": "no"}, exceptions.ActionDeniedError),
        ({"kill_switch_active": True, "pause_reason": "fire"}, exceptions.KillSwitchActiveError),
        ({"auto_paused": True}, exceptions.ChainAutoPausedError),
        ({"policy_name": "chain_timeout"}, exceptions.ChainTimeoutError),
        ({"policy_name": "budget:daily"}, exceptions.ActionDeniedError),
    ],
    ids=["policy", "kill-switch", "auto-pause", "chain-timeout", "budget"],
)
def test_denied_actions_raise(
    fake: FakeService, sync: bool, script: dict[str, Any], error: type[Any]
) -> None:
    configure(fake)
    fake.script("deny", **script)
    with pytest.raises(error) as denied:
        record(sync)
    assert type(denied.value) is error
    assert denied.value.decision.policy_decision == "deny"
    assert denied.value.decision.event_id
    assert "'pay' by 'clerk' was denied" in str(denied.value)
    if script.get("policy_name") == "budget:daily":
        assert denied.value.decision.policy_name == "budget:daily"
        assert "by policy 'budget:daily'" in str(denied.value)
    # The chain is marked as failed by the same exception.
    assert fake.chains[0]["error"]["type"] == error.__name__


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("too much", ": too much. Ask."),
        ("Too much.", ": Too much. Ask."),
        ("Why so much?", ": Why so much? Ask."),
        ("", ". Ask."),
    ],
)
def test_the_text_of_a_denial_says_what_to_do(fake: FakeService, reason: str, shown: str) -> None:
    configure(fake)
    fake.script(
        "deny", policy_name="p1", decision_reason=reason, remediation="Ask.", docs_url="u:x"
    )
    with pytest.raises(countersign.ActionDeniedError) as denied:
        record(True)
    expected = f"tool_call 'pay' by 'clerk' was denied by policy 'p1'{shown} (see u:x)"
    assert str(denied.value) == expected


@both
@pytest.mark.parametrize("resolution", ["approve", "deny", "time_out"])
def test_an_action_that_needs_approval_waits_for_it(
    fake: FakeService, sync: bool, resolution: str
) -> None:
    configure(fake)
    fake.script("require_approval", policy_name="over_limit")
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(record(sync))
        except Exception as error:
            found.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    eventually(lambda: fake.approvals)
    approval_id = fake.approvals[0]["id"]
    eventually(lambda: any(approval_id in call.path for call in fake.calls))
    assert not found
    getattr(fake, resolution)(approval_id)
    worker.join(30)
    (result,) = found
    if resolution == "approve":
        assert result.policy_decision == "allow"
        assert result.decision_source == "human_approval"
        assert result.approval_id == approval_id
    else:
        timed_out = resolution == "time_out"
        kind = exceptions.ApprovalTimedOutError if timed_out else exceptions.ActionDeniedError
        assert type(result) is kind
        assert isinstance(result, exceptions.ActionDeniedError)
        assert result.decision is not None
        assert result.decision.decision_source == "human_approval"
        assert result.decision.approval_id == approval_id
        assert result.decision.policy_name == "over_limit"


def test_each_action_waits_for_its_own_approval(fake: FakeService) -> None:
    configure(fake)

    async def main() -> tuple[Any, ...]:
        async with countersign.Chain("two") as chain:
            fake.script("require_approval")
            fake.script("require_approval")
            first = asyncio.create_task(chain.record_agent_action("a", "t", "pay", {"amount": 1}))
            second = asyncio.create_task(chain.record_agent_action("a", "t", "pay", {"amount": 2}))
            while len(fake.approvals) < 2:
                await asyncio.sleep(0)
            by_amount = {a["payload"]["amount"]: a["id"] for a in fake.approvals}
            fake.deny(by_amount[1])
            fake.approve(by_amount[2])
            return tuple(await asyncio.gather(first, second, return_exceptions=True))

    denied, approved = asyncio.run(main())
    assert isinstance(denied, countersign.ActionDeniedError)
    assert approved.allowed


def test_a_wait_can_be_cancelled_and_resumed(fake: FakeService) -> None:
    configure(fake)
    fake.script("require_approval")

    async def first_run() -> None:
        async with countersign.Chain("stopped") as chain:
            await chain.record_agent_action(*ACTION)

    async def cancel_it() -> None:
        task = asyncio.create_task(first_run())
        while not fake.approvals:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_it())
    # Completing the chain cancelled the approval; what is known of it is still told.
    approval_id = fake.approvals[0]["id"]
    with pytest.raises(countersign.ActionDeniedError, match="before anyone decided"):
        countersign.wait_for_approval_sync(approval_id)


@both
def test_waiting_resumes_by_approval_id(fake: FakeService, sync: bool) -> None:
    config = configure(fake)
    chain = fake._records.open({"name": "earlier"}, None)
    script = {"policy_decision": "require_approval", "policy_name": "limit"}
    action = {"agent_name": "a", "action_type": "t", "action_name": "n", "payload": {}}
    asked = fake._records.record(chain["id"], action, script)
    threading.Timer(0.05, lambda: fake.approve(asked["approval_id"])).start()
    if sync:
        decision = countersign.wait_for_approval_sync(asked["approval_id"], config=config)
    else:
        decision = asyncio.run(countersign.wait_for_approval(asked["approval_id"]))
    assert decision.allowed
    assert decision.decision_source == "human_approval"
    assert (decision.chain_id, decision.event_id) == (chain["id"], asked["event_id"])
    assert decision.policy_name == "limit"


def test_a_wait_outlasts_an_outage(fake: FakeService) -> None:
    configure(fake)
    fake.script("require_approval")
    found: list[Any] = []
    worker = threading.Thread(target=lambda: found.append(record(True)))
    worker.start()
    eventually(lambda: fake.approvals)
    fake.go_offline()
    fake.approve(fake.approvals[0]["id"])
    threading.Timer(0.3, fake.come_back).start()
    worker.join(30)
    assert found[0].allowed


def test_five_hundred_waits_on_one_event_loop_need_no_threads() -> None:
    room = Path(__file__).with_name("waiting_room.py")
    with subprocess.Popen(
        [sys.executable, str(room), "500"], stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None
        url = f"http://127.0.0.1:{int(service.stdout.readline())}"
        # It answers only once all five hundred wait at the same time.
        countersign.init(example_api_key(), backend_url=url, backend_timeout_seconds=60)
        threads = threading.active_count()
        most = 0

        async def wait(chain: countersign.Chain, n: int) -> PolicyDecision:
            nonlocal most
            decision = await chain.record_agent_action("a", "t", "pay", {"amount": n})
            most = max(most, threading.active_count())
            return decision

        async def main() -> list[PolicyDecision]:
            async with countersign.Chain("crowd") as chain:
                return await asyncio.gather(*(wait(chain, n) for n in range(500)))

        try:
            decisions = asyncio.run(main())
        finally:
            service.kill()
    assert {d.decision_source for d in decisions} == {"human_approval"}
    assert most <= threads


def test_the_exception_tree_is_the_specifications() -> None:
    policy = exceptions.PolicyError
    assert issubclass(policy, Exception)
    for name in ("ActionDeniedError", "PolicyViolationError", "KillSwitchActiveError"):
        assert getattr(exceptions, name).__base__ is policy
    assert exceptions.ApprovalTimedOutError.__base__ is exceptions.ActionDeniedError
    for name in ("BackendUnavailableError", "ChainTimeoutError", "ChainAutoPausedError"):
        error = getattr(exceptions, name)
        assert issubclass(error, Exception)
        assert not issubclass(error, policy)


@pytest.mark.parametrize("name", exceptions.__all__)
def test_every_exception_can_be_pickled_and_copied(name: str) -> None:
    kind = getattr(exceptions, name)
    decision = PolicyDecision("deny", decision_reason="no", cumulative_metrics={"a": 1})
    arguments: tuple[Any, ...] = ("text", decision)
    if name == "APIError":
        arguments = ("text", 422, "invalid_request", "req_1", ({"pointer": "/a"},))
    if name == "ConfigurationError":
        arguments = ("text",)
    error = kind(*arguments)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is kind
        assert str(twin) == "text"
        assert vars(twin) == vars(error)


def test_a_chain_runs_out_of_time(fake: FakeService) -> None:
    configure(fake, chain_timeout_seconds=0.001)
    with pytest.raises(countersign.ChainTimeoutError), countersign.Chain("slow") as chain:
        eventually(lambda: time.monotonic() - chain._session._began > 0.001)  # type: ignore[union-attr]
        chain.record_agent_action_sync(*ACTION)
    assert fake.events == []


# -- the chain as a context -----------------------------------------------------------


def test_a_sync_chain_in_a_running_loop_fails_clearly(fake: FakeService) -> None:
    configure(fake)

    async def main() -> None:
        with pytest.raises(RuntimeError, match="async with"), countersign.Chain("wrong"):
            pass
        async with countersign.Chain("right") as chain:
            with pytest.raises(RuntimeError, match="await record_agent_action"):
                chain.record_agent_action_sync(*ACTION)

    asyncio.run(main())


def test_a_chain_is_used_inside_its_context_alone(fake: FakeService) -> None:
    configure(fake)
    chain = countersign.Chain("once")
    assert chain.id is None
    with pytest.raises(RuntimeError, match="not open"):
        chain.record_agent_action_sync(*ACTION)
    with chain, pytest.raises(RuntimeError, match="entered once"):
        chain.__enter__()
    with pytest.raises(RuntimeError, match="completed"):
        chain.record_agent_action_sync(*ACTION)


def test_a_chain_sends_what_the_specification_names(fake: FakeService) -> None:
    configure(fake, environment="staging", high_risk_agents=["root"])
    with countersign.Chain("named", external_chain_id="mine", metadata={"a": 1}) as chain:
        chain.record_agent_action_sync(
            "child", "llm_call", "chat", {"q": 1}, parent_agent_name="boss", metadata={"model": "m"}
        )
    opening, event, completion = fake.calls
    assert opening.body == {
        "name": "named",
        "external_chain_id": "mine",
        "metadata": {"a": 1},
        "environment": "staging",
        "policy_config": {"high_risk_agents": ["root"]},
    }
    assert opening.headers["idempotency-key"]
    key = event.body.pop("idempotency_key")
    assert key
    assert event.body == {
        "agent_name": "child",
        "action_type": "llm_call",
        "action_name": "chat",
        "payload": {"q": 1},
        "parent_agent_name": "boss",
        "metadata": {"model": "m"},
        "found": {"categories": ["llm"]},
    }
    assert (completion.path.rpartition("/")[2], completion.body) == (
        "complete",
        {"outcome": "completed"},
    )


@pytest.mark.parametrize("missing", ["agent_name", "action_type", "action_name"])
def test_a_missing_name_is_the_callers_mistake(fake: FakeService, missing: str) -> None:
    configure(fake)
    names: dict[str, Any] = {
        "agent_name": "a",
        "action_type": "t",
        "action_name": "n",
        missing: " ",
    }
    with countersign.Chain("test") as chain, pytest.raises(ValueError, match=missing):
        chain.record_agent_action_sync(**names, payload={})


def test_an_error_that_cannot_be_shown_still_completes_the_chain(fake: FakeService) -> None:
    configure(fake)

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("never")

    with pytest.raises(Unprintable), countersign.Chain("test"):
        raise Unprintable
    assert fake.chains[0]["error"] == {"type": "Unprintable", "message": ""}


def test_the_payload_is_a_snapshot(fake: FakeService) -> None:
    configure(fake)
    payload = {"items": [1, {"password": "hunter2"}]}
    before = copy.deepcopy(payload)
    record(True, "a", "t", "n", payload)
    assert payload == before
    assert fake.events[0]["payload"] == {"items": [1, {"password": "[REDACTED]"}]}


def test_long_step_keys_stay_apart(fake: FakeService) -> None:
    configure(fake)
    with countersign.Chain("test") as chain:
        for end in ("1", "2"):
            key = "x" * 300 + end
            chain.record_agent_action_sync(*ACTION, idempotency_key=key)
            chain.record_agent_action_sync(*ACTION, idempotency_key=key)
    assert len(fake.events) == 2
    assert all(len(e["idempotency_key"]) <= 200 for e in fake.events)


def test_a_receipt_can_be_written_down(fake: FakeService) -> None:
    configure(fake)
    with countersign.Chain("test") as chain:
        pass
    assert "CSN-2026-00001" in json.dumps(chain.receipt)


@pytest.mark.parametrize("given", [7, "half \ud800"])
def test_an_external_id_that_is_no_text_is_refused(fake: FakeService, given: Any) -> None:
    configure(fake)
    with pytest.raises(ValueError, match="external_chain_id"):
        countersign.Chain("test", external_chain_id=given)


def test_looser_limits_are_told_once(fake: FakeService, caplog: pytest.LogCaptureFixture) -> None:
    fake.limits.update(
        financial_approval_threshold_usd=100, external_domains_allowlist=["example.com"]
    )
    configure(
        fake,
        financial_approval_threshold_usd=5000,
        cumulative_financial_threshold_usd=50,
        external_domains_allowlist=["a.example.com", "example.org"],
    )
    for _ in range(2):
        with countersign.Chain("looser"):
            pass
    with countersign.Chain("other", approval_timeout_hours=48):
        pass
    said = [r.getMessage() for r in caplog.records if "tighter" in r.getMessage()]
    assert len(said) == 2
    assert "financial_approval_threshold_usd is 5000 here and 100 in force" in said[0]
    assert "external_domains_allowlist has 1 domains here" in said[0]
    assert "cumulative" not in said[0]
    assert said[1].endswith("approval_timeout_hours is 48 here and 24 in force")


def test_a_subclass_keeps_its_type(fake: FakeService) -> None:
    class Mine(countersign.Chain):
        pass

    configure(fake)
    with Mine("test") as chain:
        assert type(chain) is Mine


@both
def test_giving_up_cancels_by_key_or_by_id(fake: FakeService, sync: bool) -> None:
    config = configure(fake)
    for ending, cancelled in (("approve", False), ("deny", False), ("time_out", False), ("", True)):
        fake.script("require_approval")
        with countersign.Chain("given-up", config=config) as chain:
            recorded = fake._records.record(
                chain.id or "",
                {"agent_name": "a", "action_type": "t", "action_name": "n", "payload": {}},
                {"policy_decision": "require_approval"},
            )
            approval_id = recorded["approval_id"]
            if ending:
                getattr(fake, ending)(approval_id)
            if sync:
                assert chain.cancel_approval_sync(approval_id) is cancelled
                assert countersign.cancel_approval_sync(approval_id, "why") is cancelled
            else:
                steps = countersign.cancel_approval(approval_id, config=config)
                assert asyncio.run(steps) is cancelled
    assert fake.approvals[-1]["comment"] == "the client gave up waiting"


def test_giving_up_says_what_it_needs(fake: FakeService) -> None:
    config = configure(fake)
    with countersign.Chain("given-up", config=config) as chain:
        with pytest.raises(countersign.ConfigurationError, match="takes either"):
            chain.cancel_approval_sync()
        with pytest.raises(countersign.ConfigurationError, match="takes either"):
            chain.cancel_approval_sync("x", idempotency_key="y")
        with pytest.raises(countersign.ConfigurationError, match="pass the approval's id"):
            chain.cancel_approval_sync(idempotency_key="nobody asked")
        with pytest.raises(countersign.APIError) as unknown:
            chain.cancel_approval_sync("unknown")
        assert unknown.value.status == 404
        fake.go_offline()
        with pytest.raises(countersign.BackendUnavailableError, match="cancel it again"):
            chain.cancel_approval_sync("unknown")
        fake.come_back()
