"""Every exception that the library raises on purpose.

::

    PolicyError                      base of the policy errors below
    ├── ActionDeniedError            a policy or a reviewer denied it
    │   └── ApprovalTimedOutError    nobody decided in time
    ├── PolicyViolationError         the service is stricter about an action decided offline
    └── KillSwitchActiveError        the organization has stopped everything
    BackendUnavailableError          the service is unreachable and the fail mode is deny
    ChainTimeoutError                the chain ran longer than its limit
    ChainAutoPausedError             the chain reached a limit of events, duration or tokens
    APIError                         the service answered with an error instead of a decision
    ConfigurationError               a parameter of this library is invalid (a ValueError)

All except the last two have the ``decision`` that caused them, if there is one. All of them can be
pickled and copied.

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
    """Mixin of the exceptions about an action. Not to be caught."""

    message: str
    decision: PolicyDecision | None

    def __init__(self, message: str = "", decision: PolicyDecision | None = None) -> None:
        # Pickle and copy rebuild the exception from BaseException.args, so both must be in it.
        super().__init__(message, decision)  # type: ignore[call-arg]
        self.message = message
        self.decision = decision

    def __str__(self) -> str:
        return self.message


class PolicyError(_Decided, Exception):
    """Base of the errors that a policy causes."""


class ActionDeniedError(PolicyError):
    """A policy or a reviewer denied the action. It must not be carried out."""


class ApprovalTimedOutError(ActionDeniedError):
    """No reviewer decided before the approval timed out."""


class PolicyViolationError(PolicyError):
    """An earlier action does not comply with the policies: it was decided by the fail mode while
    the service was unreachable, and the service would have decided more strictly. That action has
    been carried out; the next call raises this error.

    Also raised if the arguments of a governed call change while it waits for a decision.
    """


class KillSwitchActiveError(PolicyError):
    """The organization's kill switch is active. No action may be carried out."""


class BackendUnavailableError(_Decided, Exception):
    """The service is unreachable and the fail mode of the action's category is ``deny``."""


class ChainTimeoutError(_Decided, Exception):
    """The chain ran longer than its limit."""


class ChainAutoPausedError(_Decided, Exception):
    """The chain was paused at a limit of events, duration or tokens. An admin can resume it."""


class APIError(Exception):
    """The service answered with an error instead of a decision. The action must not be carried out.
    Temporary errors, such as 429, are raised after retries within the timeout.

    ``status`` is the HTTP status, ``code`` a stable identifier to branch on, ``errors`` the invalid
    fields, and ``request_id`` identifies the request in the service's log.
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
    """A parameter is missing or invalid. The message names it and says what to do."""
