"""Turning the arguments of a call into the recorded payload."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Arguments"]

_RECEIVERS = ("self", "cls")
_PLACEHOLDER = getattr(functools, "Placeholder", object())
"""Leaves the place of an argument of a partial to its caller, since Python 3.14."""


class Arguments:
    """Names the arguments of one function's calls.

    >>> def pay(invoice, amount_usd=10, *notes, **more): ...
    >>> Arguments(pay).of((7,), {"note": "soon"})
    {'invoice': 7, 'amount_usd': 10, 'notes': (), 'more': {'note': 'soon'}}
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._given: tuple[Any, ...] = ()
        self._named: Mapping[str, Any] = {}
        while isinstance(function, functools.partial):
            # The signature of a partial does not show arguments that it fills by position.
            self._given = _filled(function.args, self._given)
            self._named = {**function.keywords, **self._named}
            function = function.func
        self.spread: str | None = None
        """The name under which :meth:`of` collects the arguments of a ``**`` parameter."""
        try:
            self._signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):
            self._signature = None  # some builtins have none
            self.spread = "kwargs"
        else:
            for parameter in self._signature.parameters.values():
                if parameter.kind is parameter.VAR_KEYWORD:
                    self.spread = parameter.name
        self._receiver = self._receiver_of(function)

    @property
    def names(self) -> frozenset[str] | None:
        """The names that :meth:`of` gives to arguments; None if callers may use others."""
        if self._signature is None or self.spread is not None:
            return None
        return frozenset(self._signature.parameters) - {self._receiver or ""}

    def _receiver_of(self, function: Callable[..., Any]) -> str | None:
        """Return the name of a method's ``self`` or ``cls`` parameter. A static method is defined
        in a class too, but has no parameter of that name."""
        if self._signature is None or not inspect.isfunction(function):
            return None
        outer, _, _ = function.__qualname__.rpartition(".")
        first = next(iter(self._signature.parameters), None)
        in_class = bool(outer) and not outer.endswith("<locals>")
        return first if in_class and first in _RECEIVERS else None

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by parameter name, including defaults. Raises ``TypeError`` if the
        function cannot be called with them."""
        args, kwargs = _filled(self._given, args), {**self._named, **kwargs}
        if any(value is _PLACEHOLDER for value in args):
            raise TypeError("missing positional arguments for the placeholders of a partial")
        if self._signature is None:
            return {"args": args, "kwargs": kwargs}
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return {name: value for name, value in bound.arguments.items() if name != self._receiver}


def _filled(given: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a partial followed by those of its call, of which the first fill its
    placeholders."""
    rest = iter(args)
    filled = [next(rest, value) if value is _PLACEHOLDER else value for value in given]
    return (*filled, *rest)
