"""Progress of a wait for an approval."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ApprovalProgress"]

_OPEN = ("pending", "escalated")


@dataclass(frozen=True)
class ApprovalProgress:
    """Passed to ``on_wait`` when a wait begins, about every 30 seconds, and when it ends."""

    status: str
    """``pending`` or ``escalated`` during the wait; then ``approved``, ``denied``, ``timed_out``,
    ``cancelled``, or ``broken_off`` if the wait was interrupted."""
    waited_seconds: float
    approval_id: str
    """Do not log it; send reviewers to ``console_url`` instead."""
    chain_id: str | None
    chain_name: str | None
    sequence: int | None
    action: str
    console_url: str | None
    """The console page that begins with the action and links to its approval."""
    expires_at: str | None

    @property
    def waiting(self) -> bool:
        """Whether the call is still waiting."""
        return self.status in _OPEN
