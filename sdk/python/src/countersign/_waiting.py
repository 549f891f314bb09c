"""Reporting waits for approvals, in the log and to listeners."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote

from countersign._clock import Clock
from countersign._config import ChainConfig
from countersign._decision import PolicyDecision
from countersign._progress import ApprovalProgress

__all__ = ["Wait", "notify_of_waits"]

logger = logging.getLogger("countersign")

_LISTENER: ContextVar[Callable[[ApprovalProgress], object] | None] = ContextVar(
    "countersign_told_of_waits", default=None
)


@contextmanager
def notify_of_waits(listener: Callable[[ApprovalProgress], object] | None) -> Iterator[None]:
    """Report waits that begin inside the block to a listener, in addition to ``on_wait``."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


class Wait:
    """One wait for one approval. Only one thread or task at a time uses it."""

    def __init__(
        self,
        approval_id: str,
        config: ChainConfig,
        clock: Clock,
        known: PolicyDecision | None,
        action: str | None,
        chain_name: str | None,
    ) -> None:
        self._approval_id = approval_id
        self._config = config
        self._clock = clock
        self._began = clock.monotonic()
        self._chain_id = known.chain_id if known else None
        self._sequence = known.sequence if known else None
        self._action = action or "an action"
        self._chain_name = chain_name
        self._expires_at: str | None = None
        self._announced = False
        self._listeners = tuple(it for it in (config.on_wait, _LISTENER.get()) if it is not None)
        if known is not None:
            self._begin("pending")

    def go_on(self, approval: Mapping[str, Any]) -> None:
        """Called with each answer that says the approval is still pending."""
        self._chain_id = self._chain_id or _text(approval.get("chain_id"))
        if self._sequence is None and isinstance(approval.get("sequence"), int):
            self._sequence = approval["sequence"]
        if self._action == "an action" and isinstance(approval.get("action_name"), str):
            self._action = f"{approval.get('action_type')} {approval['action_name']!r}"
        self._expires_at = _text(approval.get("expires_at"))
        status = str(approval.get("status"))
        if self._announced:
            self._notify(status)
        else:
            self._begin(status)

    def end(self, status: str) -> None:
        """End the wait. An approval that was decided in the first answer is not reported."""
        if not self._announced:
            return
        waited = self._clock.monotonic() - self._began
        logger.warning(
            "countersign: %s after %.0f s: %s, %s",
            status.replace("_", " "),
            waited,
            self._action,
            self._where(),
        )
        self._notify(status)

    def _begin(self, status: str) -> None:
        self._announced = True
        logger.warning(
            "countersign: waiting for a person to decide %s, %s", self._action, self._where()
        )
        self._notify(status)

    def _where(self) -> str:
        """Return the chain, the sequence and a link, without the approval's id, which is not
        logged."""
        parts = [f"chain {self._chain_name!r}"] if self._chain_name else []
        if self._sequence is not None:
            parts.append(f"sequence {self._sequence}")
        if url := self._url():
            parts.append(url)
        return ", ".join(parts)

    def _url(self) -> str | None:
        if self._chain_id is None or self._sequence is None:
            return None
        chain = quote(self._chain_id, safe="")
        return f"{self._config.backend_url}/chains/{chain}?after={self._sequence - 1}#events"

    def _notify(self, status: str) -> None:
        if not self._listeners:
            return
        progress = ApprovalProgress(
            status=status,
            waited_seconds=self._clock.monotonic() - self._began,
            approval_id=self._approval_id,
            chain_id=self._chain_id,
            chain_name=self._chain_name,
            sequence=self._sequence,
            action=self._action,
            console_url=self._url(),
            expires_at=self._expires_at,
        )
        for listener in self._listeners:
            try:
                listener(progress)
            except Exception as error:
                # A failing listener must not end the wait.
                logger.warning("countersign: on_wait raised %s", type(error).__name__)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
