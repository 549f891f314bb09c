"""An in-memory service that answers like the real one."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from countersign.testing._keys import example_api_key
from countersign.testing._records import RecordKeeper
from countersign.testing._requests import (
    Check,
    check_action,
    check_batch,
    check_cancellation,
    check_completion,
    check_issue,
    check_opening,
    check_outcome,
    check_revocation,
    choice,
)
from countersign.testing._search import Search
from countersign.testing._wire import (
    Answer,
    FakeTransport,
    Hold,
    Invalid,
    LoopbackServer,
    RecordedCall,
    offline,
)

__all__ = ["FakeService"]


class FakeService:
    """Decides ``allow`` unless scripted otherwise, and keeps every call.

    Ids are counted and the clock advances one millisecond per reading, so that every run gives the
    same records.
    """

    def __init__(self, *, fast_path: bool = False) -> None:
        self.calls: list[RecordedCall] = []
        """Every request, in order and without the API key."""
        self._records = RecordKeeper(fast_path)
        self._scripted: deque[dict[str, Any]] = deque()
        self._online = True
        self._server: LoopbackServer | None = None
        self._lock = threading.RLock()

    # -- setting up ------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Return arguments for ``countersign.init`` to use this service without a socket."""
        return {"api_key": example_api_key(), "transport": FakeTransport(self._receive)}

    def serve(self) -> dict[str, Any]:
        """Return arguments to use it over a socket: a server on a loopback port, which runs until
        :meth:`close`."""
        self._server = self._server or LoopbackServer(self._receive)
        return {"api_key": example_api_key(), "backend_url": self._server.url}

    def script(self, policy_decision: str, **attributes: Any) -> None:
        """Script the decision of the next action that has none yet."""
        self._scripted.append({"policy_decision": policy_decision, **attributes})

    def approve(self, approval_id: str, comment: str | None = None) -> None:
        """Approve as a reviewer."""
        self._records.decide_approval(approval_id, "approved", comment)

    def deny(self, approval_id: str, comment: str | None = None) -> None:
        """Deny as a reviewer."""
        self._records.decide_approval(approval_id, "denied", comment)

    def time_out(self, approval_id: str) -> None:
        """Let an approval's time pass."""
        self._records.decide_approval(approval_id, "timed_out", None)

    @property
    def lease_terms(self) -> dict[str, Any]:
        """The terms of leases, if ``fast_path`` is on. A test may change them."""
        return self._records.lease_terms

    @property
    def limits(self) -> dict[str, Any]:
        """The organization's limits. They apply to chains that are opened later."""
        return self._records.limits

    def activate_kill_switch(self, reason: str = "stopped") -> None:
        """Stop everything."""
        self._records.kill_switch = reason

    def deactivate_kill_switch(self) -> None:
        """Lift the stop."""
        self._records.kill_switch = None

    def go_offline(self) -> None:
        """Refuse connections until :meth:`come_back`. Not supported over a socket."""
        self._online = False

    def come_back(self) -> None:
        """Answer again."""
        self._online = True

    # -- inspecting --------------------------------------------------------------------

    @property
    def chains(self) -> list[dict[str, Any]]:
        """Every chain, oldest first."""
        return list(self._records.chains.values())

    @property
    def events(self) -> list[dict[str, Any]]:
        """Every recorded event, oldest first."""
        return list(self._records.events)

    @property
    def approvals(self) -> list[dict[str, Any]]:
        """Every approval, oldest first."""
        return list(self._records.approvals.values())

    @property
    def receipts(self) -> list[dict[str, Any]]:
        """Every receipt, oldest first."""
        return list(self._records.receipts.values())

    def __enter__(self) -> FakeService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the loopback server, if there is one."""
        if self._server is not None:
            self._server.close()
            self._server = None

    # -- requests --------------------------------------------------------------------

    def _receive(self, call: RecordedCall) -> Answer | Hold:
        if not self._online:
            return offline(call)
        with self._lock:
            self.calls.append(call)
            path = urlsplit(call.path)
            query = parse_qs(path.query, keep_blank_values=True)
            for method, pattern, name, *check in _ROUTES:
                if method == call.method and (found := re.fullmatch(pattern, path.path)):
                    return self._answer(call, name, found.groups(), query, *check)
            return _problem(404, "not_found")

    def _answer(
        self,
        call: RecordedCall,
        name: str,
        ids: tuple[str, ...],
        query: dict[str, list[str]],
        check: Check | None = None,
    ) -> Answer | Hold:
        handler: Callable[..., Answer | Hold] = getattr(self, name)
        if check is not None and call.body is None and name not in _BODY_OPTIONAL:
            return _problem(400, "invalid_json", "the request needs a JSON body")
        try:
            if check is not None and call.body is not None:
                check("", call.body)
            return handler(call, *ids, **_parameters(name, query))
        except Invalid as invalid:
            return _problem(422, "invalid_request", str(invalid), errors=invalid.errors)

    def _open(self, call: RecordedCall) -> Answer:
        key = call.headers.get("idempotency-key")
        if key and self._records.is_other("open", key, call.body):
            return _problem(409, "idempotency_conflict")
        return Answer(201, self._records.open(call.body, key))

    def _chain(self, call: RecordedCall, chain_id: str) -> Answer:
        chain = self._records.chains.get(chain_id)
        return _found(chain and {**chain, **self._records.granted(chain)})

    def _list_chains(self, call: RecordedCall, **query: str) -> Answer:
        choice(*_CHAIN_STATUSES)("/status", query.get("status", "active"))
        found = [
            chain
            for chain in reversed(self._records.chains.values())
            if all(chain.get(n) == query[n] for n in _FILTERS if n in query)
        ]
        return self._searched(found, "started_at", **query)

    def _list_events(self, call: RecordedCall, chain_id: str, **query: str) -> Answer:
        if chain_id not in self._records.chains:
            return _problem(404, "not_found")
        found = [_recorded(e) for e in self._records.events if e["chain_id"] == chain_id]
        return _page(found, **query)

    def _list_receipts(self, call: RecordedCall, **query: str) -> Answer:
        receipts = list(reversed(self._records.receipts.values()))
        return self._searched(receipts, "generated_at", **query)

    def _list_approvals(self, call: RecordedCall, **query: str) -> Answer:
        choice(*_APPROVAL_STATUSES)("/status", query.get("status", "pending"))
        found = [
            self._shown(approval)
            for approval in reversed(self._records.approvals.values())
            if all(approval[n] == query[n] for n in ("status", "chain_id") if n in query)
        ]
        return self._searched(found, "requested_at", **query)

    def _searched(self, records: list[dict[str, Any]], moment: str, **query: str) -> Answer:
        """Return a page of the chains, receipts or approvals that the query searches for."""
        search = Search(query)
        found = []
        for record in records:
            chain = self._records.chains[record.get("chain_id") or record["id"]]
            events = [
                event
                for event in self._records.events
                if event["chain_id"] == chain["id"]
                and record.get("event_id") in (None, event["id"])  # an approval is about one
            ]
            if search.matches(chain, events, record[moment]):
                found.append(record)
        return _page(found, **query)

    def _event(self, call: RecordedCall, chain_id: str) -> Answer:
        if chain_id not in self._records.chains:
            return _problem(404, "not_found")
        if problem := self._refusal(chain_id, call.body):
            return problem
        script = self._script_for(chain_id, call.body)
        return Answer(200, self._records.record(chain_id, call.body, script))

    def _batch(self, call: RecordedCall, chain_id: str) -> Answer:
        if chain_id not in self._records.chains:
            return _problem(404, "not_found")
        results, refusals = [], []
        for event in call.body["events"]:
            if problem := self._refusal(chain_id, event):  # does not affect the others
                refusals.append(problem)
                results.append({"error": problem.body})
            else:
                script = self._script_for(chain_id, event)
                results.append(self._records.record_decided(chain_id, event, script))
        if len(refusals) == len(results):
            return refusals[0]
        granted = self._records.granted(self._records.chains[chain_id])
        return Answer(200, {"results": results, **granted})

    def _outcome(self, call: RecordedCall, chain_id: str, event_id: str) -> Answer:
        event = next((e for e in self._records.events if e["id"] == event_id), None)
        if event is None or event["chain_id"] != chain_id:
            return _problem(404, "not_found")
        if code := self._records.report(event, call.body["outcome"], call.body.get("detail")):
            return _problem(409, code)
        outcome = _recorded(event)["outcome"]
        return Answer(200, {"event_id": event_id, "chain_id": chain_id, **outcome})

    def _complete(self, call: RecordedCall, chain_id: str) -> Answer:
        if chain_id not in self._records.chains:
            return _problem(404, "not_found")
        completed = self._records.complete(chain_id, call.body or {})
        if completed is None:
            return _problem(409, "chain_sealed", "the chain is sealed with another outcome")
        return Answer(200, completed)

    def _receipt_of(self, call: RecordedCall, chain_id: str) -> Answer:
        chain = self._records.chains.get(chain_id, {})
        return _found(self._records.receipts.get(chain.get("receipt_id") or ""))

    def _receipt(self, call: RecordedCall, name: str) -> Answer:
        return _found(self._records.receipt(name))

    def _approval(self, call: RecordedCall, approval_id: str, wait: str = "0") -> Answer | Hold:
        if not re.fullmatch(r"\d+(\.\d{1,3})?", wait) or float(wait) > _LONGEST_WAIT:
            raise Invalid("/wait", f"must be a number of seconds from 0 to {_LONGEST_WAIT}")
        approval = self._records.approvals.get(approval_id)
        if approval is None:
            return _problem(404, "not_found")
        decided = self._records.decided[approval_id]
        return Hold(decided, float(wait), lambda: Answer(200, self._shown(approval)))

    def _cancel(self, call: RecordedCall, approval_id: str) -> Answer:
        approval = self._records.approvals.get(approval_id)
        if approval is None:
            return _problem(404, "not_found")
        comment = (call.body or {}).get("comment") or "the client gave up waiting"
        self._records.decide_approval(approval_id, "cancelled", comment)
        if approval["status"] == "cancelled":
            return Answer(200, self._shown(approval))
        expired = approval["status"] == "timed_out"
        return _problem(409, "approval_expired" if expired else "approval_decided")

    def _shown(self, approval: dict[str, Any]) -> dict[str, Any]:
        still_open = approval["status"] in ("pending", "escalated")
        decision = None if still_open else self._records.release(approval)
        return {**approval, "decision": decision}

    def _verify(self, call: RecordedCall, receipt_id: str) -> Answer:
        receipt = self._records.receipts.get(receipt_id)
        return _found(receipt and {"valid": True, "checked": "full", **_only(receipt, _CHECKED)})

    def _verify_v2(self, call: RecordedCall, kind: str, artifact_id: str) -> Answer:
        return _found(self._records.verification(kind.removesuffix("s"), artifact_id))

    def _verify_token(self, call: RecordedCall, token: str) -> Answer:
        return _found(self._records.public_verification(token))

    def _list_tokens(self, call: RecordedCall, **query: str) -> Answer:
        tokens = reversed(self._records.tokens.values())
        return _page([_listed(t) for t in tokens], **query)

    def _create_token(self, call: RecordedCall) -> Answer:
        key = call.headers.get("idempotency-key")
        if key and self._records.is_other("token", key, call.body):
            return _problem(409, "idempotency_conflict")
        token, is_new = self._records.issue(call.body, key)
        return Answer(201, dict(token)) if token and is_new else _found(token and _listed(token))

    def _revoke_token(self, call: RecordedCall, token_id: str) -> Answer:
        token = self._records.revoke(token_id, (call.body or {}).get("reason"))
        return _found(token and _listed(token))

    def _refusal(self, chain_id: str, action: dict[str, Any]) -> Answer | None:
        """Return why an action cannot be recorded. A repeated one is answered in any chain."""
        key = action.get("idempotency_key")
        if key and self._records.is_other(chain_id, key, action):
            return _problem(409, "idempotency_conflict")
        sealed = self._records.chains[chain_id]["receipt_id"] is not None
        if sealed and not self._records.is_recorded(chain_id, action):
            return _problem(409, "chain_sealed")
        return None

    def _script_for(self, chain_id: str, action: dict[str, Any]) -> dict[str, Any]:
        """Return the next script, unless the action has its decision already or is none: a gap."""
        if not self._scripted or self._records.is_recorded(chain_id, action):
            return {}
        if action["action_type"] == "gap":
            return {}
        return self._scripted.popleft()


_ID = r"([^/]+)"
_ROUTES: tuple[Any, ...] = (
    ("POST", "/v1/chains", "_open", check_opening),
    ("GET", "/v1/chains", "_list_chains"),
    ("GET", f"/v1/chains/{_ID}", "_chain"),
    ("GET", f"/v1/chains/{_ID}/events", "_list_events"),
    ("GET", "/v1/receipts", "_list_receipts"),
    ("POST", f"/v1/chains/{_ID}/events", "_event", check_action),
    ("POST", f"/v1/chains/{_ID}/events/batch", "_batch", check_batch),
    ("POST", f"/v1/chains/{_ID}/events/{_ID}/outcome", "_outcome", check_outcome),
    ("POST", f"/v1/chains/{_ID}/complete", "_complete", check_completion),
    ("GET", f"/v1/chains/{_ID}/receipt", "_receipt_of"),
    ("GET", "/v1/approvals", "_list_approvals"),
    ("GET", f"/v1/approvals/{_ID}", "_approval"),
    ("POST", f"/v1/approvals/{_ID}/cancel", "_cancel", check_cancellation),
    ("GET", f"/v1/receipts/{_ID}", "_receipt"),
    ("GET", f"/v1/receipts/{_ID}/verify", "_verify"),
    ("GET", f"/v1/verification/v2/(approvals|receipts)/{_ID}", "_verify_v2"),
    ("GET", f"/public/v2/verify/{_ID}", "_verify_token"),
    ("GET", "/v1/public-verification-tokens", "_list_tokens"),
    ("POST", "/v1/public-verification-tokens", "_create_token", check_issue),
    ("POST", f"/v1/public-verification-tokens/{_ID}/revoke", "_revoke_token", check_revocation),
)
_PAGE = ("limit", "cursor")
_SEARCH = ("name", "agent_name", "action_type", "action_name", "since", "until", "metadata[]")
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "_list_chains": (*_PAGE, *_SEARCH, "decision", "status", "environment", "external_chain_id"),
    "_list_events": _PAGE,
    "_list_receipts": (*_PAGE, *_SEARCH, "decision"),
    "_list_approvals": (*_PAGE, *_SEARCH, "status", "chain_id"),
    "_list_tokens": _PAGE,
    "_approval": ("wait",),
}
_BODY_OPTIONAL = ("_cancel", "_complete", "_revoke_token")
_LONGEST_WAIT = 60  # seconds
_FILTERS = ("status", "environment", "external_chain_id")
_CHAIN_STATUSES = ("active", "auto_paused", "completed", "failed")
_APPROVAL_STATUSES = ("pending", "escalated", "approved", "denied", "timed_out", "cancelled")
_NOT_LISTED = (
    "event_id",
    "fast_path",
    "found",
    "lease_id",
    "outcome_detail",
    "outcome_recorded_at",
    "violation",
)
_CHECKED = ("receipt_number", "chain_id", "generated_at")
_LISTED = (
    "token_id",
    "id",
    "organization_id",
    "artifact_type",
    "artifact_id",
    "status",
    "created_at",
    "expires_at",
    "revoked_at",
    "revocation_reason",
    "last_used_at",
)


def _parameters(handler: str, query: dict[str, list[str]]) -> dict[str, str]:
    """Return the parameters of a route. Where the service reads none, it ignores them."""
    known = _PARAMETERS.get(handler)
    if known is None:
        return {}
    for name, given in sorted(query.items()):
        if re.sub(r"(?s)^metadata\[.*\]$", "metadata[]", name) not in known:
            raise Invalid(f"/{name}", "is not a known parameter")
        if len(given) > 1:
            raise Invalid(f"/{name}", "must be given once")
        if not given[0]:
            raise Invalid(f"/{name}", "must not be empty")
    return {name: given[0] for name, given in query.items()}


def _page(records: list[dict[str, Any]], limit: str = "50", cursor: str = "0", **_: str) -> Answer:
    """Return the page at the cursor, which is an index."""
    if not (limit.isdecimal() and 1 <= int(limit) <= 200):
        raise Invalid("/limit", "must be an integer from 1 to 200")
    if not cursor.isdecimal():
        raise Invalid("/cursor", "is not a next_cursor of this list")
    begin, end = int(cursor), int(cursor) + int(limit)
    following = str(end) if end < len(records) else None
    return Answer(200, {"data": records[begin:end], "next_cursor": following})


def _recorded(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event as it is read: with its outcome as an object."""
    shown = {name: value for name, value in event.items() if name not in _NOT_LISTED}
    if "outcome" in event:
        shown["outcome"] = {
            "outcome": event["outcome"],
            "detail": event["outcome_detail"],
            "recorded_at": event["outcome_recorded_at"],
        }
    return shown


def _found(body: Any) -> Answer:
    return Answer(200, body) if body else _problem(404, "not_found")


def _problem(status: int, code: str, detail: str = "", **more: Any) -> Answer:
    title = code.replace("_", " ").capitalize()
    body = {"type": f"/docs#{code}", "title": title, "status": status, "code": code}
    return Answer(status, {**body, "detail": detail or code, "request_id": "req_0", **more})


def _listed(token: dict[str, Any]) -> dict[str, Any]:
    return _only(token, _LISTED)


def _only(record: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: record.get(name) for name in names}
