"""Which actions may be decided in this process, and what the service said of it afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from countersign._decision import stricter_than_allow

if TYPE_CHECKING:
    from countersign._action import Action
    from countersign._delivery import Delivery

__all__ = ["is_stale", "is_violation", "permits"]


def permits(session: Delivery, action: Action) -> bool:
    """Whether an action is obviously safe: nothing known says that it could be otherwise."""
    config, transport = session.config, session.transport
    return (
        config.enable_local_fast_path
        and not action.categories
        and session.chain.get("fast_path") is True
        and not transport.offline
        and not transport.kill_switch_active
        and not session.paused
        and not is_stale(session)
        and not session.outbox.full
        and action.wire["agent_name"] not in (config.high_risk_agents or ())
    )


def is_stale(session: Delivery) -> bool:
    """Whether the policies have changed since the chain said that it may decide locally."""
    known = session.chain
    return bool(known) and known.get("policy_version") != session.transport.policy_version


def is_violation(result: Mapping[str, Any]) -> bool:
    """Whether the service would have decided an event of a batch more strictly."""
    if isinstance(result.get("violation"), bool):
        return bool(result["violation"])
    if stricter_than_allow(result.get("policy_decision")):
        return True
    shadow = result.get("evaluation_mode") == "shadow"
    return not shadow and stricter_than_allow(result.get("shadow_decision"))
