"""How long a permission lasts, and what ends it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import pytest

import countersign
from clocks import ManualClock, stop_time
from conftest import configure
from countersign._client import transport_of
from countersign._clock import Moment, is_fresh
from countersign._fastpath import Lease
from countersign._session import Session
from countersign._words import fold_name
from countersign.testing import FakeService, RecordedCall
from test_decisions import both

SAFE = ("clerk", "tool_call", "look", {"n": 1})
PAY = ("clerk", "tool_call", "pay", {"amount_usd": 5})
TERMS = {
    "id": "l",
    "milliseconds": 1000,
    "max_actions": 3,
    "actions": ["look", "list"],
    "except_agents": ["Int\u200bern"],
}


@pytest.fixture
def fast() -> Iterator[FakeService]:
    with FakeService(fast_path=True) as service:
        yield service


def between(config: countersign.ChainConfig, happens: Callable[[RecordedCall], None]) -> None:
    """Let something happen while a request is on its way."""
    transport: Any = config.transport
    receive = transport._handle

    def handle(call: RecordedCall) -> Any:
        answer = receive(call)
        happens(call)
        return answer

    transport._handle = handle


def asked(service: FakeService, ending: str = "/events") -> int:
    return sum(call.path.endswith(ending) for call in service.calls)


def record(sync: bool, chain: countersign.Chain, *action: Any) -> countersign.PolicyDecision:
    if sync:
        return chain.record_agent_action_sync(*action)
    return asyncio.run(chain.record_agent_action(*action))


# -- one allow ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("monotonic", "wall", "process", "fresh"),
    [
        (0.0, 0.0, 1, True),
        (0.999, 0.999, 1, True),
        (1.0, 0.9, 1, False),
        (0.9, 1.0, 1, False),
        (0.5, 0.74, 1, True),
        (0.5, 0.26, 1, True),
        (0.5, 0.76, 1, False),
        (0.5, 0.24, 1, False),
        (0.1, 3600.0, 1, False),
        (0.1, -3600.0, 1, False),
        (0.1, -0.1, 1, True),
        (-0.1, 0.0, 1, False),
        (0.1, 0.1, 2, False),
    ],
)
def test_both_clocks_and_the_process_must_agree(
    monotonic: float, wall: float, process: int, fresh: bool
) -> None:
    sent = Moment(100.0, 5000.0, 1)
    assert is_fresh(sent, Moment(100.0 + monotonic, 5000.0 + wall, process)) is fresh


@both
@pytest.mark.parametrize("late", [0, 1, 2])
def test_an_allow_that_comes_late_is_asked_for_again(
    fake: FakeService, sync: bool, late: int
) -> None:
    config = configure(fake)
    clock = stop_time(config)
    delays = [1.5] * late
    with countersign.Chain("late", config=config) as chain:
        between(config, lambda call: clock.pass_time(delays.pop() if delays else 0.5))
        assert record(sync, chain, *PAY).decision_source == "backend_evaluation"
    bodies = [c.body for c in fake.calls if c.path.endswith("/events")]
    assert len(bodies) == late + 1
    assert all(body == bodies[0] for body in bodies)
    assert len(fake.events) == 1


@both
def test_three_late_answers_are_taken_for_silence(fake: FakeService, sync: bool) -> None:
    config = configure(fake)
    clock = stop_time(config)
    with countersign.Chain("late", config=config) as chain:
        between(config, lambda call: clock.pass_time(1.5))
        with pytest.raises(countersign.BackendUnavailableError, match="come too late"):
            record(sync, chain, *PAY)
        assert asked(fake) == 3
        assert record(sync, chain, *SAFE).decision_source == "offline_stub"
    assert len(fake.events) == 2


@both
def test_a_late_denial_is_a_denial(fake: FakeService, sync: bool) -> None:
    config = configure(fake)
    clock = stop_time(config)
    with countersign.Chain("late", config=config) as chain:
        between(config, lambda call: clock.pass_time(4))
        fake.script("deny")
        with pytest.raises(countersign.ActionDeniedError):
            record(sync, chain, *PAY)
    assert asked(fake) == 1


CLOCK_FAULTS: dict[str, Callable[[ManualClock], None]] = {
    "late": lambda clock: clock.pass_time(1.5),
    "asleep": lambda clock: clock.sleep(60),
    "wall set forward": lambda clock: clock.set_wall(3600),
    "wall set back": lambda clock: clock.set_wall(-3600),
    "forked": lambda clock: clock.fork(),
}


@pytest.mark.parametrize("fault", CLOCK_FAULTS)
def test_a_switch_during_the_answers_way_is_found_by_asking_again(
    fake: FakeService, fault: str
) -> None:
    config = configure(fake)
    clock = stop_time(config)
    with countersign.Chain("switched", config=config) as chain:

        def happens(call: RecordedCall) -> None:
            CLOCK_FAULTS[fault](clock)
            fake.activate_kill_switch("fire")

        between(config, happens)
        with pytest.raises(countersign.KillSwitchActiveError):
            chain.record_agent_action_sync(*PAY)
    assert asked(fake) == 2


def test_an_allow_from_before_a_known_change_is_asked_for_again(fake: FakeService) -> None:
    """Answers overtake each other: another chain has learnt of the switch meanwhile."""
    config = configure(fake)
    with countersign.Chain("overtaken", config=config) as chain:
        transport = transport_of(config)

        def happens(call: RecordedCall) -> None:
            if transport.kill_switch_active:
                return
            fake.activate_kill_switch("fire")
            news = {"act_number": fake._records.act_number, "kill_switch_active": True}
            transport.learn(news, transport.clock.now())

        between(config, happens)
        with pytest.raises(countersign.KillSwitchActiveError):
            chain.record_agent_action_sync(*PAY)


# -- approvals ------------------------------------------------------------------------


@both
@pytest.mark.parametrize("repeats", ["what holds now", "the question"])
def test_after_an_approval_the_service_is_asked_once_more(
    fake: FakeService, sync: bool, repeats: str
) -> None:
    config = configure(fake)
    if repeats == "the question":  # as a service of before leases does
        fake._records._now_of = lambda decision: decision  # type: ignore[method-assign]
    with countersign.Chain("approved", config=config) as chain:
        fake.script("require_approval", policy_name="limit", remediation="Wait.")

        def happens(call: RecordedCall) -> None:
            if fake.approvals and call.path.endswith("/events"):
                fake.approve(fake.approvals[0]["id"], "fine")

        between(config, happens)
        decision = record(sync, chain, *PAY)
    assert decision.decision_source == "human_approval"
    assert decision.decision_reason == "a reviewer approved the action: fine"
    assert decision.remediation is None
    bodies = [c.body for c in fake.calls if c.path.endswith("/events")]
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]


@both
def test_a_switch_after_the_approval_stops_the_action(fake: FakeService, sync: bool) -> None:
    config = configure(fake)
    with countersign.Chain("approved", config=config) as chain:
        fake.script("require_approval")

        def happens(call: RecordedCall) -> None:
            if call.path.endswith("/events") and fake.approvals:
                fake.approve(fake.approvals[0]["id"])
            elif "/approvals/" in call.path:
                fake.activate_kill_switch("fire")

        between(config, happens)
        with pytest.raises(countersign.KillSwitchActiveError, match="fire"):
            record(sync, chain, *PAY)


@both
@pytest.mark.parametrize(
    "told",
    [
        {"policy_decision": "deny", "kill_switch_active": True, "pause_reason": "fire"},
        {"policy_decision": "deny"},
        {"policy_decision": "no such decision"},
        None,
    ],
    ids=["kill-switch", "deny", "unknown", "nothing"],
)
def test_the_decision_is_obeyed_and_not_the_status(
    fake: FakeService, sync: bool, told: dict[str, Any] | None
) -> None:
    """Approved, while the same answer's decision says deny."""
    config = configure(fake)
    chain = fake._records.open({"name": "earlier"}, None)
    action = {"agent_name": "a", "action_type": "t", "action_name": "n", "payload": {}}
    asking = fake._records.record(chain["id"], action, {"policy_decision": "require_approval"})
    fake.approve(asking["approval_id"])
    fake._records.release = lambda approval: told  # type: ignore[method-assign,assignment,return-value]
    kind = countersign.ActionDeniedError
    expected: type[Exception] = (
        countersign.KillSwitchActiveError if told and told.get("kill_switch_active") else kind
    )
    with pytest.raises(expected):
        if sync:
            countersign.wait_for_approval_sync(asking["approval_id"], config=config)
        else:
            asyncio.run(countersign.wait_for_approval(asking["approval_id"]))
    assert transport_of(config).kill_switch_active is (expected is not kind)


