"""A run, its steps, and the denial that ends it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from countersign._chain import Chain, ChainScope
from countersign._client import transport_of
from countersign._clock import Moment, is_fresh
from countersign._collector import watch_garbage_collection
from countersign._decision import PolicyDecision
from countersign._enforce import arguments_changed
from countersign._loops import in_event_loop
from countersign._scope import entered, inherit_in_threads
from countersign._steps import until
from countersign.adapters._content import Content
from countersign.adapters._outcomes import Ending, Outcomes, ending_of
from countersign.adapters._threads import blocking

__all__ = ["Run", "Step", "current_run", "run_of_call", "step_key", "usage_of"]


@dataclass(frozen=True)
class Step:
    """One action of an agent, as it is recorded before it is carried out."""

    agent_name: str
    action_type: str
    action_name: str
    payload: Mapping[str, Any]
    parent_agent_name: str | None = None
    metadata: Mapping[str, Any] | None = None
    key: str | None = None
    """The step's own identity: the same when the framework replays it. See :func:`step_key`."""

    @property
    def has_body(self) -> bool:
        """Whether something is carried out that ends: a tool or a model call."""
        return self.action_type not in ("state_update", "llm_usage")

    def _given(self, content: Content) -> tuple[Any, ...]:
        return self.agent_name, self.action_type, self.action_name, content.value

    def _named(self) -> dict[str, Any]:
        return {
            "parent_agent_name": self.parent_agent_name,
            "metadata": self.metadata,
            "idempotency_key": self.key,
        }


