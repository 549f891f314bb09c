"""Which actions are obviously safe: they may be decided in this process, and go on while the
service is unreachable."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from countersign._words import words_of

__all__ = ["SAFE_WORDS", "first_word", "is_obviously_safe"]

SAFE_WORDS = frozenset("get list read search find look lookup view show describe count".split())
# Verbs of writing, sending, paying and running. A noun among them costs a question to the
# service; a verb that is missing would cost more.
_VERBS = frozenset(
    """abort accept activate add allocate alter append apply approve assign attach authorize ban
    block book boot broadcast browse build buy call cancel capture change charge clear click close
    commit compile confirm configure connect copy crawl create deactivate debit delete deny deploy
    destroy detach disable disburse dispatch donate drop edit emit enable encrypt enqueue erase
    eval evaluate exec execute fill flush force format forward fund grant halt import inject insert
    install invite invoke issue kill launch lock mail merge message migrate modify mount move
    notify open order overwrite patch pause pay perform place post press print process provision
    publish pull purchase purge push put reboot redeem refund register reimburse reject release
    remit remove rename replace reply reschedule reserve reset resize restart restore resume
    revoke rotate run save scale schedule scrape sell send set share shell ship shutdown sign
    spawn spend start stop submit subscribe swap switch sync tag terminate trade transfer trigger
    truncate tweet type uninstall unlock unsubscribe update upgrade upload upsert wipe wire
    withdraw write""".split()
)


def is_obviously_safe(action_name: str, found: Collection[str], *, untouched: bool) -> bool:
    """Whether an action only looks at something: its name says so, classification of the raw
    values found nothing, and nothing in them was redacted, cut or left unread.

    >>> is_obviously_safe("list_files", (), untouched=True)
    True
    >>> is_obviously_safe("execute_shell", (), untouched=True)
    False
    """
    return untouched and not found and _reads(action_name)


@lru_cache(maxsize=2048)
def _reads(action_name: str) -> bool:
    # Letters beyond ASCII could be there to look like others.
    if not action_name.isascii():
        return False
    words = words_of(action_name)
    return first_word(action_name) in SAFE_WORDS and _VERBS.isdisjoint(words[1:])


@lru_cache(maxsize=2048)
def first_word(action_name: str) -> str:
    """The word by which a lease names what it covers."""
    return next(iter(words_of(action_name)), "")
