"""The fake service answers as the real one does: the same calls go to both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from countersign.testing import FakeService
from server import Server

Answer = tuple[int, Any]
ACTION = {"agent_name": "clerk", "action_type": "tool_call", "action_name": "look", "payload": {}}
PAYMENT = {**ACTION, "payload": {"amount_usd": 5, "url": "https://www.example.com/"}}
REPORTED = {**PAYMENT, "decision_source": "offline_stub", "policy_decision": "allow"}
AT = "2026-01-01T00:00:00.000Z"
GAP: dict[str, Any] = {
    **REPORTED,
    "action_type": "gap",
    "action_name": "dropped",
    "payload": {"dropped": 2, "from": AT, "to": AT},
    "idempotency_key": "gap",
}
TOKENS = "/v1/public-verification-tokens"
EXPLAINED = ("decision_reason", "policy_name", "remediation", "docs_url")
UNKNOWN_ID = "00000000-0000-4000-8000-00000000ffff"

# What the fake service leaves out or words differently: docs/python.md names it.
OTHER = {
    "approval",
    "detail",
    "entries",
    "found_sha256",
    "last_polled_at",
    "summary",
    "waiting",
}
# What differs between any two services.
OWN = {
    "act_number",
    "binding_key",
    "fast_path",
    "fast_path_lease",
    "key_id",
    "policy_version",
    "previous_receipt_hash",
    "receipt_number",
    "request_id",
    "reviewer",
    "token",
    "public_path",
}
_MASKED = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\d{4}-\d\d-\d\dT[\d:.]+Z|sha256:[0-9a-f]{64}"
)


def comparable(answer: Any) -> Any:
    """An answer without what differs between any two services."""
    if isinstance(answer, dict):
        return {
            name: comparable(value)
            for name, value in answer.items()
            if name not in OWN | OTHER and (name, value) != ("matched_rules", [])
        }
    if isinstance(answer, list):
        return [comparable(item) for item in answer]
    return _MASKED.sub("<id, time or hash>", answer) if isinstance(answer, str) else answer


class Service:
    """One of the two, called without the client, which would refuse bad requests itself."""

    def __init__(self, client: httpx.Client, key: str) -> None:
        self._client = client
        self._headers = {"authorization": f"Bearer {key}"}

    def get(self, path: str) -> Answer:
        return self._answer("GET", path)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self._answer("POST", path, json=body, headers=self._headers | headers)

    def _answer(self, method: str, path: str, **options: Any) -> Answer:
        answer = self._client.request(method, path, **({"headers": self._headers} | options))
        return answer.status_code, answer.json()

    def open(self, **more: Any) -> str:
        return str(self.post("/v1/chains", {"name": "run", **more})[1]["id"])


Decide = Callable[[str, str, str], object]


@dataclass
class Controls:
    """What people do at a service."""

    decide: Decide
    """By an approval's id, the verb and a comment."""
    stop: Callable[[str], object]
    resume: Callable[[], object]
    expect: Callable[[str], object] = id
    """Called with a name for the action that is recorded next."""


@pytest.fixture
def real(own_server: Server) -> Iterator[tuple[Service, Controls]]:
    with httpx.Client(base_url=own_server.url, trust_env=False, verify=False) as client:
        service = Service(client, own_server.key)
        made = own_server.post("/v1/api-keys", {"name": "reviewer", "role": "member"})
        reviewer = Service(client, made["key"])
        yield (
            service,
            Controls(
                lambda approval, verb, comment: reviewer.post(
                    f"/v1/approvals/{approval}/{verb}", {"comment": comment}
                ),
                lambda reason: service.post("/v1/kill-switch/activate", {"reason": reason}),
                lambda: service.post("/v1/kill-switch/deactivate"),
            ),
        )


def fake_one(fake: FakeService) -> tuple[Service, Controls]:
    settings = fake.settings()
    client = httpx.Client(
        base_url="http://fake.test", transport=settings["transport"], trust_env=False, verify=False
    )
    return Service(client, settings["api_key"]), Controls(
        lambda approval, verb, comment: getattr(fake, verb)(approval, comment),
        fake.activate_kill_switch,
        fake.deactivate_kill_switch,
    )


