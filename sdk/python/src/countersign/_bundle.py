"""Offline verification of evidence bundles. docs/bundles.md describes the format and the checks.

It needs the extra ``verify``, for Ed25519, and makes no network requests.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

try:
    import cryptography  # noqa: F401
except ImportError as error:
    raise ImportError(
        "countersign.verify_bundle needs the extra countersign[verify]: "
        "pip install './sdk/python[verify]' from the root of the project's repository; "
        f"the package called countersign on the public index is not this one ({error})",
        name=error.name,
        path=error.path,
    ) from error

from countersign._bundle_checks import BundleCheck, Evidence, Trust, run_checks
from countersign._bundle_document import MAX_BYTES, BundleError, read_document
from countersign._notes import Key, log_key, witness_key

__all__ = ["BundleCheck", "BundleError", "BundleVerdict", "verify_bundle"]

_ALWAYS = ("receipt_hash", "inclusion", "checkpoint_signature")
# fromisoformat also accepts an offset with 60 minutes or more.
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d{1,9})?(Z|[+-]\d\d:[0-5]\d)", re.ASCII)
_MARKS = {"pass": "✓", "fail": "✗", "not_checked": "·"}


@dataclass(frozen=True)
class BundleVerdict:
    """What a bundle proves to a reader who trusts the given keys.

    Everything except ``status`` and ``checks`` is copied from the file. Rely on it only if the
    status is ``verified``.
    """

    status: Literal["verified", "failed", "indeterminate"]
    checks: tuple[BundleCheck, ...]
    """All ten checks, always in the same order."""
    receipt_hash: str
    """The hash of the receipt in the file, computed from its bytes."""
    receipt_number: str | None
    """This and the next four come from the receipt; None if it cannot be read."""
    receipt_id: str | None
    organization: str | None
    summary: str | None
    generated_at: str | None
    log_origin: str | None
    """This and the next come from the checkpoint; None if it cannot be read."""
    tree_size: int | None
    cosigned_at: tuple[tuple[str, int], ...]
    """The given witnesses whose cosignatures verify: each one's name, and when it cosigned in Unix
    seconds."""
    witnesses_given: int

    @property
    def witnessed_by(self) -> tuple[str, ...]:
        """The names of the given witnesses whose cosignatures verify."""
        return tuple(name for name, _ in self.cosigned_at)

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(check.name for check in self.checks if check.status == "fail")

    def __str__(self) -> str:
        number, organization = self.receipt_number or "?", self.organization or "?"
        lines = [
            f"{self.status.upper()}  receipt {number} of organization {organization}, "
            f"made {self.generated_at or '?'}"
        ]
        for check in self.checks:
            detail = f": {check.detail}" if check.detail else ""
            words = check.status.replace("_", " ")
            lines.append(f"  {_MARKS[check.status]} {check.name:<20} {words}{detail}")
        return "\n".join(map(_printable, lines))


def _printable(line: str) -> str:
    """Escape characters that would move the terminal's cursor or reverse its text."""
    return "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in line)


def verify_bundle(
    data: bytes | str | os.PathLike[str],
    *,
    log_keys: Iterable[str] = (),
    witnesses: Iterable[str] = (),
    quorum: int = 0,
    log_key_revoked_at: datetime | str | None = None,
) -> BundleVerdict:
    """Check an evidence bundle against keys that were obtained from another source.

    ``data`` is the content of the bundle, or a ``pathlib.Path`` to it; a string is always content.
    ``log_keys`` and ``witnesses`` are verifier keys (``NAME+HASH+KEY``); without a log key no
    bundle is ``verified``. ``quorum`` is the number of witnesses that must have cosigned.
    ``log_key_revoked_at`` is the time at which a log key was revoked: such a key counts only if the
    quorum, and at least one witness, had cosigned before.

    Faulty evidence gives a failed check. ``BundleError`` is raised if the data is not a bundle, and
    ``ValueError`` for an invalid key or number.
    """
    trust = Trust(
        log_keys=_keys(log_keys, log_key, "log_keys"),
        witnesses=_keys(witnesses, witness_key, "witnesses"),
        quorum=quorum,
        log_key_revoked_at=_seconds(log_key_revoked_at),
    )
    _check_trust(trust)
    evidence = Evidence(read_document(_content(data)), trust)
    checks = run_checks(evidence)
    receipt, checkpoint = evidence.receipt or {}, evidence.checkpoint
    return BundleVerdict(
        status=_status(checks, trust),
        checks=checks,
        receipt_hash=evidence.receipt_hash,
        receipt_number=_text(receipt, "receipt_number"),
        receipt_id=_text(receipt, "receipt_id"),
        organization=_text(receipt, "organization"),
        summary=_text(receipt, "summary"),
        generated_at=_text(receipt, "generated_at"),
        log_origin=checkpoint.origin if checkpoint else None,
        tree_size=checkpoint.size if checkpoint else None,
        cosigned_at=tuple((seen.witness.name, seen.time) for seen in evidence.cosignatures),
        witnesses_given=len(trust.witnesses),
    )


def _status(
    checks: Iterable[BundleCheck], trust: Trust
) -> Literal["verified", "failed", "indeterminate"]:
    statuses = {check.name: check.status for check in checks}
    if "fail" in statuses.values():
        return "failed"
    needed = (*_ALWAYS, "witnesses") if trust.quorum else _ALWAYS
    return "verified" if all(statuses[name] == "pass" for name in needed) else "indeterminate"


def _content(data: bytes | str | os.PathLike[str]) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if not isinstance(data, str):
        with Path(data).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    if not data.startswith("{"):
        raise BundleError("this text is not a bundle; to name a file, pass a pathlib.Path")
    try:
        return data.encode("utf-8")
    except UnicodeEncodeError:
        raise BundleError("not a bundle: a string has half a surrogate pair") from None


def _keys(vkeys: Iterable[str], read: Any, name: str) -> tuple[Key, ...]:
    if isinstance(vkeys, str):
        raise ValueError(f"{name} is a list of keys, not one key")
    found = list(vkeys)
    if not all(isinstance(vkey, str) for vkey in found):
        raise ValueError(f"{name} is a list of strings")
    return tuple(map(read, found))


def _check_trust(trust: Trust) -> None:
    given = len(trust.witnesses)
    # One key under two names is one witness.
    if len({key.public for key in trust.witnesses}) != given:
        raise ValueError("a witness is given twice")
    if not isinstance(trust.quorum, int) or not 0 <= trust.quorum <= given:
        raise ValueError(f"a quorum of {trust.quorum} cannot be reached with {given} witnesses")
    if trust.log_key_revoked_at is not None and not given:
        raise ValueError(
            "a revoked log key counts only where witnesses saw the checkpoint before: "
            "give their keys"
        )


def _seconds(time: datetime | str | None) -> int | None:
    """Convert a time to Unix seconds. A fraction is dropped, because cosignatures have none."""
    if time is None:
        return None
    if isinstance(time, str):
        match = _TIME.fullmatch(time)
        try:
            # Python 3.10 reads no Z.
            time = datetime.fromisoformat(
                match[1] + match[2].replace("Z", "+00:00") if match else ""
            )
        except ValueError:
            raise ValueError(
                "log_key_revoked_at is a time such as 2026-11-16T09:30:00Z (RFC 3339)"
            ) from None
    if time.tzinfo is None:
        raise ValueError("log_key_revoked_at has no time zone: for UTC, end it in Z")
    return math.floor(time.timestamp())


def _text(members: dict[str, Any], name: str) -> str | None:
    value = members.get(name)
    return value if isinstance(value, str) else None
