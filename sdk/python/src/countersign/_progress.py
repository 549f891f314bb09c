"""What a program is told of a wait for a person."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ApprovalProgress"]

_OPEN = ("pending", "escalated")


@dataclass(frozen=True)
class ApprovalProgress:
    """What ``on_wait`` is told: when a wait begins, about every half minute, and when it ends."""

    status: str
    """``pending`` or ``escalated`` while it is open; then ``approved``, ``denied``, ``timed_out``,
    ``cancelled``, or ``broken_off`` where the wait ended before the approval."""
    waited_seconds: float
    approval_id: str
    """Keep it out of logs: whoever may decide can be sent to ``console_url``."""
    chain_id: str | None
    chain_name: str | None
    sequence: int | None
    action: str
    console_url: str | None
    """The page on which the action is the first, with a link to its approval."""
    expires_at: str | None

    @property
    def waiting(self) -> bool:
        """Whether the call still waits."""
        return self.status in _OPEN