BAD_OPENINGS: list[Any] = [
    {},
    [],
    {"name": ""},
    {"name": 5},
    {"name": "a\nb"},
    {"name": "a\x00"},
    {"name": "x" * 201},
    {"name": "a", "other": 1},
    {"name": "a", "a/b c": 1},
    {"name": "a", "external_chain_id": ""},
    {"name": "a", "external_chain_id": "x" * 201},
    {"name": "a", "environment": ""},
    {"name": "a", "metadata": [1]},
    {"name": "a", "metadata": {"text": "x" * 20000}},
    {"name": "a", "fallback_approvers": "x"},
    {"name": "a", "fallback_approvers": ["x"]},
    {"name": "a", "policy_config": {"other": 1}},
    {"name": "a", "policy_config": {"financial_approval_threshold_usd": -1}},
    {"name": "a", "policy_config": {"approval_timeout_hours": 0}},
    {"name": "a", "policy_config": {"external_domains_allowlist": ["not a domain"]}},
]
BAD_ACTIONS: list[Any] = [
    [],
    {**ACTION, "agent_name": None},
    {**ACTION, "agent_name": ""},
    {**ACTION, "agent_name": "a\nb"},
    {**ACTION, "payload": None},
    {**ACTION, "payload": []},
    {**ACTION, "other": 1},
    {**ACTION, "metadata": []},
    {**ACTION, "metadata": {"text": "x" * 20000}},
    {**ACTION, "metadata": {"input_tokens": "7"}},
    {**ACTION, "metadata": {"output_tokens": 0.5}},
    {**ACTION, "metadata": {"usage": {"input_tokens": -1}}},
    {**ACTION, "idempotency_key": ""},
    {**ACTION, "idempotency_key": "x" * 201},
    {**ACTION, "executed_at": "yesterday"},
    {**ACTION, "action_type": "gap"},
    {**ACTION, "action_type": "late_outcome"},
    {**ACTION, "redactions": []},
    {**ACTION, "decision_source": "local_fast_path"},
    {**ACTION, "parent_agent_name": ""},
]
BAD_BATCHES: list[Any] = [
    {},
    {"events": []},
    {"events": [ACTION]},
    {"events": [REPORTED]},
    {"events": [GAP], "other": 1},
    {"events": [GAP, {**GAP, "other": 1}]},
    {"events": [{**GAP, "policy_decision": "deny"}]},
    {"events": [{**GAP, "decision_source": "other"}]},
]
BAD_OUTCOMES: list[Any] = [
    {},
    {"outcome": "other"},
    {"outcome": "failed", "detail": 5},
    {"outcome": "failed", "detail": "x" * 2001},
    {"outcome": "failed", "other": 1},
]
BAD_COMPLETIONS: list[Any] = [
    [],
    {"outcome": "other"},
    {"outcome": "failed", "other": 1},
    {"outcome": "failed", "error": 5},
    {"outcome": "failed", "error": {"message": "no"}},
    {"outcome": "failed", "error": {"type": "E", "message": "x" * 2001}},
    {"error": {"type": "E", "message": "no"}},
]
BAD_TOKENS: list[Any] = [
    {},
    {"artifact_type": "other", "artifact_id": UNKNOWN_ID},
    {"artifact_type": "receipt", "artifact_id": UNKNOWN_ID},
    {"artifact_type": "receipt", "artifact_id": UNKNOWN_ID, "other": 1},
    {"artifact_type": "receipt", "artifact_id": UNKNOWN_ID, "expires_at": "tomorrow"},
]


