"""Governing any Python function: decided before its body runs, its outcome recorded after."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeVar, cast, overload

from countersign._action import Action, name_of
from countersign._arguments import Arguments
from countersign._decision import PolicyDecision
from countersign._loops import finish
from countersign._place import Place, inherit_in_threads, place_of_call
from countersign._plain import Snapshot
from countersign._session import Session
from countersign._steps import Steps
from countersign.exceptions import ActionDeniedError, ConfigurationError, PolicyViolationError

__all__ = ["Governed", "governed"]

logger = logging.getLogger("countersign")

F = TypeVar("F", bound="Callable[..., Any]")
OnDenial = Literal["raise", "tell_model"]
Payload = Callable[[dict[str, Any]], Mapping[str, Any]]

_CLOSED = "closed before its end"


@overload
def governed(function: F, /) -> F: ...


@overload
def governed(
    *,
    name: str | None = None,
    action_type: str = "tool_call",
    agent: str | None = None,
    payload: Payload | Mapping[str, Any] | None = None,
    redact: Collection[str] = (),
    on_denial: OnDenial = "raise",
) -> Governed: ...


def governed(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    action_type: str = "tool_call",
    agent: str | None = None,
    payload: Payload | Mapping[str, Any] | None = None,
    redact: Collection[str] = (),
    on_denial: OnDenial = "raise",
) -> Any:
    """Govern a function: each call is recorded and decided before the body runs.

    Decorates functions, coroutine functions, generators of both kinds, methods, callable objects
    and classes, of which it governs the public methods that the class itself defines. With a
    ``name`` it is a context manager for a block, sync or async. A call belongs to the chain or
    :func:`governed_run` that is open around it, and is refused where there is none.

    ``name`` is the action's name, the function's own by default, and ``agent`` the run's. The
    payload is the arguments by name, with defaults and without ``self``; ``payload`` makes another
    one of them, and the arguments that ``redact`` names are replaced by ``[REDACTED]``. With
    ``on_denial="tell_model"`` a denied call returns the denial's text instead of raising it.

    >>> import countersign
    >>> from countersign.testing import FakeService
    >>> @governed(agent="clerk", redact=["iban"])
    ... def pay(iban: str, amount_usd: float = 10) -> str:
    ...     return "paid"
    >>> with FakeService() as service:
    ...     config = countersign.init(**service.settings())
    ...     with countersign.governed_run("invoices"):
    ...         pay("DE00 0000")
    ...     service.events[0]["payload"], service.events[0]["outcome"]
    'paid'
    ({'iban': '[REDACTED]', 'amount_usd': 10}, 'succeeded')
    """
    made = Governed(
        name=name,
        action_type=action_type,
        agent=agent,
        payload=payload,
        redact=redact,
        on_denial=on_denial,
    )
    return made if function is None else made(function)


class Governed:
    """What ``governed(...)`` returns: a decorator, or the context manager of one block."""

    def __init__(
        self,
        *,
        name: str | None,
        action_type: str,
        agent: str | None,
        payload: Payload | Mapping[str, Any] | None,
        redact: Collection[str],
        on_denial: OnDenial,
    ) -> None:
        if on_denial not in ("raise", "tell_model"):
            raise ConfigurationError('on_denial must be "raise" or "tell_model"')
        if isinstance(redact, str):
            redact = (redact,)
        if payload is not None and not callable(payload) and not isinstance(payload, Mapping):
            raise ConfigurationError(
                "payload must be a function of the arguments, or, for a block, a mapping"
            )
        self._name = None if name is None else name_of("name", name)
        self._action_type = name_of("action_type", action_type)
        self._agent = None if agent is None else name_of("agent", agent)
        self._payload = payload
        self._redact = frozenset(redact)
        self._tells = on_denial == "tell_model"
        self._block: Permit | None = None
        self._entered = False
        inherit_in_threads()

    # -- as a decorator --------------------------------------------------------------------

    def __call__(self, function: F) -> F:
        if isinstance(self._payload, Mapping):
            raise ConfigurationError(
                "payload is a mapping for a block alone; for a function, give a function that "
                "makes the payload of its arguments"
            )
        return cast("F", self._wrap(function))

    def _wrap(self, function: Any) -> Any:
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self._wrap(function.__func__))
        if inspect.isclass(function):
            return self._class(function)
        if not callable(function):
            raise TypeError(f"governed takes a callable, not {type(function).__name__}")
        if _is_governed(function):
            raise ConfigurationError(
                f"{_name_of(function)} is governed already: its calls would be recorded twice"
            )
        call = _Calls(self, function)
        form = _form_of(function)
        wrapper = form(call, function)
        _disguise(wrapper, function, call.name)
        _GOVERNED.add(wrapper)
        return wrapper

    def _class(self, owner: type) -> type:
        if self._name is not None:
            raise ConfigurationError("a class has many actions: leave out name")
        found = False
        for name, member in tuple(vars(owner).items()):
            if (name.startswith("_") and name != "__call__") or not _is_method(member):
                continue
            found = True
            inner = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
            if not _is_governed(inner):
                setattr(owner, name, self._wrap(member))
        if not found:
            raise ConfigurationError(
                f"{owner.__name__} defines no public method: what it inherits is not governed. "
                "Decorate the class that defines the methods"
            )
        return owner

    # -- as a context manager --------------------------------------------------------------

    def __enter__(self) -> PolicyDecision:
        permit = self._begin_block().decide()
        assert isinstance(permit, Permit)
        self._block = permit
        return permit.decision

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        permit = self._block
        assert permit is not None
        permit.end(error)

    async def __aenter__(self) -> PolicyDecision:
        permit = await self._begin_block().decide_async()
        assert isinstance(permit, Permit)
        self._block = permit
        return permit.decision

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        permit = self._block
        assert permit is not None
        await permit.end_async(error)

    def _begin_block(self) -> Request:
        if self._name is None:
            raise ConfigurationError("a governed block needs the action's name: name=...")
        if self._tells:
            raise ConfigurationError(
                "a block has no result to tell a model: leave on_denial out, and catch the denial"
            )
        if callable(self._payload):
            raise ConfigurationError("the payload of a block is a mapping")
        if self._entered:
            raise RuntimeError("a block is entered once: call governed(...) for each")
        self._entered = True
        return self.request(self._name, {} if self._payload is None else self._payload, None)

    def request(
        self, name: str, arguments: Mapping[str, Any], payload_of: Payload | None
    ) -> Request:
        place, session = place_of_call(name)
        agent = self._agent or place.agent
        return Request(
            place,
            session,
            agent,
            self._action_type,
            name,
            arguments,
            payload_of,
            self._redact,
            self._tells,
        )


class _Calls:
    """The calls of one function."""

    def __init__(self, governed: Governed, function: Callable[..., Any]) -> None:
        self.name = governed._name or name_of("name", _name_of(function))
        self._governed = governed
        self._arguments = Arguments(function)

    def request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        """A call that is about to be made. Arguments that do not fit raise ``TypeError``, as the
        function itself would; nothing is recorded then, as nothing can run."""
        made = self._governed._payload
        arguments = self._arguments.of(args, kwargs)
        return self._governed.request(self.name, arguments, made if callable(made) else None)


class Request:
    """One action, before it is decided."""

    def __init__(
        self,
        place: Place,
        session: Session,
        agent: str,
        action_type: str,
        name: str,
        arguments: Mapping[str, Any],
        payload_of: Payload | None,
        redact: Collection[str],
        tells: bool,
    ) -> None:
        self._place = place
        self._session = session
        self._agent = agent
        self._action_type = action_type
        self._name = name
        self._arguments = arguments
        self._payload_of = payload_of
        self._redact = redact
        self._tells = tells

    def decide(self) -> Permit | Denied:
        """Returns when the action may be carried out. Blocks while a person decides."""
        if _in_loop():
            error = RuntimeError(
                f"{self._name} is governed and was not called: it is a sync function, and waiting "
                "for its decision would stop the event loop that runs in this thread. Make it "
                "`async def`, or call it with `await asyncio.to_thread(...)`"
            )
            raise self._place.deny(error)
        return self._session.transport.run(self._deciding())

    async def decide_async(self) -> Permit | Denied:
        """:meth:`decide` on the running event loop."""
        return await self._session.transport.run_async(self._deciding())

    def _deciding(self) -> Steps[Permit | Denied]:
        self._place.check()
        session = self._session
        try:
            action = self._action()
            # Not of the payload: a function that makes one may make another the next time.
            before = Snapshot(self._arguments).value
            decision = session.decide_locally(action)
            if decision is None:
                decision = yield from session.record(action)
        except Exception as error:
            if self._tells and isinstance(error, ActionDeniedError):
                return Denied(str(error))
            raise self._place.deny(error) from error.__cause__
        permit = Permit(session, decision)
        try:
            self._place.check()  # another branch may have been denied during the wait
            if Snapshot(self._arguments).value != before:
                raise self._place.deny(self._changed(decision))
        except BaseException as error:
            # It was allowed, and will not be carried out.
            yield from permit.reporting("failed", type(error).__name__)
            raise
        return permit

    def _action(self) -> Action:
        arguments = self._arguments
        return Action(
            self._session.config._sanitizer,
            self._agent,
            self._action_type,
            self._name,
            self._payload_of(dict(arguments)) if self._payload_of else arguments,
            None,
            None,
            None,  # a key of its own: no two runs of a body share a record
            self._redact,
        )

    def _changed(self, decision: PolicyDecision) -> PolicyViolationError:
        return PolicyViolationError(
            f"the arguments of {self._name!r} changed while it waited: what was decided is not "
            "what would be carried out",
            decision,
        )


@dataclass(frozen=True)
class Denied:
    """A denial that is told to the model."""

    text: str


class Permit:
    """An action that may be carried out, once."""

    def __init__(self, session: Session, decision: PolicyDecision) -> None:
        self._session = session
        self.decision = decision

    def end(self, error: BaseException | None, detail: str | None = None) -> None:
        """Report what became of it. Never raises: the result is the caller's."""
        if _in_loop():
            # A generator that was begun in a thread and is closed on a loop.
            logger.warning("countersign: the outcome of an action was not recorded")
            return
        self._session.transport.run(self.reporting(*_outcome_of(error, detail)))

    async def end_async(self, error: BaseException | None, detail: str | None = None) -> None:
        """:meth:`end` on the running event loop. A cancelled task reports first."""
        steps = self.reporting(*_outcome_of(error, detail))
        await finish(self._session.transport.run_async(steps))

    def reporting(self, outcome: str, detail: str | None) -> Steps[None]:
        try:
            yield from self._session.report(self.decision, outcome, detail)
        except Exception as fault:
            logger.warning("countersign: the outcome of an action was not recorded: %s", fault)