def test_a_wait_by_id_ends_with_a_fresh_answer(fake: FakeService) -> None:
    config = configure(fake)
    clock = stop_time(config)
    chain = fake._records.open({"name": "earlier"}, None)
    action = {"agent_name": "a", "action_type": "t", "action_name": "n", "payload": {}}
    asking = fake._records.record(chain["id"], action, {"policy_decision": "require_approval"})
    fake.approve(asking["approval_id"])

    def happens(call: RecordedCall) -> None:
        if "wait=" in call.path:
            clock.pass_time(20)  # the answer was held back
            fake.activate_kill_switch("fire")

    between(config, happens)
    with pytest.raises(countersign.KillSwitchActiveError):
        countersign.wait_for_approval_sync(asking["approval_id"], config=config)


def test_a_persons_denial_names_the_person_and_no_advice_of_the_rule(fake: FakeService) -> None:
    """The rule's advice is for whom the rule stopped."""
    config = configure(fake)
    with countersign.Chain("denied", config=config) as chain:
        fake.script(
            "require_approval", policy_name="limit", remediation="Wait.", docs_url="https://x.test"
        )
        between(
            config,
            lambda call: (
                fake.deny(fake.approvals[0]["id"], "not this one") if fake.approvals else None
            ),
        )
        with pytest.raises(countersign.ActionDeniedError) as denied:
            chain.record_agent_action_sync(*PAY)
    assert str(denied.value) == (
        "tool_call 'pay' was denied: a reviewer denied the action: not this one"
    )
    assert denied.value.decision is not None
    assert denied.value.decision.policy_name == "limit"
    assert denied.value.decision.remediation is None


