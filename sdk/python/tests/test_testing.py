"""``countersign.testing``: what users' own tests rest on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

import countersign
from countersign.testing import FakeService
from faults import FaultProxy
from server import Server


def run_once(service: FakeService) -> None:
    with countersign.Chain("repeatable") as chain:
        service.script("allow_with_flag", decision_reason="look twice")
        decision = chain.record_agent_action_sync(
            "a", "tool_call", "look", {"n": 1}, idempotency_key="k"
        )
    assert decision.decision_reason == "look twice"


def test_two_runs_give_the_same_records() -> None:
    found = []
    for _ in range(2):
        with FakeService() as service:
            countersign.init(**service.settings())
            run_once(service)
            found.append((service.chains, service.events, service.receipts))
    assert found[0] == found[1]


def test_the_same_over_a_socket() -> None:
    with FakeService() as service:
        countersign.init(**service.serve())
        run_once(service)
        assert [c.method for c in service.calls] == ["POST"] * 3
        assert "authorization" not in service.calls[0].headers


def test_receipts_are_linked(fake: FakeService) -> None:
    countersign.init(**fake.settings())
    run_once(fake)
    run_once(fake)
    first, second = fake.receipts
    assert first["previous_receipt_hash"] is None
    assert second["previous_receipt_hash"].startswith("sha256:")
    assert (first["receipt_number"], second["receipt_number"]) == (
        "CSN-2026-00001",
        "CSN-2026-00002",
    )


def test_a_script_is_kept_for_an_action_that_has_no_decision_yet(fake: FakeService) -> None:
    """Asking again about the same action, as the client itself does after an approval, uses up no
    script."""
    countersign.init(**fake.settings(), on_wait=lambda wait: fake.approve(wait.approval_id))
    for scripted in ("require_approval", "deny"):
        fake.script(scripted)
    with countersign.Chain("scripted") as chain:
        chain.record_agent_action_sync("a", "tool_call", "pay", {}, idempotency_key="k")
        chain.record_agent_action_sync("a", "tool_call", "pay", {}, idempotency_key="k")
        with pytest.raises(countersign.ActionDeniedError):
            chain.record_agent_action_sync("a", "tool_call", "pay", {})


def use_keys_twice() -> None:
    """Use an idempotency key again for something else: that is refused."""

    def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        with pytest.raises(countersign.APIError) as conflict:
            call(*args, **kwargs)
        assert (conflict.value.status, conflict.value.code) == (409, "idempotency_conflict")

    receipts, key = [], uuid4().hex
    for _ in range(2):
        with countersign.Chain("twice") as chain:
            record = functools.partial(chain.record_agent_action_sync, "a", "tool_call", "look")
            first = record({"n": 1}, idempotency_key=key)
            assert record({"n": 1}, idempotency_key=key).event_id == first.event_id
            refused(record, {"n": 2}, idempotency_key=key)
        assert chain.receipt is not None
        receipts.append(chain.receipt["receipt_id"])
    issue = functools.partial(countersign.create_public_token_sync, idempotency_key=key)
    issue("receipt", receipts[0])
    refused(issue, "receipt", receipts[1])


def test_an_idempotency_key_is_used_for_one_thing_in_the_real_service(server: Server) -> None:
    """What the fake service refuses, the real one refuses too."""
    server.config(enable_local_fast_path=False)
    use_keys_twice()


def test_an_idempotency_key_is_used_for_one_thing(fake: FakeService) -> None:
    """A program that confuses its keys fails in a test already."""
    countersign.init(**fake.settings())
    use_keys_twice()


def report_outcomes(script: Callable[[str], None]) -> None:
    """Report the outcomes of an allowed action and of one whose approval was cancelled."""

    def refused(decision: Any, outcome: Any, detail: str | None = None) -> None:
        with pytest.raises(countersign.APIError) as conflict:
            report(decision, outcome, detail)
        assert (conflict.value.status, conflict.value.code) == (409, "outcome_conflict")

    with countersign.Chain("outcomes", high_risk_agents=["intern"]) as chain:
        report = chain.record_outcome_sync
        decision = chain.record_agent_action_sync("clerk", "tool_call", "stamp", {})
        assert report(decision, "unknown", "interrupted")
        assert report(decision, "failed", "no ink")
        assert report(decision, "failed", "no ink")
        refused(decision, "failed")
        refused(decision, "succeeded")
        refused(decision, "unknown")
        script("require_approval")
        with pytest.raises(countersign.ActionDeniedError) as denied:
            chain.record_agent_action_sync("intern", "tool_call", "stamp", {})
        refused(denied.value.decision, "failed")
        first, second = chain.events_sync()
    assert first.outcome is not None
    assert (first.outcome.outcome, first.outcome.detail) == ("failed", "no ink")
    assert first.outcome.recorded_at is not None
    assert second.outcome is None


def give_up(wait: countersign.ApprovalProgress) -> None:
    if wait.waiting:
        countersign.cancel_approval_sync(wait.approval_id)


def test_outcomes_are_recorded_as_in_the_real_service(server: Server) -> None:
    """What the fake service records and refuses, the real one does too."""
    server.config(on_wait=give_up)
    report_outcomes(lambda _: None)


def test_outcomes_are_recorded(fake: FakeService) -> None:
    """An outcome is final, and only what was allowed has one."""
    countersign.init(**fake.settings(), on_wait=give_up)
    report_outcomes(fake.script)


def seal(script: Callable[[str], None]) -> dict[str, Any]:
    """Fail a chain with two equal actions and an approval that was cancelled, and return what its
    receipt says of them, without ids and times."""
    chain = countersign.Chain("sealed", high_risk_agents=["intern"])
    with pytest.raises(KeyError), chain:
        for _ in range(2):
            chain.record_agent_action_sync("clerk", "tool_call", "stamp", {})
        script("require_approval")
        with pytest.raises(countersign.ActionDeniedError):
            chain.record_agent_action_sync("intern", "tool_call", "stamp", {})
        raise KeyError("ink")
    assert chain.receipt is not None
    found = {name: chain.receipt[name] for name in ("approvals", "events_summary")}
    for element in (*found["approvals"], *found["events_summary"]):
        for name in element.keys() & {"approval_id", "approval_hash"}:
            element[name] = type(element[name])
        for name in [name for name in element if name.endswith("_at")]:
            element[name] = type(element[name])
    return found


def test_receipts_sum_up_what_happened_as_in_the_real_service(
    fake: FakeService, server: Server
) -> None:
    """Both services list the same actions and approvals in a receipt."""
    server.config(on_wait=give_up)
    real = seal(lambda _: None)
    countersign.init(**fake.settings(), on_wait=give_up)
    assert seal(fake.script) == real
    assert [element["count"] for element in real["events_summary"]] == [2, 1, 1]


def verify_everything(
    script: Callable[[str], None], decide: Callable[[str, str], Any], reader: Any
) -> list[Any]:
    """Verify approvals and receipts at every stage. Returns the results without ids and times."""

    def look(wait: countersign.ApprovalProgress) -> None:
        if wait.waiting:
            verify("approval", wait.approval_id)
            decide(wait.approval_id, wait.action.split("'")[1])

    def verify(kind: str, artifact_id: str) -> None:
        if kind == "approval":
            result = countersign.verify_approval_v2_sync(artifact_id, config=reader)
            decided.append(artifact_id)
        else:
            result = countersign.verify_receipt_v2_sync(artifact_id, config=reader)
        found.append(
            (
                replace(result, verified_at="", artifact={}, context={}, admin_context=None),
                sorted(result.artifact),
                result.context.get("action"),
                result.context.get("approval_decision", {}).get("outcome"),
                result.context.get("receipt_integrity_semantics"),
            )
        )

    found: list[Any] = []
    decided: list[str] = []
    own = replace(countersign.Chain("x")._config, on_wait=look)
    receipts = []
    for _ in range(2):
        chain = countersign.Chain("verified", high_risk_agents=["intern"], config=own)
        with chain:
            for action in ("approve", "deny", "cancel"):
                script("require_approval")
                try:
                    chain.record_agent_action_sync("intern", "tool_call", action, {})
                except countersign.ActionDeniedError:
                    assert action != "approve"
                verify("approval", decided[-1])
        verify("approval", decided[-1])
        assert chain.receipt is not None
        receipts.append(chain.receipt["receipt_id"])
        verify("receipt", receipts[-1])
    verify("receipt", receipts[0])
    return found


def test_verification_is_that_of_the_real_service(fake: FakeService, server: Server) -> None:
    """Both services report the same checks for undecided, approved, denied and cancelled approvals
    and for receipts."""

    def decide(approval_id: str, how: str) -> None:
        if how == "cancel":
            countersign.cancel_approval_sync(approval_id)
        else:
            server.post(f"/v1/approvals/{approval_id}/{how}")

    def decide_fake(approval_id: str, how: str) -> None:
        {"approve": fake.approve, "deny": fake.deny}.get(how, countersign.cancel_approval_sync)(
            approval_id
        )

    reader = server.config()
    server.config(api_key=server.post("/v1/api-keys", {"name": "verified", "role": "agent"})["key"])
    real = verify_everything(lambda _: None, decide, reader)
    assert verify_everything(fake.script, decide_fake, countersign.init(**fake.settings())) == [
        (
            replace(
                result, capabilities={**result.capabilities, "can_view_identity_context": False}
            ),
            *rest,
        )
        for result, *rest in real
    ]


def cancel_and_report(go_offline: Callable[[bool], None], script: Callable[..., None]) -> list[Any]:
    """Cancel an approval with and without a comment, and report an action that the client decided
    and the service would not have allowed. Returns what the client is told."""

    def give_up(wait: countersign.ApprovalProgress) -> None:
        if wait.waiting:
            countersign.cancel_approval_sync(wait.approval_id, comments.pop())

    comments = ["too late", None]
    told: list[Any] = []
    own = replace(countersign.Chain("x")._config, on_wait=give_up, fail_modes={"default": "allow"})
    chain = countersign.Chain("told", high_risk_agents=["intern"], config=own)
    with pytest.raises(countersign.PolicyViolationError), chain:
        for _ in range(2):
            script("require_approval")
            with pytest.raises(countersign.ActionDeniedError) as denied:
                chain.record_agent_action_sync("intern", "tool_call", "stamp", {})
            told.append(str(denied.value))
        go_offline(True)
        chain.record_agent_action_sync("intern", "tool_call", "stamp", {})
        script("require_approval")
        go_offline(False)
    told += [(event.policy_decision, event.status) for event in chain.events_sync()]
    return told


def test_cancelled_and_reported_actions_are_those_of_the_real_service(
    fake: FakeService, server: Server, proxy: FaultProxy
) -> None:
    """Both services tell the client the same of a cancelled approval, and flag an action that the
    client should not have allowed."""

    def refuse(yes: bool) -> None:
        proxy.mode = "reset" if yes else "pass"

    server.config(backend_url=proxy.url, enable_local_fast_path=False)
    real = cancel_and_report(refuse, lambda _: None)
    countersign.init(**fake.settings())
    switch = {True: fake.go_offline, False: fake.come_back}
    assert cancel_and_report(lambda yes: switch[yes](), fake.script) == real


def list_pages() -> None:
    """List tokens in pages, and ask for pages and chains that no list has."""
    with countersign.Chain("listed") as chain:
        pass
    assert chain.receipt is not None
    issued = [
        countersign.create_public_token_sync("receipt", chain.receipt["receipt_id"]).token_id
        for _ in range(3)
    ]
    first = countersign.list_public_tokens_sync(limit=2)
    second = countersign.list_public_tokens_sync(limit=1, cursor=first.next_cursor)
    assert [token.token_id for token in (*first.data, *second.data)] == issued[::-1]
    for refused in (
        lambda: countersign.list_public_tokens_sync(limit=0),
        lambda: countersign.list_public_tokens_sync(limit=201),
        lambda: countersign.list_public_tokens_sync(cursor="zzz"),
        lambda: list(countersign.list_chains_sync(status="done")),
    ):
        with pytest.raises(countersign.APIError) as error:
            refused()
        assert (error.value.status, error.value.code) == (422, "invalid_request")


def test_lists_have_pages_as_in_the_real_service(server: Server) -> None:
    """What the fake service lists and refuses, the real one does too."""
    server.config()
    list_pages()


def test_lists_have_pages(fake: FakeService) -> None:
    countersign.init(**fake.settings())
    list_pages()


def search_both_lists() -> None:
    """Search for one of two chains, in ways that find it and in ways that do not."""
    run = uuid4().hex
    with countersign.Chain("other", metadata={"run": run}) as other:
        other.record_agent_action_sync("clerk", "tool_call", "get_order", {"n": 1})
    described: dict[str, Any] = {"run": run, "n": 4.5, "urgent": True, "none": None, "list": [1]}
    with countersign.Chain("Month-end refunds", metadata=described) as chain:
        chain.record_agent_action_sync("clerk", "tool_call", "get_order", {"n": 1})
        chain.record_agent_action_sync("robot", "shell", "run_shell", {"command": "ls"})

    def found(metadata: dict[str, Any] | None = None, **search: Any) -> list[str]:
        search["metadata"] = {"run": run, **(metadata or {})}
        chains = [c.id for c in countersign.list_chains_sync(**search)]
        if not {"since", "until"} & search.keys():  # a receipt is made later than its chain
            assert [r.chain_id for r in countersign.receipts_sync(**search)] == chains
        return chains

    assert found() == [chain.id, other.id]
    started = countersign.get_chain_sync(str(chain.id)).started_at
    assert started is not None
    day = date.fromisoformat(started[:10])
    search: dict[str, Any]
    for search in (
        {"name": "REFUNDS month"},
        {"agent_name": "robot"},
        {"action_type": "shell"},
        {"action_name": "run_shell"},
        {"decision": "allow_with_flag"},
        {"agent_name": "robot", "action_name": "get_order"},
        {"agent_name": "robot", "decision": "allow_with_flag"},
        {"metadata": {"n": 4.50, "urgent": True, "none": None}},
        {"since": started},
    ):
        assert found(**search) == [chain.id], search
    assert found(since=day - timedelta(days=1), until=day) == [chain.id, other.id]
    for search in (
        {"name": "refund"},
        {"agent_name": "Robot"},
        {"agent_name": "robot", "decision": "allow"},
        {"metadata": {"list": "[1]"}},
        {"metadata": {"n": "4"}},
        {"since": day + timedelta(days=1)},
        {"until": day - timedelta(days=1)},
    ):
        assert found(**search) == [], search
    assert chain.id not in found(until=started)
    for search in (
        {"name": "-"},
        {"decision": "perhaps"},
        {"since": "yesterday"},
        {"since": day, "until": day - timedelta(days=1)},
    ):
        with pytest.raises(countersign.APIError) as refused:
            found(**search)
        assert (refused.value.status, refused.value.code) == (422, "invalid_request"), search


def test_lists_are_searched_as_in_the_real_service(server: Server) -> None:
    """What the fake service finds, the real one finds too."""
    server.config()
    search_both_lists()


def test_lists_are_searched(fake: FakeService) -> None:
    countersign.init(**fake.settings())
    for decision in ("allow", "allow", "allow_with_flag"):
        fake.script(decision)
    search_both_lists()


def issue_one_token_twice() -> None:
    """Issue a token again under its idempotency key: the same one, without its plaintext."""
    with countersign.Chain("shared") as chain:
        pass
    assert chain.receipt is not None
    receipt_id, key = chain.receipt["receipt_id"], uuid4().hex
    issued = countersign.create_public_token_sync("receipt", receipt_id, idempotency_key=key)
    again = countersign.create_public_token_sync("receipt", receipt_id, idempotency_key=key)
    assert issued.token is not None
    assert again == replace(issued, token=None, public_path=None)
    listed = countersign.list_public_tokens_sync().data
    assert [t.token_id for t in listed if t.artifact_id == receipt_id] == [issued.token_id]


def test_a_token_is_issued_once_in_the_real_service(server: Server) -> None:
    """What the fake service answers, the real one answers too."""
    server.config()
    issue_one_token_twice()


def test_a_token_is_issued_once(fake: FakeService) -> None:
    """A client that tries again gets no second token."""
    countersign.init(**fake.settings())
    issue_one_token_twice()


def list_approvals(
    call: Callable[..., httpx.Response],
    script: Callable[[str], None],
    approve: Callable[[str], Any],
) -> None:
    """List three approvals of two chains, with queries that find some and queries that do not."""
    run = uuid4().hex
    limits = {"high_risk_agents": ["intern", "trainee"]}
    chains, asked = [], []
    for name, agents in (
        ("other", ["intern"]),
        ("Month-end refunds", ["clerk", "intern", "trainee"]),
    ):
        chain = {"name": name, "metadata": {"run": run}, "policy_config": limits}
        chains.append(call("POST", "/v1/chains", json=chain).json()["id"])
        for agent in agents:
            script("allow" if agent == "clerk" else "require_approval")
            action = {
                "agent_name": agent,
                "action_type": "tool_call",
                "action_name": f"noop_{agent}",
                "payload": {"n": 1},
                "idempotency_key": uuid4().hex,
            }
            decision = call("POST", f"/v1/chains/{chains[-1]}/events", json=action).json()
            if decision["approval_id"]:
                asked.append(decision["approval_id"])
    first, second, third = asked
    approve(second)

    def found(**query: str) -> list[str]:
        listed = []
        query = {"metadata[run]": run, "limit": "2"} | query
        while True:
            answer = call("GET", "/v1/approvals", params=query).raise_for_status().json()
            listed += answer["data"]
            if answer["next_cursor"] is None:
                break
            query["cursor"] = answer["next_cursor"]
        for approval in listed:
            same = call("GET", f"/v1/approvals/{approval['id']}").json()
            assert {n: approval[n] for n in KEPT} == {n: same[n] for n in KEPT}
        return [approval["id"] for approval in listed]

    assert found() == [third, second, first]
    assert found(chain_id=chains[1]) == [third, second]
    assert found(chain_id=str(uuid4())) == []
    assert found(status="pending") == [third, first]
    assert found(status="approved", chain_id=chains[1]) == [second]
    assert found(status="escalated") == []
    assert found(name="refunds MONTH") == [third, second]
    assert found(agent_name="intern", action_type="tool_call") == [second, first]
    assert found(agent_name="intern", action_name="noop_trainee") == []
    assert found(agent_name="clerk") == []
    assert found(since="2020-01-01") == [third, second, first]
    assert found(until="2020-01-01") == []
    for query in ({"status": "perhaps"}, {"decision": "require_approval"}, {"since": "yesterday"}):
        refused = call("GET", "/v1/approvals", params=query)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request"), query


KEPT = ("chain_id", "event_id", "agent_name", "action_name", "status", "comment", "decision")


def test_approvals_are_listed_as_in_the_real_service(server: Server) -> None:
    """What the fake service lists, the real one lists too."""
    key = server.post("/v1/api-keys", {"name": "listing", "role": "agent"})["key"]
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False) as client:
        list_approvals(
            client.request,
            lambda _: None,
            lambda approval: server.post(f"/v1/approvals/{approval}/approve"),
        )


def test_approvals_are_listed(fake: FakeService) -> None:
    with httpx.Client(base_url=fake.serve()["backend_url"], trust_env=False) as client:
        list_approvals(client.request, fake.script, fake.approve)


def test_the_fixture_is_there(countersign_service: FakeService) -> None:
    run_once(countersign_service)
    assert len(countersign_service.events) == 1


def test_pytest_finds_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import countersign

        def test_denied(countersign_service):
            countersign_service.script("deny")
            with countersign.Chain("x") as chain:
                try:
                    chain.record_agent_action_sync("a", "t", "n", {})
                except countersign.ActionDeniedError:
                    return
            raise AssertionError
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)
