"""What was recorded, and may be carried out once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import is_dataclass
from decimal import Decimal
from typing import Any

from countersign._decision import PolicyDecision
from countersign.adapters._mcp_chains import ChainSource, OpenChain

__all__ = ["Permit", "copy_of", "current_permit"]


class Permit:
    """One call that was recorded and allowed, with the arguments as they were then.

    A call comes through several gates on its way: the request's handler, the server's
    registry of tools, the tool's function. The first one records it, and the permit takes it
    through each of the others once, so that the same call is not recorded again, while a
    call that the tool makes in its turn is.
    """

    def __init__(
        self, source: ChainSource, name: str, arguments: Mapping[str, Any] | None, *, passed: str
    ) -> None:
        self.source = source
        self.part: OpenChain | None = None
        """The chain that it was recorded in."""
        self._name = name
        self._arguments = {k: copy_of(v) for k, v in (arguments or {}).items()}
        self._passed = {passed}
        self._uses = 0
        self._tools: list[Any] | None = []
        self.decision: PolicyDecision | None = None
        """What was decided about the call."""
        self.error: BaseException | None = None
        """What the body raised, before the SDK made something else of it."""

    def arguments(self) -> dict[str, Any]:
        """The arguments that were recorded: a copy, so that nobody can change them here."""
        return {name: copy_of(value) for name, value in self._arguments.items()}

    @property
    def in_use(self) -> bool:
        return self._uses > 0

    def covers(
        self,
        gate: str,
        source: ChainSource,
        name: str,
        arguments: Mapping[str, Any] | None,
        defaults: Mapping[str, Any] | None = None,
    ) -> bool:
        """Whether the call at this gate is the one that was recorded; true once per gate."""
        if source is not self.source or name != self._name or gate in self._passed:
            return False
        given = dict(arguments or {})
        if gate == "function":
            # Converted to the function's types, and with what the SDK adds.
            expected = {**(defaults or {}), **self._arguments}
            if not all(may_be(expected[k], v) for k, v in given.items() if k in expected):
                return False
        elif given != self._arguments:
            return False
        self._passed.add(gate)
        return True

    def expect_tool(self) -> None:
        """The server's registry is about to run the tool of the call."""
        self._tools = None

    def takes(self, tool: Any) -> bool:
        """Whether it is the tool of the call that is run here, or one that it was made of: not one
        that its body runs."""
        if self._tools is None:
            self._tools = [tool]
            while (tool := getattr(tool, "parent_tool", None)) is not None:
                self._tools.append(tool)
            return True
        return any(known is tool for known in self._tools)

    def hand_on(self, name: str) -> None:
        """The call goes on to another server's registry, under the name that it has there."""
        self._name = name
        self._passed.discard("manager")

    @contextmanager
    def used(self) -> Iterator[None]:
        """While the call is carried out. Afterwards the permit is worth nothing, also to a
        task that the tool has left behind."""
        token = _CURRENT.set(self)
        self._uses += 1
        try:
            yield
        except BaseException as error:
            if self.error is None:
                self.error = error
            raise
        finally:
            self._uses -= 1
            _CURRENT.reset(token)


_CURRENT: ContextVar[Permit | None] = ContextVar("countersign_mcp_permit", default=None)


def current_permit() -> Permit | None:
    """The permit of the call that is being carried out here."""
    permit = _CURRENT.get()
    return permit if permit is not None and permit.in_use else None


def may_be(recorded: Any, value: Any) -> bool:
    """Whether a function's argument may be what was recorded, converted to the function's type.

    >>> may_be(1, 1.0), may_be("5", 5), may_be(0.1, Decimal("0.1"))
    (True, True, True)
    >>> may_be(1, 9000), may_be({"to": "a"}, {"to": "b"}), may_be(None, 9000)
    (False, False, False)
    >>> may_be("5", 9000), may_be(5, "9000"), may_be("yes", True)
    (False, False, True)
    """
    if is_dataclass(value) or hasattr(type(value), "model_fields"):
        value = vars(value)
    if isinstance(recorded, Mapping) and isinstance(value, Mapping):
        return all(may_be(recorded[k], v) for k, v in value.items() if k in recorded)
    if isinstance(recorded, _LISTS) and isinstance(value, _LISTS):
        return len(recorded) == len(value) and all(map(may_be, recorded, value))
    if isinstance(recorded, _NUMBERS) and isinstance(value, _NUMBERS):
        return recorded == value or (type(recorded) is not type(value) and _equal(recorded, value))
    if isinstance(recorded, str) and isinstance(value, str):
        return recorded == value
    scalars = (str, *_NUMBERS)
    if isinstance(recorded, scalars) and isinstance(value, scalars) and not isinstance(value, bool):
        return _equal(recorded, value)
    return recorded is not None or not isinstance(value, scalars)


def _equal(one: Any, other: Any) -> bool:
    try:
        return float(one) == float(other)
    except (OverflowError, ValueError):
        return False


def copy_of(value: Any) -> Any:
    """A copy of what holds data. Anything else, such as a connection, is what it is."""
    is_data = isinstance(value, _DATA) or hasattr(type(value), "model_copy")
    return deepcopy(value) if is_data or is_dataclass(value) else value


_DATA = (Mapping, list, tuple, set, frozenset, bytearray)
_LISTS = (list, tuple)
_NUMBERS = (int, float, Decimal)