def test_no_log_line_names_an_approval(fake: FakeService, caplog: pytest.LogCaptureFixture) -> None:
    config = configure(fake)
    with caplog.at_level(0), countersign.Chain("quiet", config=config) as chain:
        fake.script("require_approval")
        between(
            config,
            lambda call: fake.approve(fake.approvals[0]["id"]) if fake.approvals else None,
        )
        decision = chain.record_agent_action_sync(*PAY)
    assert decision.approval_id
    assert decision.approval_id not in caplog.text


# -- many actions ---------------------------------------------------------------------


def test_a_lease_is_spent_by_count_time_and_scope() -> None:
    sent = Moment(100.0, 5000.0, 1)
    lease = Lease(TERMS, sent, 1)
    assert [lease.take(sent) for _ in range(5)] == [True, True, True, False, False]
    lease = Lease({**TERMS, "milliseconds": 300}, sent, 1)
    assert lease.take(Moment(100.2, 5000.2, 1))
    assert not lease.take(Moment(100.3, 5000.3, 1))
    for name, agent, covered in [
        ("look_up", "clerk", True),
        ("list", "clerk", True),
        ("get", "clerk", False),
        ("overlook", "clerk", False),
        ("look", fold_name("INTERN"), False),
        ("look", fold_name("in\u00adtern"), False),
    ]:
        assert lease.covers(name, agent) is covered


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        "lease",
        {},
        {**TERMS, "actions": "look"},
        {**TERMS, "actions": None},
        {**TERMS, "max_actions": "many"},
        {k: v for k, v in TERMS.items() if k != "except_agents"},
    ],
)
def test_what_is_not_understood_is_no_lease(given: object) -> None:
    assert Lease.read(given, Moment(0, 0, 1), 1) is None


