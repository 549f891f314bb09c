"""The chain: what most users of the library touch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from countersign import _validate as check
from countersign._action import Action, name_of
from countersign._approvals import await_release, give_up
from countersign._client import Client, client_of
from countersign._config import ChainConfig
from countersign._decision import PolicyDecision
from countersign._loops import finish, refuse_in_loop
from countersign._metadata import chain_metadata
from countersign._place import Place, enter, leave
from countersign._session import Session
from countersign._steps import Steps
from countersign.exceptions import ConfigurationError
from countersign.records import (
    ChainRecord,
    EventRecord,
    events_of,
    events_of_sync,
    get_chain,
    get_chain_sync,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Chain", "ChainPlace"]


class Chain:
    """A workflow whose actions are governed and end in a receipt.

    Use it as an async or a sync context manager. Entering opens the chain, leaving completes
    it; an exception on the way marks it as failed. The limits are those of :func:`init`, for this
    chain alone.

    >>> import asyncio, countersign
    >>> from countersign.testing import FakeService
    >>> async def main() -> None:
    ...     async with countersign.Chain("invoice-run") as chain:
    ...         decision = await chain.record_agent_action(
    ...             "clerk", "tool_call", "look_up", {"invoice": 7}
    ...         )
    ...         print(decision.policy_decision)
    ...     print(chain.receipt["receipt_number"])
    >>> with FakeService() as service:
    ...     config = countersign.init(**service.settings())
    ...     asyncio.run(main())
    allow
    CSN-2026-00001
    """

    _is_place = True
    """Whether governed calls inside of the context are recorded here."""

    def __init__(
        self,
        name: str,
        *,
        external_chain_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        financial_approval_threshold_usd: float | None = None,
        cumulative_financial_threshold_usd: float | None = None,
        external_domains_allowlist: Sequence[str] | None = None,
        high_risk_agents: Sequence[str] | None = None,
        approval_timeout_hours: float | None = None,
        chain_timeout_seconds: float | None = None,
        config: ChainConfig | Client | None = None,
    ) -> None:
        self.name = name_of("name", name)
        self._config = client_of(config).config.with_limits(
            financial_approval_threshold_usd=financial_approval_threshold_usd,
            cumulative_financial_threshold_usd=cumulative_financial_threshold_usd,
            external_domains_allowlist=external_domains_allowlist,
            high_risk_agents=high_risk_agents,
            default_approval_timeout_hours=approval_timeout_hours,
            chain_timeout_seconds=chain_timeout_seconds,
        )
        opening: dict[str, Any] = {"name": self.name, "environment": self._config.environment}
        if external_chain_id is not None:
            opening["external_chain_id"] = check.opaque("external_chain_id", external_chain_id)
        if metadata is not None:
            opening["metadata"] = chain_metadata(metadata, self._config._sanitizer)
        if limits := self._config.policy_config():
            opening["policy_config"] = limits
        if self._config.fallback_approvers:
            opening["fallback_approvers"] = list(self._config.fallback_approvers)
        self._opening = opening
        self._session: Session | None = None
        self._left = False
        self._place = ChainPlace(self)
        self._before: Place | None = None  # the place that was left for this one

    def __repr__(self) -> str:
        return f"Chain({self.name!r}, id={self.id!r})"

    @property
    def id(self) -> str | None:
        """The identifier that the service assigned: set on entry, or, for a chain that was
        opened offline, once the service could be reached."""
        return self._session.id if self._session else None

    @property
    def receipt(self) -> dict[str, Any] | None:
        """The signed receipt, after leaving; for a chain that was completed offline, once the
        service could be reached."""
        return self._session.receipt if self._session else None

    # -- recording -------------------------------------------------------------------

    async def record_agent_action(
        self,
        agent_name: str,
        action_type: str,
        action_name: str,
        payload: Mapping[str, Any],
        *,
        parent_agent_name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> PolicyDecision:
        """Record an action before it is carried out, and return when it may be.

        Blocks while a reviewer decides. Raises when the action must not be carried out; see
        :mod:`countersign.exceptions`. ``payload`` is sanitized before it leaves the process.
        Give the ``idempotency_key`` of a step that may be replayed, and it is recorded once.
        """
        session = self._open_session()
        action = Action(
            self._config._sanitizer,
            agent_name,
            action_type,
            action_name,
            payload,
            parent_agent_name,
            metadata,
            idempotency_key,
        )
        with session.latching():
            decision = session.decide_locally(action)
            if decision is not None:
                return decision
            return await session.transport.run_async(session.record(action))

    def record_agent_action_sync(
        self,
        agent_name: str,
        action_type: str,
        action_name: str,
        payload: Mapping[str, Any],
        *,
        parent_agent_name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> PolicyDecision:
        """:meth:`record_agent_action` for code without an event loop."""
        refuse_in_loop("await record_agent_action(...)")
        session = self._open_session()
        action = Action(
            self._config._sanitizer,
            agent_name,
            action_type,
            action_name,
            payload,
            parent_agent_name,
            metadata,
            idempotency_key,
        )
        with session.latching():
            decision = session.decide_locally(action)
            if decision is not None:
                return decision
            return session.transport.run(session.record(action))

    async def record_outcome(
        self,
        decision: PolicyDecision,
        outcome: Literal["succeeded", "failed", "unknown"],
        detail: str | None = None,
    ) -> bool:
        """Report what became of an allowed action. Returns whether the service recorded it:
        an outcome is not kept while the service is unreachable."""
        session = self._open_session()
        return await session.transport.run_async(session.report(decision, outcome, detail))

    def record_outcome_sync(
        self,
        decision: PolicyDecision,
        outcome: Literal["succeeded", "failed", "unknown"],
        detail: str | None = None,
    ) -> bool:
        """:meth:`record_outcome` for code without an event loop."""
        refuse_in_loop("await record_outcome(...)")
        session = self._open_session()
        return session.transport.run(session.report(decision, outcome, detail))

    async def wait_for_approval(self, approval_id: str) -> PolicyDecision:
        """Wait again for an approval that an earlier run of the process asked for."""
        session = self._open_session()
        steps = await_release(session.transport, approval_id, self._config)
        with session.latching():
            return await session.transport.run_async(steps)

    def wait_for_approval_sync(self, approval_id: str) -> PolicyDecision:
        """:meth:`wait_for_approval` for code without an event loop."""
        refuse_in_loop("await wait_for_approval(...)")
        session = self._open_session()
        steps = await_release(session.transport, approval_id, self._config)
        with session.latching():
            return session.transport.run(steps)

    async def cancel_approval(
        self,
        approval_id: str | None = None,
        *,
        idempotency_key: str | None = None,
        comment: str | None = None,
    ) -> bool:
        """Give up for good on an approval that a step of this chain waits for, or waited for
        until its wait was broken off: by the step's ``idempotency_key``, or by the approval's
        id. Returns true once it is cancelled, and false where it was decided, or its time had
        run out, before."""
        session = self._open_session()
        return await session.transport.run_async(
            self._giving_up(session, approval_id, idempotency_key, comment)
        )

    def cancel_approval_sync(
        self,
        approval_id: str | None = None,
        *,
        idempotency_key: str | None = None,
        comment: str | None = None,
    ) -> bool:
        """:meth:`cancel_approval` for code without an event loop."""
        refuse_in_loop("await cancel_approval(...)")
        session = self._open_session()
        return session.transport.run(
            self._giving_up(session, approval_id, idempotency_key, comment)
        )

    def _giving_up(
        self,
        session: Session,
        approval_id: str | None,
        idempotency_key: str | None,
        comment: str | None,
    ) -> Steps[bool]:
        if (approval_id is None) == (idempotency_key is None):
            raise ConfigurationError(
                "cancel_approval takes the approval's id or the idempotency_key of the step that "
                "waits for it, and not both"
            )
        if approval_id is None:
            approval_id = session.asked.get(idempotency_key or "")
            if approval_id is None:
                raise ConfigurationError(
                    "no step of this chain waits for an approval under that idempotency_key: "
                    "give the approval's id, which GET /v1/approvals tells"
                )
        cancelled = yield from give_up(session.transport, approval_id, self._config, comment)
        for key, asked in tuple(session.asked.items()):
            if asked == approval_id:
                session.asked.pop(key, None)
        return cancelled

    def _open_session(self) -> Session:
        if self._session is None:
            raise RuntimeError("the chain is not open: use it inside `with` or `async with`")
        if self._left:
            raise RuntimeError("the chain was completed; open a new one for further actions")
        return self._session

    # -- reading -----------------------------------------------------------------------

    async def detail(self) -> ChainRecord:
        """The chain as the service describes it now, while it is open and afterwards."""
        return await get_chain(self._known_id(), config=self._config)

    def detail_sync(self) -> ChainRecord:
        """:meth:`detail` for code without an event loop."""
        refuse_in_loop("await detail()")
        return get_chain_sync(self._known_id(), config=self._config)

    def events(self) -> AsyncIterator[EventRecord]:
        """What was recorded, in order. Takes a member's key."""
        return events_of(self._known_id(), config=self._config)

    def events_sync(self) -> Iterator[EventRecord]:
        """:meth:`events` for code without an event loop."""
        refuse_in_loop("async for event in events()")
        return events_of_sync(self._known_id(), config=self._config)

    def _known_id(self) -> str:
        if self.id is None:
            raise RuntimeError(
                "the service does not know the chain: enter it first, or, where it was opened "
                "offline, wait until countersign.flush() is true"
            )
        return self.id

    # -- entering and leaving ----------------------------------------------------------

    async def __aenter__(self) -> Self:
        session = self._begin()
        await session.transport.run_async(session.open())
        self._enter_place()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session = self._leave_place()
        await finish(session.transport.run_async(self._leave(session, error)))

    def __enter__(self) -> Self:
        refuse_in_loop("async with Chain(...)")
        session = self._begin()
        session.transport.run(session.open())
        self._enter_place()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session = self._leave_place()
        session.transport.run(self._leave(session, error))

    def _begin(self) -> Session:
        if self._session is not None:
            raise RuntimeError("a chain is entered once; make a new Chain for another run")
        self._session = Session(self._config, self._opening)
        return self._session

    def _enter_place(self) -> None:
        if self._is_place:
            self._before = enter(self._place)

    def _leave_place(self) -> Session:
        session = self._open_session()
        self._left = True
        leave(self._place, self._before)
        self._before = None
        return session

    def _leave(self, session: Session, error: BaseException | None) -> Steps[None]:
        try:
            yield from session.leave(self._completion(error))
            session.check_latched()
        except Exception as fault:
            if error is None:
                raise
            # What went wrong first is what the caller must see.
            session.fail(fault)

    def _completion(self, error: BaseException | None) -> dict[str, Any]:
        if error is None:
            return {"outcome": "completed"}
        sanitizer = self._config._sanitizer
        try:
            message = sanitizer.prose(str(error))[:2000]
        except Exception:
            message = ""
        kind = name_of("error", type(error).__name__)
        return {"outcome": "failed", "error": {"type": kind, "message": message}}


class ChainPlace(Place):
    """An open chain as the place of governed calls. A denial is raised where it comes up, and
    nothing is latched: that is what a run adds."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.chain = chain

    @property
    def agent(self) -> str:
        return self.chain.name

    @property
    def session(self) -> Session | None:
        return None if self.chain._left else self.chain._session

    def check(self) -> None:
        pass

    def deny(self, error: Exception) -> Exception:
        return error