def _outcome_of(error: BaseException | None, detail: str | None) -> tuple[str, str | None]:
    """How it ended: an error's type and never its text, which could hold anything."""
    if error is None:
        return "succeeded", detail
    # Cut off, by a cancellation or an interrupt: nobody knows how far it came.
    return "failed" if isinstance(error, Exception) else "unknown", type(error).__name__


# -- the forms of functions ----------------------------------------------------------------


def _form_of(function: Any) -> Callable[[_Calls, Any], Callable[..., Any]]:
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not (inspect.isroutine(inner) or inspect.isclass(inner)):
        inner = type(inner).__call__
    if inspect.isasyncgenfunction(inner):
        return _async_generator
    if inspect.isgeneratorfunction(inner):
        return _generator
    return _coroutine if inspect.iscoroutinefunction(inner) else _function


def _function(call: _Calls, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        request = call.request(args, kwargs)
        permit = request.decide()
        if isinstance(permit, Denied):
            return permit.text
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            permit.end(error)
            raise
        if inspect.iscoroutine(result):
            return _awaited(permit, result)
        permit.end(None)
        return result

    return wrapper


async def _awaited(permit: Permit, result: Awaitable[Any]) -> Any:
    try:
        value = await result
    except BaseException as error:
        await permit.end_async(error)
        raise
    await permit.end_async(None)
    return value


def _coroutine(call: _Calls, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        request = call.request(args, kwargs)
        permit = await request.decide_async()
        if isinstance(permit, Denied):
            return permit.text
        return await _awaited(permit, function(*args, **kwargs))

    return wrapper


def _generator(call: _Calls, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        request = call.request(args, kwargs)
        permit = request.decide()
        if isinstance(permit, Denied):
            yield permit.text
            return None
        try:
            result = yield from function(*args, **kwargs)
        except GeneratorExit:
            permit.end(None, _CLOSED)
            raise
        except BaseException as error:
            permit.end(error)
            raise
        permit.end(None)
        return result

    return wrapper


def _async_generator(call: _Calls, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        request = call.request(args, kwargs)
        permit = await request.decide_async()
        if isinstance(permit, Denied):
            yield permit.text
            return
        items: AsyncGenerator[Any, Any] = function(*args, **kwargs)
        try:
            item = await items.__anext__()
            while True:
                try:
                    sent = yield item
                except GeneratorExit:
                    await items.aclose()
                    raise
                except BaseException as error:
                    item = await items.athrow(error)
                else:
                    item = await items.asend(sent)
        except StopAsyncIteration:
            await permit.end_async(None)
        except GeneratorExit:
            await permit.end_async(None, _CLOSED)
            raise
        except BaseException as error:
            await permit.end_async(error)
            raise

    return wrapper


# -- names ---------------------------------------------------------------------------------

_GOVERNED: weakref.WeakSet[Any] = weakref.WeakSet()


def _is_governed(function: Any) -> bool:
    function = getattr(function, "__func__", function)
    try:
        return function in _GOVERNED
    except TypeError:
        return False  # not hashable, or without weak references: nothing that was made here


def _is_method(member: Any) -> bool:
    return inspect.isfunction(member) or isinstance(member, (staticmethod, classmethod))


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def _disguise(wrapper: Any, function: Any, name: str) -> None:
    """Let the wrapper look like what it wraps: frameworks read names, texts and signatures."""
    if inspect.isroutine(function):
        functools.update_wrapper(wrapper, function)
        return
    # An object's own attributes are none of a function's.
    functools.update_wrapper(wrapper, function, updated=())
    wrapper.__name__ = wrapper.__qualname__ = name
    if not isinstance(function, functools.partial):
        wrapper.__doc__ = inspect.getdoc(type(function).__call__) or inspect.getdoc(function)


def _in_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None