def test_no_lease_is_longer_than_the_contract_allows() -> None:
    sent = Moment(100.0, 5000.0, 1)
    lease = Lease({**TERMS, "milliseconds": 60_000, "max_actions": 10_000}, sent, 1)
    assert not lease.take(Moment(101.0, 5001.0, 1))
    assert sum(lease.take(sent) for _ in range(1000)) == 100


def local(chain: countersign.Chain, *action: Any) -> bool:
    decision = chain.record_agent_action_sync(*(action or SAFE))
    assert decision.allowed
    return decision.decision_source == "local_fast_path"


@pytest.fixture
def still(fast: FakeService) -> tuple[FakeService, ManualClock, countersign.ChainConfig]:
    """A fast service, a clock that stands still, and nothing sent in the background."""
    config = configure(fast)
    clock = stop_time(config)
    transport_of(config).sender.submit = lambda work, delay=0: None  # type: ignore[method-assign]
    return fast, clock, config


Still = tuple[FakeService, ManualClock, countersign.ChainConfig]


def test_a_hundred_actions_need_no_round_trip(still: Still) -> None:
    service, _, config = still
    with countersign.Chain("fast", config=config) as chain:
        calls = len(service.calls)
        assert all(local(chain) for _ in range(100))
        assert len(service.calls) == calls
        assert not local(chain)  # the lease is used up, and the buffer full
    assert {e.get("lease_id") for e in service.events} == {"lease-1", None}


def test_events_name_the_lease_under_which_they_were_decided(still: Still) -> None:
    service, _, config = still
    with countersign.Chain("named", config=config) as chain:
        assert local(chain)
        assert not local(chain, *PAY)
        assert local(chain)
    assert [e.get("lease_id") for e in service.events] == ["lease-1", None, "lease-3"]


@pytest.mark.parametrize("fault", CLOCK_FAULTS)
def test_a_lease_ends_with_its_second(still: Still, fault: str) -> None:
    _, clock, config = still
    with countersign.Chain("ended", config=config) as chain:
        assert local(chain)
        CLOCK_FAULTS[fault](clock)
        assert not local(chain)
        assert local(chain)  # what was asked brought another


def test_a_lease_counts_from_the_sending_of_its_request(still: Still) -> None:
    _, clock, config = still
    between(config, lambda call: clock.pass_time(0.6))
    with countersign.Chain("slow", config=config) as chain:
        assert local(chain)
        clock.pass_time(0.5)
        assert not local(chain)


@pytest.mark.parametrize(
    "terms",
    [
        {"actions": ["list"]},
        {"actions": []},
        {"except_agents": ["CLERK"]},
        {"except_agents": ["cl\u200berk"]},
        {"max_actions": 0},
        {"milliseconds": 0},
    ],
    ids=str,
)
def test_the_terms_of_the_lease_hold(still: Still, terms: dict[str, Any]) -> None:
    service, _, config = still
    service.lease_terms.update(terms)
    with countersign.Chain("terms", config=config) as chain:
        assert not local(chain)


def test_what_the_service_had_not_seen_counts_against_the_next_lease(still: Still) -> None:
    """The number left before an auto-pause is the service's: it does not know of events that
    are still waiting here."""
    service, _, config = still
    service.lease_terms["max_actions"] = 5
    with countersign.Chain("counted", config=config) as chain:
        session = chain._session
        assert session is not None
        assert [local(chain) for _ in range(3)] == [True] * 3
        session.learn({"fast_path_lease": {"id": "x", **service.lease_terms}}, session.lease.sent)  # type: ignore[union-attr]
        assert [local(chain) for _ in range(3)] == [True, True, False]


