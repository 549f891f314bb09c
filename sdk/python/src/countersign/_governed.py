"""``governed``: decide each call of a function before it runs, and report its outcome."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar, cast, overload

from countersign._action import name_of
from countersign._arguments import Arguments
from countersign._collector import watch_garbage_collection
from countersign._decision import PolicyDecision
from countersign._permit import OnDenial, Payload, Permit, Request
from countersign._redact import pointer_to
from countersign._scope import inherit_in_threads, scope_of_call
from countersign._wrappers import copy_metadata, wrapper_for
from countersign.exceptions import ConfigurationError

__all__ = ["Governed", "governed"]

F = TypeVar("F", bound="Callable[..., Any]")


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
    """Govern a function: each call is recorded and decided before it runs.

    Decorates functions, coroutine functions, sync and async generators, methods, callable objects
    and classes. Of a class it governs the public methods that the class itself defines. With a
    ``name`` it is also a sync or async context manager for a block. A call is recorded in the
    :class:`Chain` or :func:`governed_run` that is open around it, and refused if there is none.

    ``name`` defaults to the function's name and ``agent`` to the run's agent. The payload is the
    arguments by name, including defaults and without ``self``. ``payload`` is a function that makes
    another payload from them. Arguments that ``redact`` names are replaced by ``[REDACTED]``. With
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
    """What ``governed(...)`` returns: a decorator, or a context manager for one block."""

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
                "payload must be a function of the arguments or, for a block, a mapping"
            )
        self._name = None if name is None else name_of("name", name)
        self._action_type = name_of("action_type", action_type)
        self._agent = None if agent is None else name_of("agent", agent)
        self._payload = payload
        self._redact = frozenset(redact)
        self._tell_model = on_denial == "tell_model"
        self._block: Permit | None = None
        self._entered = False
        inherit_in_threads()
        watch_garbage_collection()

    # -- as a decorator --------------------------------------------------------------------

    def __call__(self, function: F) -> F:
        if isinstance(self._payload, Mapping):
            raise ConfigurationError(
                "payload is a mapping only for a block; for a function, pass a function that makes "
                "the payload from the arguments"
            )
        self._check_redact(function)
        return cast("F", self._wrap(function))

    def _check_redact(self, function: Any) -> None:
        """Refuse a name that no argument has: a slip in it would send what it should keep."""
        if not self._redact or self._payload is not None:
            return  # a payload has names of its own
        members = [function]
        if inspect.isclass(function):
            members = [m for m in _methods(function).values() if not _is_governed(m)]
        known = [Arguments(getattr(member, "__func__", member)).names for member in members]
        unknown = self._redact.difference(*(names for names in known if names is not None))
        if unknown and None not in known:
            raise ConfigurationError(
                f"redact names {', '.join(map(repr, sorted(unknown)))}, which is no argument of "
                f"{_name_of(function)}"
            )

    def _wrap(self, function: Any) -> Any:
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self._wrap(function.__func__))
        if inspect.isclass(function):
            return self._wrap_class(function)
        if not callable(function):
            raise TypeError(f"governed expects a callable, not {type(function).__name__}")
        if _is_governed(function):
            raise ConfigurationError(
                f"{_name_of(function)} is governed already: its calls would be recorded twice"
            )
        calls = _Calls(self, function)
        wrapper = wrapper_for(function)(calls.request, function)
        copy_metadata(wrapper, function, calls.name)
        _GOVERNED.add(wrapper)
        return wrapper

    def _wrap_class(self, owner: type) -> type:
        if self._name is not None:
            raise ConfigurationError("a class has several actions: do not pass name")
        methods = _methods(owner)
        for name in _unseen_methods(owner):
            raise ConfigurationError(
                f"{owner.__name__}.{name} is a {type(vars(owner)[name]).__name__} and would not be "
                "governed: decorate the function inside it"
            )
        for name, member in methods.items():
            if not _is_governed(member):
                setattr(owner, name, self._wrap(member))
        if not methods:
            raise ConfigurationError(
                f"{owner.__name__} defines no public method, and inherited methods are not "
                "governed: decorate the class that defines them"
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
            raise ConfigurationError("a governed block needs the action's name: pass name=")
        if self._tell_model:
            raise ConfigurationError(
                "a block has no result to tell a model: do not pass on_denial, catch the denial"
            )
        if callable(self._payload):
            raise ConfigurationError("the payload of a block is a mapping")
        if self._entered:
            raise RuntimeError("a block can be entered once: call governed(...) for each")
        self._entered = True
        payload = {} if self._payload is None else self._payload
        return self.request(self._name, payload, None, self.redactions(None))

    def redactions(self, spread: str | None) -> frozenset[str]:
        """Return the JSON pointers of the arguments that ``redact`` names, also among those of the
        ``**`` parameter with the name ``spread``."""
        paths = [[name] for name in self._redact]
        if spread is not None:
            paths += [[spread, name] for name in self._redact]
        return frozenset(map(pointer_to, paths))

    def request(
        self,
        name: str,
        arguments: Mapping[str, Any],
        payload_of: Payload | None,
        redact: Collection[str],
    ) -> Request:
        scope, session = scope_of_call(name)
        agent = self._agent or scope.agent
        return Request(
            scope,
            session,
            agent,
            self._action_type,
            name,
            arguments,
            payload_of,
            redact,
            self._tell_model,
        )


class _Calls:
    """The calls of one function."""

    def __init__(self, governed: Governed, function: Callable[..., Any]) -> None:
        self.name = governed._name or name_of("name", _name_of(function))
        self._governed = governed
        self._arguments = Arguments(function)
        self._redact = governed.redactions(self._arguments.spread)

    def request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        """Return the request for a call. Raises ``TypeError`` for wrong arguments, as the function
        itself would; nothing is recorded then."""
        made = self._governed._payload
        arguments = self._arguments.of(args, kwargs)
        payload_of = made if callable(made) else None
        return self._governed.request(self.name, arguments, payload_of, self._redact)


_GOVERNED: weakref.WeakSet[Any] = weakref.WeakSet()


def _is_governed(function: Any) -> bool:
    function = getattr(function, "__func__", function)
    try:
        return function in _GOVERNED
    except TypeError:
        return False  # not hashable or no weak references, so not one of our wrappers


def _methods(owner: type) -> dict[str, Any]:
    """Return the public methods that a class itself defines."""
    return {
        name: member
        for name, member in vars(owner).items()
        if (name == "__call__" or not name.startswith("_")) and _is_method(member)
    }


def _unseen_methods(owner: type) -> Iterator[str]:
    """Yield the names of public methods that are no plain functions, such as cached ones, and
    whose function is not governed."""
    for name, member in vars(owner).items():
        if name.startswith("_") or _is_method(member) or inspect.isclass(member):
            continue
        if isinstance(member, functools.singledispatchmethod):
            functions = list(member.dispatcher.registry.values())
        elif isinstance(member, functools.partialmethod):
            functions = [member.func]
        elif callable(member) and hasattr(type(member), "__get__"):
            functions = [getattr(member, "__wrapped__", member)]
        else:
            continue
        if not all(map(_is_governed, functions)):
            yield name


def _is_method(member: Any) -> bool:
    return inspect.isfunction(member) or isinstance(member, (staticmethod, classmethod))


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__
