"""Interpreting answers: a result, an error, or a service that cannot be reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Any

from countersign._clients import Unreachable
from countersign._steps import Reply
from countersign.exceptions import APIError

__all__ = ["is_retryable", "read", "retry_after"]

_GATEWAY = frozenset((502, 503, 504))
_TEMPORARY = frozenset((408, 425, 429))
# An operator has to look at the service first, so retrying does not help.
_PERMANENT = frozenset(("evidence_tampered", "store_rolled_back"))
_LONGEST_PAUSE = 3600.0  # seconds


def read(reply: Reply) -> dict[str, Any]:
    """Return the JSON object of a successful answer.

    Raises ``APIError`` for any other answer of the service, and ``Unreachable`` if a proxy could
    not reach it or it has lost its storage.
    """
    try:
        answer = json.loads(reply.body)
    except (ValueError, RecursionError):
        answer = None
    if 200 <= reply.status < 300:
        if isinstance(answer, dict):
            return answer
        raise APIError(
            f"the answer {reply.status} was not a JSON object; is backend_url the service's?",
            reply.status,
        )
    refusal = _refusal(reply, answer if isinstance(answer, dict) else {})
    if (reply.status in _GATEWAY and not refusal.code) or (
        reply.status == 503 and refusal.code == "storage_unavailable"
    ):
        raise Unreachable(f"the service answered {reply.status}")
    raise refusal


def is_retryable(error: APIError) -> bool:
    """Whether the same request may succeed a little later."""
    if error.code in _PERMANENT:
        return False
    return error.status in _TEMPORARY or error.status >= 500 or 200 <= error.status < 300


def retry_after(reply: Reply, now: float) -> float:
    """Return how many seconds the Retry-After header says to wait; 0 without one. ``now`` is the
    wall clock."""
    told = reply.headers.get("retry-after")
    if told is None:
        return 0.0
    try:
        seconds = float(told)
    except ValueError:
        seconds = _seconds_until(told, reply.headers.get("date"), now)
    # NaN compares with nothing, and no pause is that long.
    return min(max(seconds, 0.0), _LONGEST_PAUSE) if seconds == seconds else 0.0


def _seconds_until(date: str, answered: str | None, now: float) -> float:
    """Return the seconds from the answer to a date. Where the answer has a date of its own, both
    are of one clock, and this machine's may be wrong."""
    until = _timestamp(date)
    if until is None:
        return 0.0
    since = _timestamp(answered) if answered is not None else None
    return until - (now if since is None else since)


def _timestamp(date: str) -> float | None:
    """Return an HTTP date, in any of its three forms, in seconds; None for another text."""
    try:
        moment = parsedate_to_datetime(date)
    except (OverflowError, TypeError, ValueError):
        return None
    # One of the forms has no time zone: HTTP knows only one.
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _refusal(reply: Reply, problem: Mapping[str, Any]) -> APIError:
    detail = problem.get("detail") or problem.get("title") or "without a reason"
    if 300 <= reply.status < 400:
        detail = "with a redirect; set backend_url to where the service is"
    request_id = problem.get("request_id") or reply.headers.get("x-request-id")
    found = problem.get("errors")
    errors = tuple(e for e in found if isinstance(e, dict)) if isinstance(found, list) else ()
    named = "; ".join(f"{e.get('pointer', '')} {e.get('detail', '')}" for e in errors[:5])
    text = f"the service answered {reply.status}: {detail}" + (f" ({named})" if named else "")
    code = problem.get("code")
    return APIError(text, reply.status, code if isinstance(code, str) else "", request_id, errors)