def test_a_lease_of_null_ends_the_fast_path(still: Still) -> None:
    service, _, config = still
    with countersign.Chain("ended", config=config) as chain:
        assert local(chain)
        service._records.fast_path = False  # a new policy, say
        assert not local(chain, *PAY)
        assert not local(chain)


def test_older_answers_change_nothing(still: Still) -> None:
    service, clock, config = still
    with countersign.Chain("older", config=config) as chain:
        assert chain._session is not None
        session, transport = chain._session, transport_of(config)
        stopped = {"act_number": 9, "kill_switch_active": True, "fail_modes": {"default": "deny"}}
        assert session.learn({**stopped, "fast_path_lease": None}, clock.now())
        clock.pass_time(0.1)
        older = {
            "act_number": 8,
            "kill_switch_active": False,
            "fail_modes": {"default": "allow"},
            "policy_version": "old",
            "fast_path_lease": {"id": "x", **service.lease_terms},
        }
        assert not session.learn(older, clock.now())

        def known() -> tuple[Any, ...]:
            modes = transport.fail_modes["default"]
            stale = transport.policy_version == "old"
            return transport.kill_switch_active, modes, stale, session.lease is None

        assert known() == (True, "deny", False, True)
        assert session.learn({**older, "act_number": 10}, clock.now())
        assert known() == (False, "allow", True, False)


def test_a_change_elsewhere_ends_a_lease(still: Still) -> None:
    """Another chain has heard of a newer act: nothing is decided under the older one."""
    _, clock, config = still
    with countersign.Chain("one", config=config) as chain:
        assert local(chain)
        transport = transport_of(config)
        transport.learn({"act_number": transport.act_number + 1}, clock.now())
        lease = chain._session.lease  # type: ignore[union-attr]
        assert lease is not None
        assert lease.act_number != transport.act_number


def test_a_change_that_another_thread_hears_of_meanwhile_ends_a_lease(still: Still) -> None:
    """A newer act becomes known after the answer was found to be current, and before its lease
    is taken up: the lease is of the older act."""
    service, clock, config = still
    with countersign.Chain("one", config=config) as chain:
        session, transport = chain._session, transport_of(config)
        assert session is not None
        number = transport.act_number
        learn = transport.learn

        def overtaken(answer: Mapping[str, Any], sent: Moment) -> bool:
            current = learn(answer, sent)
            learn({"act_number": number + 1}, sent)
            return current

        transport.learn = overtaken  # type: ignore[method-assign]
        lease = {"id": "x", **service.lease_terms}
        session.learn({"act_number": number, "fast_path_lease": lease}, clock.now())
        assert session.lease is not None
        assert session.lease.act_number == number
        transport.learn = learn  # type: ignore[method-assign]
        assert not local(chain)


@pytest.mark.parametrize("stop", ["auto_paused", "kill_switch_active"])
def test_a_request_that_was_under_way_lifts_no_stop(still: Still, stop: str) -> None:
    """Of two requests the later one was decided first, and before the stop."""
    _, clock, config = still
    with countersign.Chain("stopped", config=config) as chain:
        session = chain._session
        assert session is not None
        sent = [clock.now()]
        clock.pass_time(0.1)
        sent.append(clock.now())
        clock.pass_time(0.1)
        session.learn({stop: True}, sent[0])
        session.learn({stop: False}, sent[1])
        assert session.paused or session.transport.kill_switch_active
        clock.pass_time(0.1)
        session.learn({stop: False}, clock.now())
        assert not session.paused
        assert not session.transport.kill_switch_active