def refusals(service: Service) -> list[Any]:
    """Send requests that the service refuses. Returns each with its refusal."""
    chain = f"/v1/chains/{service.open()}"
    event = f"{chain}/events/{service.post(f'{chain}/events', ACTION)[1]['event_id']}"
    asked: dict[str, list[Any]] = {
        "/v1/chains": [None, *BAD_OPENINGS],
        f"{chain}/events": [None, *BAD_ACTIONS],
        f"{chain}/events/batch": [None, *BAD_BATCHES],
        f"{event}/outcome": [None, *BAD_OUTCOMES],
        f"{chain}/complete": BAD_COMPLETIONS,
        TOKENS: [None, *BAD_TOKENS],
        f"/v1/approvals/{UNKNOWN_ID}/cancel": [None, {"comment": 5}, {"other": 1}],
        f"{TOKENS}/{UNKNOWN_ID}/revoke": [None, {"reason": 5}, {"other": 1}],
    }
    answers = [
        (body, service.post(path, body)) for path, bodies in asked.items() for body in bodies
    ]
    answers += [
        (path, service.get(path))
        for path in (
            f"/v1/chains/{UNKNOWN_ID}",
            f"/v1/chains/{UNKNOWN_ID}/receipt",
            f"{chain}/receipt",
            f"/v1/receipts/{UNKNOWN_ID}",
            "/v1/receipts/CSN-2026-99999",
            f"/v1/approvals/{UNKNOWN_ID}",
            "/v1/chains?status=other",
            "/v1/chains?limit=0",
            "/v1/chains?cursor=other",
            "/v1/chains?since=2026-11-02&until=2026-11-01",
            "/v1/approvals?decision=deny",
            *(
                f"{path}?{query}"
                for path in (
                    "/v1/chains",
                    f"{chain}/events",
                    f"/v1/chains/{UNKNOWN_ID}/events",
                    "/v1/receipts",
                    "/v1/approvals",
                    TOKENS,
                )
                for query in (
                    "other=1",
                    "Limit=1",
                    "other=",
                    "limit=1&limit=2",
                    "limit=",
                    "cursor=",
                )
            ),
            *(f"{path}?name=run" for path in (f"{chain}/events", TOKENS)),
            "/v1/receipts?status=completed",
            "/v1/approvals?environment=production",
            "/v1/chains?chain_id=other",
            "/v1/chains?metadata=x",
            "/v1/chains?environment=",
            f"/v1/approvals/{UNKNOWN_ID}?other=1",
            f"/v1/chains/{UNKNOWN_ID}?other=1",
        )
    ]
    # Only the first invalid member is compared.
    return [
        (asked, status, refusal["code"], [e["pointer"] for e in refusal.get("errors", [])][:1])
        for asked, (status, refusal) in answers
    ]


def test_requests_are_refused_as_in_the_real_service(
    real: tuple[Service, Controls], fake: FakeService
) -> None:
    """A request that the real service refuses fails in a test already, with the same status, code
    and pointer."""
    wanted, found = refusals(real[0]), refusals(fake_one(fake)[0])
    for (request, *refused), (_, *also) in zip(wanted, found, strict=True):
        assert refused == also, request


def test_what_was_refused_has_no_effect(fake: FakeService) -> None:
    """A refused request records nothing and uses up no script."""
    service, _ = fake_one(fake)
    refusals(service)
    fake.script("deny")
    chain = f"/v1/chains/{fake.chains[0]['id']}"
    for body in BAD_ACTIONS:
        service.post(f"{chain}/events", body)
    assert [c["status"] for c in fake.chains] == ["active"]
    assert len(fake.events) == 1
    assert service.post(f"{chain}/events", ACTION)[1]["policy_decision"] == "deny"


