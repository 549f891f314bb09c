"""Every exception that the library raises on purpose.

::

    PolicyError                      a policy stands against the action
    ├── ActionDeniedError            a policy or a reviewer denied it
    │   └── ApprovalTimedOutError    nobody decided in time
    ├── PolicyViolationError         found after the action was decided offline
    └── KillSwitchActiveError        the organization has stopped everything
    BackendUnavailableError          the service is unreachable and the fail mode is deny
    ChainTimeoutError                the chain ran longer than it may
    ChainAutoPausedError             too many events, too long, or too many tokens
    APIError                         the service answered with anything but a decision
    ConfigurationError               a parameter of this library is wrong (a ValueError)

All but the last two carry the decision they rest on, where there is one. All of them
can be pickled and copied.

>>> issubclass(ApprovalTimedOutError, PolicyError), issubclass(ChainTimeoutError, PolicyError)
(True, False)
"""

from __future__ import annotations

from typing import Any

from countersign._decision import PolicyDecision

__all__ = [
    "APIError",
    "ActionDeniedError",
    "ApprovalTimedOutError",
    "BackendUnavailableError",
    "ChainAutoPausedError",
    "ChainTimeoutError",
    "ConfigurationError",
    "KillSwitchActiveError",
    "PolicyError",
    "PolicyViolationError",
]


class _Decided:
    """What the exceptions about an action share; not an exception to catch."""

    message: str
    decision: PolicyDecision | None

    def __init__(self, message: str = "", decision: PolicyDecision | None = None) -> None:
        # Both reach BaseException.args, from which pickle and copy rebuild.
        super().__init__(message, decision)  # type: ignore[call-arg]
        self.message = message
        self.decision = decision

    def __str__(self) -> str:
        return self.message


class PolicyError(_Decided, Exception):
    """A policy stands against the action. Base of the denials."""


class ActionDeniedError(PolicyError):
    """A policy or a human reviewer denied the action: it must not be carried out."""


class ApprovalTimedOutError(ActionDeniedError):
    """Nobody decided within the approval's time. The request is no longer valid."""


class PolicyViolationError(PolicyError):
    """An action that was decided in this process without a lease, while the service was
    unreachable, would have been decided more strictly by the service. The action has happened;
    the next one was stopped to say so."""


class KillSwitchActiveError(PolicyError):
    """The organization's kill switch is active: nothing may be done."""


class BackendUnavailableError(_Decided, Exception):
    """The service is unreachable and the fail mode of the action's category is ``deny``."""


class ChainTimeoutError(_Decided, Exception):
    """The chain exceeded its configured timeout."""


class ChainAutoPausedError(_Decided, Exception):
    """An auto-pause rule fired: events, duration or tokens. An admin can resume the chain."""


class APIError(Exception):
    """The service answered, and not with a decision: the action must not be carried out. What
    could pass, such as 429, was tried again within the time-out first.

    ``status`` is the HTTP status, ``code`` the stable name to branch on, ``errors`` names
    faulty fields, and ``request_id`` finds the request in the service's log.
    """

    def __init__(
        self,
        message: str,
        status: int = 0,
        code: str = "",
        request_id: str | None = None,
        errors: tuple[dict[str, Any], ...] = (),
    ) -> None:
        super().__init__(message, status, code, request_id, errors)
        self.message = message
        self.status = status
        self.code = code
        self.request_id = request_id
        self.errors = errors

    def __str__(self) -> str:
        return self.message


class ConfigurationError(ValueError):
    """A parameter is missing or wrong. The message names it and says what to do."""