def test_an_answer_that_was_overtaken_lifts_no_pause(still: Still) -> None:
    _, clock, config = still
    with countersign.Chain("paused", config=config) as chain:
        session = chain._session
        assert session is not None
        earlier = clock.now()
        clock.pass_time(0.1)
        found = []
        for paused, sent in ((True, clock.now()), (False, earlier), (False, None)):
            clock.pass_time(0.1)
            session.learn({"auto_paused": paused}, sent or clock.now())
            found.append(session.paused)
        assert found == [True, True, False]


@pytest.mark.parametrize("through", ["the chain", "the package"])
def test_an_approval_that_tells_of_a_pause_ends_the_lease(still: Still, through: str) -> None:
    """An approved action is denied because its chain is paused: the chain knows of it then."""
    service, _, config = still
    with countersign.Chain("paused", config=config) as chain:
        session = chain._session
        assert session is not None
        assert local(chain)
        pay = {
            "agent_name": "clerk",
            "action_type": "tool_call",
            "action_name": "pay",
            "payload": {},
        }
        asked = {"policy_decision": "require_approval"}
        approval_id = service._records.record(str(session.id), pay, asked)["approval_id"]
        service._records.decide_approval(approval_id, "approved", None)
        service._records.release = lambda approval: {  # type: ignore[method-assign]
            "policy_decision": "deny",
            "auto_paused": True,
            "pause_reason": "too many events",
        }
        with pytest.raises(countersign.ChainAutoPausedError):
            if through == "the chain":
                chain.wait_for_approval_sync(approval_id)
            else:
                countersign.wait_for_approval_sync(approval_id, config=config)
        assert session.paused
        assert session.pause_reason == "too many events"
        assert not local(chain)


def test_a_pause_is_noted_whatever_other_threads_do(still: Still) -> None:
    """Another thread may open a chain between any two lines with which this one looks for the chain
    that was paused. Here it does so between all of them."""
    _, _, config = still
    others: list[Session] = []

    def open_another(frame: FrameType, event: str, arg: object) -> Any:
        if "weakref" in frame.f_code.co_filename and len(others) < 100:
            others.append(Session(config, {"name": "another"}))
        return open_another

    with countersign.Chain("paused", config=config) as chain:
        session = chain._session
        assert session is not None
        tracing = sys.gettrace()
        sys.settrace(open_another)
        try:
            transport_of(config).note_pause(str(session.id), "too many events")
        finally:
            sys.settrace(tracing)
        assert others
        assert session.paused


def test_a_pause_of_a_chain_is_that_of_its_successor(still: Still) -> None:
    _, _, config = still
    with countersign.Chain("paused", config=config) as chain:
        session = chain._session
        assert session is not None
        first = str(session.id)
        session.follow("the-successor")
        found = []
        for chain_id in ("another", first):
            session.note_pause(chain_id, None)
            found.append(session.paused)
        assert found == [False, True]
        session.follow(first)


def test_a_fork_drops_every_lease(fast: FakeService) -> None:
    configure(fast)
    with countersign.Chain("forked") as chain:
        reader, writer = os.pipe()
        assert local(chain)
        lease = chain._session.lease  # type: ignore[union-attr]
        assert lease is not None
        child = os.fork()
        if child == 0:
            try:
                session = chain._session
                assert session is not None
                kept = session.lease is not None
                taken = kept or lease.take(session.transport.clock.now())
                os.write(writer, b"taken" if taken else b"dropped")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 100) == b"dropped"
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("intern", "Intern", True),
        ("intern", "int\u200bern", True),
        ("intern", "in\u00adtern", True),
        ("intern", "\uff49\uff4e\uff54\uff45\uff52\uff4e", True),
        ("intern", "intern\ufe0f", True),
        ("stra\u00dfe", "STRASSE", True),
        ("caf\u00e9", "cafe\u0301", True),
        ("\u00b5", "\u03bc", True),
        ("intern", "interns", False),
        ("intern", "\u0456ntern", False),
    ],
)
def test_names_are_compared_as_they_look(one: str, other: str, same: bool) -> None:
    assert (fold_name(one) == fold_name(other)) is same