def a_day(service: Service, controls: Controls) -> dict[str, Answer]:
    """Use a service in every way that its answers depend on."""
    answers: dict[str, Answer] = {}
    limits = {"high_risk_agents": ["intern"], "approval_timeout_hours": 6}
    opening = {"name": "run", "policy_config": limits, "fallback_approvers": ["a@example.com"]}
    answers["opened"] = service.post("/v1/chains", opening)
    chain = f"/v1/chains/{answers['opened'][1]['id']}"

    def post(what: str, path: str, body: Any = None) -> Any:
        answers[what] = service.post(path, body)
        return answers[what][1]

    def record(what: str, action: dict[str, Any], **more: Any) -> Any:
        controls.expect(what)
        return post(what, f"{chain}/events", {**action, "idempotency_key": what, **more})

    def batch(what: str, *events: dict[str, Any]) -> Any:
        keyed = [{"idempotency_key": f"{what} {i}", **event} for i, event in enumerate(events)]
        return post(what, f"{chain}/events/batch", {"events": keyed})

    record("payment", PAYMENT)
    record("repeated", PAYMENT, idempotency_key="payment")
    record("other content", ACTION, idempotency_key="payment")
    record("found", ACTION, found={"categories": ["financial"], "amount_usd": 7})
    record("model call", {**ACTION, "action_type": "llm_call"}, metadata={"model": "x"})
    for verb in ("approve", "deny", "cancel"):
        approval = record(f"to {verb}", {**PAYMENT, "agent_name": "intern"})["approval_id"]
        answers[f"asked to {verb}"] = service.get(f"/v1/approvals/{approval}")
        if verb == "cancel":
            post("cancelled", f"/v1/approvals/{approval}/cancel", {"comment": "late"})
            post("cancelled again", f"/v1/approvals/{approval}/cancel")
        else:
            controls.decide(approval, verb, "as agreed")
        answers[f"after {verb}"] = service.get(f"/v1/approvals/{approval}?wait=1")
        record(
            f"again after {verb}", {**PAYMENT, "agent_name": "intern"}, idempotency_key=f"to {verb}"
        )
    batch("batch", GAP, REPORTED, {**REPORTED, "payload": {"amount_usd": 9}})
    batch("batch again", GAP, {**GAP, "payload": {**GAP["payload"], "dropped": 3}})
    waiting = record("to stop", {**ACTION, "agent_name": "intern"})["approval_id"]
    controls.stop("an incident")
    record("stopped", ACTION)
    record("stopped repeat", PAYMENT, idempotency_key="payment")
    record("stopped request", {**ACTION, "agent_name": "intern"}, idempotency_key="to stop")
    batch("stopped batch", REPORTED)
    answers["stopped approval"] = service.get(f"/v1/approvals/{waiting}")
    answers["opened while stopped"] = service.post("/v1/chains", {"name": "later"})
    controls.resume()
    answers["open"] = service.get(chain)
    post("completed", f"{chain}/complete", {"outcome": "completed"})
    post("completed again", f"{chain}/complete")
    post("completed otherwise", f"{chain}/complete", {"outcome": "failed"})
    record("sealed", ACTION)
    record("sealed repeat", PAYMENT, idempotency_key="payment")
    record("sealed conflict", ACTION, idempotency_key="payment")
    batch("sealed batch", GAP, REPORTED)
    batch("refused batch", REPORTED, {**REPORTED, "idempotency_key": "payment"})
    answers["sealed chain"] = service.get(chain)
    answers["events"] = service.get(f"{chain}/events")
    answers["approvals"] = service.get("/v1/approvals")
    receipt = answers["completed"][1]["receipt"]
    for name in ("receipt_id", "receipt_number"):
        answers[f"receipt by {name}"] = service.get(f"/v1/receipts/{receipt[name]}")
    answers["receipt check"] = service.get(f"/v1/receipts/{receipt['receipt_id']}/verify")
    issue = {"artifact_type": "receipt", "artifact_id": receipt["receipt_id"]}
    for what in ("token", "token again"):
        answers[what] = service.post(TOKENS, issue, **{"idempotency-key": "once"})
    post("expired token", TOKENS, {**issue, "expires_at": "2020-01-01T00:00:00Z"})
    answers["tokens"] = service.get(TOKENS)
    post("revoked", f"{TOKENS}/{answers['token'][1]['token_id']}/revoke", {"reason": "lost"})
    failing = f"/v1/chains/{service.open()}/complete"
    failure = {"outcome": "failed", "error": {"type": "ValueError", "message": "no"}}
    post("failed", failing, failure)
    post("failed again", failing, {"outcome": "failed"})
    post("failed, then completed", failing)
    return answers


def test_answers_are_those_of_the_real_service(
    real: tuple[Service, Controls], fake: FakeService
) -> None:
    """A test against the fake service sees what a program will see. The fake service applies no
    rules: it is scripted with what the real one decided."""
    wanted = a_day(*real)
    service, controls = fake_one(fake)

    def expect(what: str) -> None:
        decision = wanted[what][1]
        if decision.get("policy_decision") == "require_approval":
            fake.script("require_approval", **{name: decision[name] for name in EXPLAINED})

    controls.expect = expect
    found = a_day(service, controls)
    assert wanted.keys() == found.keys()
    for what, answer in wanted.items():
        assert comparable(list(found[what])) == comparable(list(answer)), what