class Run(ChainScope):
    """One governed run: everything that happens within the outermost call of a framework.

    Safe to use from several threads and event loops.
    """

    def __init__(
        self,
        chain: Chain,
        convert_error: Callable[[Exception], Exception] | None = None,
        benign: tuple[type[BaseException], ...] = (),
        ending: Callable[[BaseException | None], Ending | None] = ending_of,
    ) -> None:
        super().__init__(chain)
        inherit_in_threads(_CURRENT)
        watch_garbage_collection()
        self.benign: tuple[type[BaseException], ...] = (GeneratorExit, *benign)
        """What leaves a run without having failed. A consumer that leaves a stream early has
        had enough; some frameworks raise to steer."""
        self.paused = False
        """Set by an adapter whose framework stopped midway to be resumed: the chain stays open."""
        self.find_pause: Callable[[], bool] | None = None
        """Set where only the framework's store tells that, which is asked when the run is left."""
        self.denial: Exception | None = None
        """What ended the run; the first one stands."""
        self.outcomes = Outcomes(chain)
        self.ending = ending
        """How a body ended that raised an error, or none; nothing if it is to be resumed."""
        self._convert_error = convert_error
        self._attempts: dict[str, int] = {}
        self._decisions: dict[str, Future[PolicyDecision]] = {}
        self._asked: dict[str, Moment] = {}
        self._clock = transport_of(chain._config).clock
        self._lock = threading.Lock()
        # How many actions the chain had when this run began: a run that is resumed has some.
        self._before = getattr(chain, "recorded_before", 0)
        self.branch: str = getattr(chain, "branch", "")

    def check(self) -> None:
        """Raise if the run was denied, is over or belongs to another process. Every hook calls it
        before anything else."""
        if self.denial is not None:
            raise self._as_raised(self.denial)
        if not self.is_open():
            raise self._as_raised(RuntimeError(_not_open_text(self)))

    def deny(self, error: Exception) -> Exception:
        """Latch an error that ends the run; returns what the hook is to raise. Whatever keeps an
        action from being recorded ends the run: an unrecorded action must not be carried out."""
        if self.denial is None:
            self.denial = error
        return self._as_raised(error)

    def _as_raised(self, error: Exception) -> Exception:
        """The error as the framework lets it pass."""
        return self._convert_error(error) if self._convert_error else error

    # -- recording -------------------------------------------------------------------

    def record(self, step: Step) -> PolicyDecision:
        """Record a step and return when it may be carried out. Blocks the calling thread while
        a reviewer decides, and no other."""
        self.check()
        # On a thread whose loop runs, waiting for one of its own tasks would never end.
        may_wait = not in_event_loop()
        decision, is_ours = self._begin(step.key, may_wait)
        while not is_ours and _is_cut_off(decision):
            decision, is_ours = self._begin(step.key, may_wait)
        if is_ours:
            content = Content(step.payload)
            try:
                decided = blocking(self._record, step, content)
                if may_have_run := self._may_have_run(step, decided):
                    self.outcomes.report_unknown(decided)
            except BaseException as error:
                self._fail(step.key, decision, error)
            else:
                refusal = self._resolve(step, decision, decided, content)
                if refusal is not None and step.has_body and not may_have_run:
                    self.outcomes.begin(decided)
                    self.outcomes.end(decided, ending_of(refusal))
        return self._result(step, decision)

    async def record_async(self, step: Step) -> PolicyDecision:
        """:meth:`record` on the running event loop, which goes on meanwhile."""
        self.check()
        decision, is_ours = self._begin(step.key)
        while not is_ours:
            if not decision.done():
                await until(decision)  # type: ignore[arg-type]
            if not _is_cut_off(decision):
                break
            decision, is_ours = self._begin(step.key)
        if is_ours:
            content = Content(step.payload)
            try:
                decided = await self.chain.record_agent_action(
                    *step._given(content), **step._named()
                )
                if may_have_run := self._may_have_run(step, decided):
                    await self.outcomes.report_unknown_async(decided)
            except BaseException as error:
                self._fail(step.key, decision, error)
            else:
                refusal = self._resolve(step, decision, decided, content)
                if refusal is not None and step.has_body and not may_have_run:
                    self.outcomes.begin(decided)
                    await self.outcomes.end_async(decided, ending_of(refusal))
        return self._result(step, decision)

    @contextmanager
    def performing(self, step: Step) -> Iterator[Step]:
        """Record the next run of a step's body, which the block carries out, and report how it
        ended. Gives the step as it was recorded."""
        attempt = self._attempt(step)
        decision = self.record(attempt)
        try:
            yield attempt
        except BaseException as error:
            if ending := self._ended(step, error):
                self.outcomes.end(decision, ending)
            raise
        self.outcomes.end(decision, ending_of(None))

    @asynccontextmanager
    async def performing_async(self, step: Step) -> AsyncIterator[Step]:
        """:meth:`performing` on the running event loop."""
        attempt = self._attempt(step)
        decision = await self.record_async(attempt)
        try:
            yield attempt
        except BaseException as error:
            if ending := self._ended(step, error):
                await self.outcomes.end_async(decision, ending)
            raise
        await self.outcomes.end_async(decision, ending_of(None))

    def attempt(self, key: str) -> str:
        """The key of the next run of a body: each has a record of its own. A run that resumes
        this one counts anew, and finds the records."""
        with self._lock:
            nth = self._attempts[key] = self._attempts.get(key, 0) + 1
        return step_key(self.branch, key, nth) if self.branch else step_key(key, nth)

    def _attempt(self, step: Step) -> Step:
        self.check()  # first: in a forked child the lock may be held for ever
        return step if step.key is None else replace(step, key=self.attempt(step.key))

    def _ended(self, step: Step, error: BaseException) -> Ending | None:
        ending = self.ending(error)
        if ending is None and step.key is not None:
            with self._lock:  # it is resumed under its own record
                self._attempts[step.key] -= 1
        return ending

    def _record(self, step: Step, content: Content) -> PolicyDecision:
        return self.chain.record_agent_action_sync(*step._given(content), **step._named())

    def _may_have_run(self, step: Step, decided: PolicyDecision) -> bool:
        """Whether an earlier call, whose run this one goes on with, may have begun the body. One
        that was released only now has not."""
        session = self.chain._session
        if not step.has_body or session is None or decided.sequence is None:
            return False
        return decided.sequence <= self._before and step.key not in session.released_keys

    def _begin(self, key: str | None, may_wait: bool = True) -> tuple[Future[PolicyDecision], bool]:
        """The decision on a step, and whether it is ours to get. A step that was decided, or
        that another branch is asking about just now, is not asked about again, unless what was
        allowed then need not be allowed any more. Its key keeps it from being recorded twice.

        If another branch is cut off before it has the decision, call this again.
        """
        if key is None:
            return Future(), True
        with self._lock:
            earlier = self._decisions.get(key)
            outdated = earlier is not None and self._is_outdated(key, earlier)
            if earlier is not None and not outdated and (may_wait or earlier.done()):
                return earlier, False
            ours: Future[PolicyDecision] = Future()
            if earlier is None or outdated:
                self._decisions[key] = ours
                self._asked[key] = self._clock.now()
            return ours, True

    def _is_outdated(self, key: str, decision: Future[PolicyDecision]) -> bool:
        """Whether a permission has run out. A denial never does."""
        if not decision.done() or decision.cancelled() or decision.exception() is not None:
            return False
        return not is_fresh(self._asked[key], self._clock.now())

    def _resolve(
        self,
        step: Step,
        decision: Future[PolicyDecision],
        decided: PolicyDecision,
        content: Content,
    ) -> Exception | None:
        """Let the step be carried out. Returns the error if it must not be, although it was
        allowed."""
        refusal: Exception | None = None
        if self.denial is not None:
            # Another branch was denied while this one waited.
            refusal = self.denial
        elif content.read_again() != content.value:
            refusal = arguments_changed(step.action_name, decided)
        if refusal is None:
            decision.set_result(decided)
        else:
            decision.set_exception(refusal)
        return refusal

    def _fail(
        self, key: str | None, decision: Future[PolicyDecision], error: BaseException
    ) -> None:
        if not isinstance(error, Exception):
            # Cut off, not refused: it may be asked again.
            with self._lock:
                if self._decisions.get(key or "") is decision:
                    del self._decisions[key or ""]
            decision.cancel()
            raise error
        decision.set_exception(error)

    def _result(self, step: Step, decision: Future[PolicyDecision]) -> PolicyDecision:
        try:
            decided = decision.result()
        except Exception as error:
            raise self.deny(error) from error
        if step.has_body:
            self.outcomes.begin(decided)
        return decided

    # -- context ---------------------------------------------------------------------

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the current run of the context, for the length of the block. A generator
        must not yield within it: its consumer's code would run in the same context."""
        token = _CURRENT.set(self)
        try:
            with entered(self):  # governed functions are part of the run
                yield
        finally:
            _CURRENT.reset(token)

    def _final_error(self, error: BaseException | None) -> BaseException | None:
        """What the outermost call ends with: the denial, whatever became of it inside. A
        cancellation or an interrupt is kept."""
        if self.denial is None or (error is not None and not isinstance(error, Exception)):
            return error
        return self.denial


