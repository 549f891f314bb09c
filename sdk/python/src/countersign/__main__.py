"""``python -m countersign verify FILE``: check an evidence bundle offline.

It prints what ``countersign verify FILE`` prints and exits with the same status: 0 if the bundle is
verified, 1 if a check failed, 2 if nothing was proven or the bundle could not be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from countersign._bundle import BundleVerdict

__all__ = ["main"]

_EXIT = {"verified": 0, "failed": 1, "indeterminate": 2}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    given = _parser().parse_args(arguments)
    try:
        from countersign._bundle import verify_bundle

        verdict = verify_bundle(
            Path(given.file),
            log_keys=given.log_key,
            witnesses=given.witness,
            quorum=given.quorum,
            log_key_revoked_at=given.log_key_revoked_at,
        )
    except (ImportError, OSError, ValueError) as error:
        print(f"countersign: {error}", file=sys.stderr)  # noqa: T201
        return 2
    text = json.dumps(_members(verdict), indent=2) if given.json else str(verdict)
    # Escape what the terminal cannot show, so that the verdict is always printed.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))  # noqa: T201
    if verdict.status == "indeterminate" and not given.log_key:
        print(  # noqa: T201
            "countersign: no log key was given: get it from the organization "
            "(countersign log vkey prints it) and pass it with --log-key",
            file=sys.stderr,
        )
    return _EXIT[verdict.status]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m countersign", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    verify = commands.add_parser(
        "verify",
        allow_abbrev=False,
        help="check an evidence bundle offline",
        epilog="Exit status: 0 if verified; 1 if a check failed; 2 if nothing was proven, the "
        "usage was wrong or the bundle could not be read.",
    )
    verify.add_argument("file", metavar="FILE", help="evidence bundle to check")
    verify.add_argument(
        "--log-key",
        action="append",
        default=[],
        metavar="VKEY",
        help="verifier key of the organization's log; required for a bundle to be verified. "
        "Repeat the option to accept several keys during a key rotation",
    )
    verify.add_argument(
        "--witness",
        action="append",
        default=[],
        metavar="VKEY",
        help="verifier key of a witness; repeat the option for each witness",
    )
    verify.add_argument(
        "--quorum",
        type=int,
        default=0,
        metavar="N",
        help="number of witnesses that must have cosigned (default: 1 if a witness is given)",
    )
    verify.add_argument(
        "--log-key-revoked-at",
        metavar="TIME",
        help="time at which the log key was revoked (RFC 3339); checkpoints that witnesses "
        "cosigned before it still count",
    )
    verify.add_argument("--json", action="store_true", help="print the verdict as JSON")
    return parser


def _members(verdict: BundleVerdict) -> dict[str, Any]:
    """The verdict as ``countersign verify --json`` prints it."""
    checks = []
    for check in verdict.checks:
        members = {"name": check.name, "status": check.status, "detail": check.detail}
        checks.append({name: value for name, value in members.items() if value})
    return {
        "verdict": verdict.status,
        "receipt_number": verdict.receipt_number or "",
        "receipt_id": verdict.receipt_id or "",
        "receipt_hash": verdict.receipt_hash,
        "organization": verdict.organization or "",
        "summary": verdict.summary or "",
        "generated_at": verdict.generated_at or "",
        "log_origin": verdict.log_origin or "",
        "tree_size": verdict.tree_size or 0,
        "witnessed_by": [{"name": name, "at": _time(at)} for name, at in verdict.cosigned_at],
        "witnesses_given": verdict.witnesses_given,
        "checks": checks,
    }


def _time(seconds: int) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return None  # a year with more than four digits


if __name__ == "__main__":
    sys.exit(main())
