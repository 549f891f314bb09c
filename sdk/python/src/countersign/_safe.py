"""Which actions are obviously safe. The rules are the service's, tested with the same vectors."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from countersign._classify import Facts
from countersign._words import words_of

__all__ = ["CONNECTIVES", "SAFE_VERBS", "UNSAFE_WORDS", "is_obviously_safe"]

SAFE_VERBS = frozenset("count describe find get list look lookup read search show view".split())
"""The name of an obviously safe action begins with one of these."""

# Verbs of writing, sending, paying and running that are rarely nouns after a reading verb.
# Words such as order and email are missing because get_order and read_email only read.
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
# They join a second verb, which can be any.
CONNECTIVES = frozenset(("and", "or", "then"))

_NOTHING = Facts()


def is_obviously_safe(
    action_name: str, allowed: Collection[str], facts: Facts, opaque: bool
) -> bool:
    """Whether an action is obviously safe.

    Its name must begin with an allowed word of SAFE_VERBS and contain no verb of writing, sending,
    paying or running. Classification must have found nothing, and nothing may be ``opaque``:
    redacted, cut or too deep to be read.

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
    """Return the first word of a safe name, or an empty string. Names outside ASCII are not safe:
    they may contain verbs of other languages or letters that only look familiar."""
    words = words_of(name) if name.isascii() else []
    if not words or words[0] not in SAFE_VERBS:
        return ""
    others = words[1:]
    if not UNSAFE_WORDS.isdisjoint(others) or not CONNECTIVES.isdisjoint(others):
        return ""
    return words[0]
