"""Validation of the fake service's requests, by the client's own checks of parameters. It stops at
the first invalid member; the real service names all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from countersign import _validate as check
from countersign._canonical import canonical
from countersign._keys import Role, role_of
from countersign._redact import pointer_to
from countersign.exceptions import ConfigurationError
from countersign.testing._search import moment
from countersign.testing._wire import Invalid

__all__ = [
    "Check",
    "check_action",
    "check_batch",
    "check_cancellation",
    "check_completion",
    "check_issue",
    "check_opening",
    "check_outcome",
    "check_revocation",
    "choice",
]

_MAX_METADATA = 16 << 10  # bytes
_MAX_BATCH = 500  # events

Check = Callable[[str, Any], object]
"""Checks the value at a JSON pointer."""


def choice(*values: str) -> Check:
    def check_choice(at: str, value: Any) -> None:
        if value not in values:
            raise Invalid(at, f"must be one of {', '.join(values)}")

    return check_choice


def _form(required: Mapping[str, Check], optional: Mapping[str, Check]) -> Check:
    """Return the check of an object with these members. Null counts as not given."""
    known = {**required, **optional}

    def check_form(at: str, value: Any) -> None:
        _object(at, value)
        for name in required:
            if value.get(name) in (None, ""):
                raise Invalid(f"{at}/{name}", "is required")
        for name, member in value.items():
            pointer = at + pointer_to([name])
            if name not in known:
                raise Invalid(pointer, "is not a known field")
            try:
                if member is not None:
                    known[name](pointer, member)
            except ConfigurationError as error:
                raise Invalid(pointer, str(error).removeprefix(pointer).strip()) from None

    return check_form


def _object(at: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise Invalid(at, "must be an object")


def _anything(at: str, value: Any) -> None:
    pass


def _name(at: str, value: Any) -> None:
    check.label(at, value, 200)


def _text(at: str, value: Any) -> None:
    check.text(at, value, 200)


def _prose(at: str, value: Any) -> None:
    if not isinstance(value, str) or value.strip():
        check.text(at, value, 2000)


def _number(least: float, most: float) -> Check:
    return lambda at, value: check.number(at, value, least, most)


def _time(at: str, value: Any) -> datetime:
    found = moment(value) if isinstance(value, str) else None
    if found is None:
        raise Invalid(at, "must be an RFC 3339 timestamp between 1970 and 9999")
    return found


def _future(at: str, value: Any) -> None:
    # By the machine's clock, not by the records': callers compute the time from there.
    if _time(at, value) <= datetime.now(timezone.utc):
        raise Invalid(at, "must be in the future")


def _metadata(at: str, value: Any) -> None:
    _object(at, value)
    if len(canonical(value)) > _MAX_METADATA:
        raise Invalid(at, f"must be at most {_MAX_METADATA} bytes of JSON")


def _action_metadata(at: str, value: Any) -> None:
    _metadata(at, value)
    _counts(at, value)


def _counts(at: str, value: dict[str, Any]) -> None:
    """Check token counts: one that is no number would count as none."""
    for name, member in value.items():
        role, pointer = role_of(name), at + pointer_to([name])
        if role is Role.USAGE and isinstance(member, dict):
            _counts(pointer, member)
        elif role in (Role.INPUT, Role.OUTPUT) and not _is_count(member):
            raise Invalid(pointer, "must be a number of tokens, 0 or more, without a fraction")


def _is_count(value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return value is None
    return isinstance(value, (int, float)) and value >= 0 and value == int(value)


def _decided_here(at: str, value: Any) -> None:
    _name(at, value)
    if value in ("gap", "late_outcome"):
        raise Invalid(at, f"must not be {value}")


_ACTION: dict[str, Check] = {
    "agent_name": _name,
    "action_type": _name,
    "action_name": _name,
    "payload": _object,
}
_ABOUT_ACTION: dict[str, Check] = {
    "parent_agent_name": _name,
    "metadata": _metadata,
    "idempotency_key": _name,
    "executed_at": _time,
    "found": _object,
    "redactions": _object,
}
_check_reported = _form(
    {
        **_ACTION,
        "decision_source": choice("local_fast_path", "offline_stub"),
        "idempotency_key": _name,
    },
    {**_ABOUT_ACTION, "policy_decision": choice("allow", "allow_with_flag"), "lease_id": _anything},
)


def _reported(at: str, value: Any) -> None:
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_BATCH:
        raise Invalid(at, f"must have 1 to {_MAX_BATCH} elements")
    for i, event in enumerate(value):
        _check_reported(f"{at}/{i}", event)


_check_limits = _form(
    {},
    {
        "approval_timeout_hours": _number(1 / 3600, 8760),
        "chain_timeout_seconds": _number(0, 315_360_000),
        "cumulative_financial_threshold_action": choice("require_approval", "deny"),
        "cumulative_financial_threshold_usd": _number(0, 1e15),
        "external_domains_allowlist": check.domains,
        "financial_approval_threshold_usd": _number(0, 1e15),
        "high_risk_agents": lambda at, value: check.texts(at, value, 1000, 200),
        "notify": check.addresses,
    },
)
_check_named = _form(
    {},
    {
        "name": _name,
        "external_chain_id": _text,
        "environment": _name,
        "metadata": _metadata,
        "policy_config": _check_limits,
        "fallback_approvers": check.addresses,
        "organization_id": _anything,
    },
)


def check_opening(at: str, value: Any) -> None:
    _check_named(at, value)
    if value.get("name") is None and value.get("external_chain_id") is None:
        raise Invalid(f"{at}/name", "is required")


check_action = _form(
    {**_ACTION, "action_type": _decided_here}, {**_ABOUT_ACTION, "metadata": _action_metadata}
)
check_batch = _form({"events": _reported}, {})
check_outcome = _form({"outcome": choice("succeeded", "failed", "unknown")}, {"detail": _prose})
_check_failure = _form({"type": _name}, {"message": _prose})
_check_ending = _form({}, {"outcome": choice("completed", "failed"), "error": _check_failure})


def check_completion(at: str, value: Any) -> None:
    _check_ending(at, value)
    if value.get("error") is not None and value.get("outcome") != "failed":
        raise Invalid(f"{at}/error", 'goes with "outcome": "failed"')


check_cancellation = _form({}, {"comment": _prose})
check_issue = _form(
    {"artifact_type": choice("approval", "receipt"), "artifact_id": _text}, {"expires_at": _future}
)
check_revocation = _form({}, {"reason": _prose})
