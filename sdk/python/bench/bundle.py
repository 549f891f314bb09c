"""Measures how long verify_bundle takes for a bundle of many events.

Usage: python bench/bundle.py [EVENTS]

The events and the payloads, 400 bytes or so each, are made here and the log is one of this run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import statistics
import sys
import time
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from countersign import verify_bundle
from countersign._canonical import canonical
from countersign._merkle import leaf_hash

ORIGIN = "log.example/bench"


def text(value: Any) -> str:
    return canonical(value).decode()


def sha256(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def entry(sequence: int) -> dict[str, str | None]:
    payload = text({"amount_usd": sequence / 4, "note": "größer " * 50})
    body = {
        "action_name": "pay",
        "action_type": "tool_call",
        "chain_id": "c",
        "decision_reason": "x" * 200,
        "payload_sha256": sha256(payload),
        "redactions_sha256": None,
        "sequence": sequence,
    }
    return {"body": text(body), "payload": payload, "redactions": None}


def make(events: int) -> tuple[bytes, str]:
    """A bundle of so many events, and the key of its log."""
    private = Ed25519PrivateKey.generate()
    key = b"\x01" + private.public_key().public_bytes_raw()
    key_hash = hashlib.sha256(ORIGIN.encode() + b"\n" + key).digest()[:4]

    def sign(note: str) -> str:
        signature = base64.b64encode(key_hash + private.sign(note.encode())).decode()
        return f"{note}\n— {ORIGIN} {signature}\n"

    entries = [entry(sequence) for sequence in range(1, events + 1)]
    digest = hashlib.sha256(b"").digest()
    for each in entries:
        digest = hashlib.sha256(digest + str(each["body"]).encode()).digest()
    receipt = text(
        {
            "approvals": [],
            "chain_id": "c",
            "events_digest": "sha256:" + digest.hex(),
            "format": "countersign-receipt-v2",
            "receipt_number": "CSN-2026-00001",
            "total_actions": events,
        }
    )
    root = base64.b64encode(leaf_hash(receipt.encode())).decode()
    checkpoint = sign(f"{ORIGIN}\n1\n{root}\n")
    registry = json.dumps({"keys": [], "signed_at": "2026-11-16T09:30:00.000Z"})
    document = {
        "anchors": [],
        "approvals": [],
        "entries": entries,
        "format": "countersign-bundle-v1",
        "generated_at": "2026-11-16T09:30:00.000Z",
        "log_proof": f"c2sp.org/tlog-proof@v1\nindex 0\n\n{checkpoint}",
        "receipt": receipt,
        "receipt_hash": "sha256:" + sha256(receipt),
        "signing_keys": sign(f"countersign-signing-keys-v1\n{ORIGIN}\n{registry}\n"),
    }
    return canonical(document), f"{ORIGIN}+{key_hash.hex()}+{base64.b64encode(key).decode()}"


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    data, log_key = make(events)
    wall, cpu = [], []
    for _ in range(9):
        began, used = time.perf_counter(), time.process_time()
        verdict = verify_bundle(data, log_keys=[log_key])
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
        assert verdict.status == "verified", verdict
    print(
        f"{events} events, {len(data) / 1e6:.1f} MB: {statistics.median(wall) * 1e3:.0f} ms, "
        f"{statistics.median(cpu) * 1e3:.0f} ms of CPU (medians of {len(wall)})"
    )


if __name__ == "__main__":
    main()
