"""Which actions are obviously safe: the service's rules, held to the same vectors."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

from countersign._classify import Facts
from countersign._words import words_of

__all__ = ["CONNECTIVES", "SAFE_VERBS", "UNSAFE_WORDS", "is_obviously_safe", "is_opaque"]

SAFE_VERBS = frozenset("count describe find get list look lookup read search show view".split())
"""With one of these the name of an obviously safe action begins."""

# The verbs of writing, sending, paying and running, all that are seldom anything else behind a
# verb of looking: in get_order and read_email stands a noun.
UNSAFE_WORDS = frozenset(
    """abort accept activate add alter append apply approve assign attach authorize ban bash
    bid boot broadcast browse bulk buy call cancel change charge clear cmd configure confirm
    copy crawl create deactivate debit delete deliver demote deploy deposit destroy detach
    dial disable disburse discard dispatch donate drop edit eject empty enable encrypt
    enqueue erase eval exec execute expire export fire flush forward format freeze fund
    generate grant hire impersonate import increment init initialize inject insert install
    invalidate invoke kill launch lock migrate modify mount move mutate mv notify overwrite
    patch pause pay persist populate powershell promote provision prune publish purchase
    purge push put reassign reboot rebuild redeem refund register reimburse reject remit
    remove rename renew replace reply reset resize restart restore revert revoke rm rollback
    rotate run save scale scrape sell send set settle shell shutdown shut sign spawn spend
    sql ssh start stop store submit subscribe sudo suspend swap sync terminate toggle trade
    transfer transmit trigger truncate tweet undo uninstall unlock unset unsubscribe update
    upgrade upload upsert wipe wire withdraw write""".split()
)
# They join a second verb, whichever it is.
CONNECTIVES = frozenset(("and", "or", "then"))

_NOTHING = Facts()
# What stands in the place of something that was taken out, or behind it.
_MARKS = ("[REDACTED]", "[CYCLE]", "[TOO DEEP]", "[OMITTED]", "...[truncated]")


def is_obviously_safe(
    action_name: str, allowed: Collection[str], facts: Facts, opaque: bool
) -> bool:
    """Whether nothing can be said against an action: its name begins with a word that is allowed,
    which must be one of SAFE_VERBS, no other word of it is a verb of writing, sending, paying or
    running, classifying it found nothing, and nothing in it is opaque: redacted, cut or too
    deep to be looked at.

    >>> is_obviously_safe("get_weather", SAFE_VERBS, Facts(), opaque=False)
    True
    >>> is_obviously_safe("run_sql", SAFE_VERBS, Facts(), opaque=False)
    False
    """
    if opaque or facts != _NOTHING:
        return False
    first = _safe_verb(action_name)
    return first != "" and first in allowed


@lru_cache(maxsize=2048)
def _safe_verb(name: str) -> str:
    """The first word of a name that is safe, else nothing. Only names in ASCII can be judged: a
    verb of another language, or a letter that only looks like one, cannot."""
    words = words_of(name) if name.isascii() else []
    if not words or words[0] not in SAFE_VERBS:
        return ""
    others = words[1:]
    if not UNSAFE_WORDS.isdisjoint(others) or not CONNECTIVES.isdisjoint(others):
        return ""
    return words[0]


def is_opaque(value: Any) -> bool:
    """Whether something was taken out of a sanitized value: redacted, cut, or left out because
    it was too deep or too large."""
    if isinstance(value, str):
        return any(mark in value for mark in _MARKS)
    if isinstance(value, dict):
        return any(is_opaque(key) or is_opaque(item) for key, item in value.items())
    return isinstance(value, list) and any(map(is_opaque, value))
