"""The Chain, the central class of the public API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from countersign import _validate as check
from countersign._action import Action, name_of
from countersign._approvals import cancel, wait_for_release
from countersign._client import Client, client_of
from countersign._config import ChainConfig
from countersign._decision import PolicyDecision
from countersign._loops import refuse_in_loop, run_to_completion
from countersign._metadata import chain_metadata
from countersign._scope import Scope, enter, leave
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

__all__ = ["Chain", "ChainScope"]


class Chain:
    """A workflow whose actions are governed and which ends with a receipt.

    Use it as an async or sync context manager. Entering opens the chain and leaving completes it;
    an exception marks it as failed. The limits override those of :func:`init` for this chain.

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

    _is_scope = True
    """Whether governed calls inside the context are recorded in this chain."""

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
        self._closed = False
        self._scope: ChainScope
        self._previous_scope: Scope | None = None  # restored on leaving

    def __repr__(self) -> str:
        return f"Chain({self.name!r}, id={self.id!r})"

    @property
    def id(self) -> str | None:
        """The id that the service assigned. It is set on entry; a chain that was opened offline
        gets it once the service can be reached."""
        return self._session.id if self._session else None

    @property
    def receipt(self) -> dict[str, Any] | None:
        """The signed receipt. It is set on leaving; a chain that was completed offline gets it once
        the service can be reached."""
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
        """Record an action before it is carried out. Returns once it may be.

        Waits while a reviewer decides. Raises if the action must not be carried out; see
        :mod:`countersign.exceptions`. ``payload`` is sanitized before it leaves the process.
        A step that may be replayed is recorded once if it always has the same ``idempotency_key``.
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
        try:
            decision = session.decide_locally(action)
            if decision is not None:
                return decision
            return await session.transport.run_async(session.record(action))
        except Exception as error:
            session.latch(error)
            raise

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
        try:
            decision = session.decide_locally(action)
            if decision is not None:
                return decision
            return session.transport.run(session.record(action))
        except Exception as error:
            session.latch(error)
            raise

    async def record_outcome(
        self,
        decision: PolicyDecision,
        outcome: Literal["succeeded", "failed", "unknown"],
        detail: str | None = None,
    ) -> bool:
        """Report the outcome of an allowed action. Returns whether the service recorded it; an
        outcome is not queued while the service is unreachable."""
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
        """Wait for an approval that an earlier run of the process requested."""
        session = self._open_session()
        steps = wait_for_release(session.transport, approval_id, self._config)
        try:
            return await session.transport.run_async(steps)
        except Exception as error:
            session.latch(error)
            raise

    def wait_for_approval_sync(self, approval_id: str) -> PolicyDecision:
        """:meth:`wait_for_approval` for code without an event loop."""
        refuse_in_loop("await wait_for_approval(...)")
        session = self._open_session()
        steps = wait_for_release(session.transport, approval_id, self._config)
        try:
            return session.transport.run(steps)
        except Exception as error:
            session.latch(error)
            raise

    async def cancel_approval(
        self,
        approval_id: str | None = None,
        *,
        idempotency_key: str | None = None,
        comment: str | None = None,
    ) -> bool:
        """Cancel an approval that a step of this chain waits for, or waited for until the wait was
        interrupted.

        The approval is named by its id or by the step's ``idempotency_key``. Returns true once it
        is cancelled, and false if it was already decided or its time had run out.
        """
        session = self._open_session()
        return await session.transport.run_async(
            self._cancel_steps(session, approval_id, idempotency_key, comment)
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
            self._cancel_steps(session, approval_id, idempotency_key, comment)
        )

    def _cancel_steps(
        self,
        session: Session,
        approval_id: str | None,
        idempotency_key: str | None,
        comment: str | None,
    ) -> Steps[bool]:
        if (approval_id is None) == (idempotency_key is None):
            raise ConfigurationError(
                "cancel_approval takes either the approval's id or the idempotency_key of the step "
                "that waits for it"
            )
        if approval_id is None:
            approval_id = session.pending_approvals.get(idempotency_key or "")
            if approval_id is None:
                raise ConfigurationError(
                    "no step of this chain waits for an approval under that idempotency_key: "
                    "pass the approval's id, which GET /v1/approvals lists"
                )
        cancelled = yield from cancel(session.transport, approval_id, self._config, comment)
        for key, asked in tuple(session.pending_approvals.items()):
            if asked == approval_id:
                session.pending_approvals.pop(key, None)
        return cancelled

    def _open_session(self) -> Session:
        if self._session is None:
            raise RuntimeError("the chain is not open: use it inside `with` or `async with`")
        if self._closed:
            raise RuntimeError("the chain was completed; open a new chain for further actions")
        return self._session

    # -- reading -----------------------------------------------------------------------

    async def detail(self) -> ChainRecord:
        """Return the chain's current record. Works while it is open and afterwards."""
        return await get_chain(self._known_id(), config=self._config)

    def detail_sync(self) -> ChainRecord:
        """:meth:`detail` for code without an event loop."""
        refuse_in_loop("await detail()")
        return get_chain_sync(self._known_id(), config=self._config)

    def events(self) -> AsyncIterator[EventRecord]:
        """Iterate over the recorded events, in order. Needs a member's key."""
        return events_of(self._known_id(), config=self._config)

    def events_sync(self) -> Iterator[EventRecord]:
        """:meth:`events` for code without an event loop."""
        refuse_in_loop("async for event in events()")
        return events_of_sync(self._known_id(), config=self._config)

    def _known_id(self) -> str:
        if self.id is None:
            raise RuntimeError(
                "the service does not know the chain: enter it first or, if it was opened "
                "offline, wait until countersign.flush() returns True"
            )
        return self.id

    # -- entering and leaving ----------------------------------------------------------

    async def __aenter__(self) -> Self:
        session = self._start_session()
        await session.transport.run_async(session.open())
        self._enter_scope()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session = self._leave_scope()
        await run_to_completion(session.transport.run_async(self._leave(session, error)))

    def __enter__(self) -> Self:
        refuse_in_loop("async with Chain(...)")
        session = self._start_session()
        session.transport.run(session.open())
        self._enter_scope()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session = self._leave_scope()
        session.transport.run(self._leave(session, error))

    def _start_session(self) -> Session:
        if self._session is not None:
            raise RuntimeError("a chain can be entered once; make a new Chain for another run")
        self._session = Session(self._config, self._opening)
        # Here, because it belongs to the process that opens the chain, which may be a forked one.
        self._scope = ChainScope(self)
        return self._session

    def _enter_scope(self) -> None:
        if self._is_scope:
            self._previous_scope = enter(self._scope)

    def _leave_scope(self) -> Session:
        session = self._open_session()
        self._closed = True
        leave(self._scope, self._previous_scope)
        self._previous_scope = None
        return session

    def _leave(
        self, session: Session, error: BaseException | None, *, stays_open: bool = False
    ) -> Steps[None]:
        try:
            yield from session.leave(None if stays_open else self._completion(error))
            session.check_latched()
        except Exception as fault:
            if error is None:
                raise
            # The caller must see the first error.
            session.fail(fault)

    def _completion(self, error: BaseException | None) -> dict[str, Any]:
        if error is None:
            return {"outcome": "completed"}
        sanitizer = self._config._sanitizer
        try:
            message = sanitizer.prose(str(error))[:2000]
        except Exception:
            message = ""
        # A class that a program makes may have a blank name, which the service refuses.
        names = (cls.__name__ for cls in type(error).__mro__)
        kind = name_of("error", next(n for n in names if n.isprintable() and n.strip()))
        return {"outcome": "failed", "error": {"type": kind, "message": message}}


class ChainScope(Scope):
    """The scope of governed calls inside an open chain. A denial is raised by its call and is not
    latched; a run adds that."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.chain = chain

    @property
    def agent(self) -> str:
        return self.chain.name

    @property
    def session(self) -> Session | None:
        return None if self.chain._closed else self.chain._session

    def check(self) -> None:
        pass

    def deny(self, error: Exception) -> Exception:
        return error