def _is_cut_off(decision: Future[PolicyDecision]) -> bool:
    """Whether the branch that asked for a decision was cancelled or interrupted. Blocks until the
    decision is there."""
    try:
        decision.exception()
    except CancelledError:
        return True
    return False


_CURRENT: ContextVar[Run | None] = ContextVar("countersign_run", default=None)


def current_run() -> Run | None:
    """The run that this code is part of, if it still goes on. A context may outlive its run."""
    run = _CURRENT.get()
    return run if run is not None and run.is_open() else None


def run_of_call() -> Run | None:
    """:func:`current_run` for a wrapped method. What a run started and is no part of it any more
    is refused: its work after it has ended, and what a forked process does, whose denial the run
    would not learn of."""
    run = _CURRENT.get()
    if run is not None and not run.is_open():
        raise run._as_raised(RuntimeError(_not_open_text(run)))
    return run


def _not_open_text(run: Run) -> str:
    if run._process != os.getpid():
        return (
            f"nothing was carried out: the run of {run.chain.name!r} belongs to another process. "
            "Call a governed object in this process, which opens a new chain"
        )
    ended = "was interrupted and waits to be resumed" if run.paused else "has ended"
    return (
        f"nothing was carried out: the run of {run.chain.name!r} that this is part of {ended}. "
        "Wait within a run for what it starts, or call a governed object, which opens a new chain"
    )


_SORTED = json.JSONEncoder(sort_keys=True, default=str)
_PLAIN = frozenset((str, int, type(None)))


def step_key(*parts: Any) -> str:
    """An idempotency key from what identifies a step.

    >>> step_key("thread", 3, {"b": 1, "a": 2}) == step_key("thread", 3, {"a": 2, "b": 1})
    True
    >>> step_key("thread", 3) == step_key("thread", 4)
    False
    """
    # By content, and never by repr(): an address in it would make the key another one in the next
    # process. What has no content that can be read makes a key that is no other's.
    content = parts if _PLAIN.issuperset(map(type, parts)) else Content(parts).value
    try:
        text = _SORTED.encode(content)
    except TypeError:  # keys of several types have no order
        text = json.dumps(content, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:40]


def usage_of(call: Step, model: str, input_tokens: int, output_tokens: int) -> Step:
    """What a model call took, known only afterwards: a step of its own, from which the service
    computes the cost."""
    usage = {"model": model, "input_tokens": input_tokens, "output_tokens": output_tokens}
    return Step(
        agent_name=call.agent_name,
        action_type="llm_usage",
        action_name=call.action_name,
        payload={},
        parent_agent_name=call.parent_agent_name,
        metadata=usage,
        key=step_key(call.key, "usage") if call.key else None,
    )
