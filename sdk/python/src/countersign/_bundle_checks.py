"""The checks of an evidence bundle, in the order of docs/bundles.md."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from countersign._bundle_document import Approval, Document, Entry, read_object
from countersign._merkle import leaf_hash, root_from_proof
from countersign._notes import (
    Checkpoint,
    Cosignature,
    Key,
    Proof,
    cosignatures,
    decode_base64,
    read_checkpoint,
    read_note,
    read_proof,
    signed_by,
    verify_ed25519,
)

__all__ = ["BundleCheck", "Evidence", "Trust", "run_checks"]

_RECEIPT_V1, _RECEIPT_V2 = "countersign-receipt-v1", "countersign-receipt-v2"
_NO_ACTIONS = ("gap", "late_outcome")
_REGISTRY = "countersign-signing-keys-v1"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)

Status = Literal["pass", "fail", "not_checked"]


@dataclass(frozen=True)
class BundleCheck:
    """The result of one check."""

    name: str
    status: Status
    detail: str
    """Why it failed or was not made, or what it is based on; may be empty."""


@dataclass(frozen=True)
class Trust:
    """The keys that the reader of a bundle trusts."""

    log_keys: Sequence[Key]
    witnesses: Sequence[Key]
    """Without duplicates."""
    quorum: int
    log_key_revoked_at: int | None
    """Unix seconds."""


class _Failed(Exception):
    """Ends a check as failed."""


class _NotChecked(Exception):
    """Ends a check without a result."""


class Evidence:
    """The parts of a bundle, parsed as far as possible."""

    def __init__(self, document: Document, trust: Trust) -> None:
        self.document = document
        self.trust = trust
        self.receipt_bytes = document.receipt.encode()
        self.receipt_hash = _sha256(self.receipt_bytes)
        self.receipt = read_object(document.receipt)
        self.proof: Proof | None = None
        self.checkpoint: Checkpoint | None = None
        self.proof_fault = ""
        try:
            self.proof = read_proof(document.log_proof)
            self.checkpoint = read_checkpoint(self.proof.checkpoint)
        except ValueError as error:
            self.proof_fault = f"log_proof cannot be read: {error}"
        self.cosignatures: list[Cosignature] = []
        if self.checkpoint is not None:
            self.cosignatures = cosignatures(self.checkpoint.note, trust.witnesses)
        self.events, self.events_fault = _read_events(document.entries or [], self.receipt)

    def need_checkpoint(self) -> Checkpoint:
        if self.checkpoint is None:
            raise _Failed(self.proof_fault)
        return self.checkpoint


def run_checks(evidence: Evidence) -> tuple[BundleCheck, ...]:
    """Run all checks, in the documented order."""
    return tuple(_run(name, check, evidence) for name, check in _CHECKS.items())


def _run(name: str, check: Callable[[Evidence], str], evidence: Evidence) -> BundleCheck:
    try:
        return BundleCheck(name, "pass", check(evidence))
    except _Failed as reason:
        return BundleCheck(name, "fail", str(reason))
    except _NotChecked as reason:
        return BundleCheck(name, "not_checked", str(reason))


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _receipt_hash(evidence: Evidence) -> str:
    receipt = evidence.receipt
    if receipt is None or receipt.get("format") not in (_RECEIPT_V1, _RECEIPT_V2):
        raise _Failed("the receipt is no JSON object of a known format")
    if evidence.receipt_hash != evidence.document.receipt_hash:
        raise _Failed("receipt_hash is not the receipt's")
    if evidence.proof is None:
        raise _Failed(evidence.proof_fault)
    number = receipt.get("receipt_number")
    last = number.rpartition("-")[2] if isinstance(number, str) else ""
    if last != f"{evidence.proof.index + 1:05}":
        raise _Failed("the receipt's number is not that of its place in the log")
    return ""


@dataclass(frozen=True)
class _Event:
    entry: Entry
    members: dict[str, Any] | None
    """None for an entry that is not an event."""


def _read_events(
    entries: Sequence[Entry], receipt: dict[str, Any] | None
) -> tuple[list[_Event], str]:
    """Parse the entries. Returns those before the first faulty one, and what is wrong with that
    one: an event must be the next of the receipt's chain."""
    chain = receipt.get("chain_id") if receipt is not None else None
    read: list[_Event] = []
    sequence = 0
    for at, entry in enumerate(entries, 1):
        members = read_object(entry.body)
        if members is None:
            return read, f"entry {at} is no JSON object"
        if "kind" in members:
            if entry.payload is not None or entry.redactions is not None:
                return read, f"entry {at} is no event and has a payload or redactions"
            read.append(_Event(entry, None))
            continue
        sequence += 1
        if not isinstance(chain, str) or members.get("chain_id") != chain:
            return read, f"entry {at} is not of the receipt's chain"
        found = members.get("sequence")
        if type(found) is not int or found != sequence:
            return read, f"entry {at} does not have the sequence {sequence}"
        read.append(_Event(entry, members))
    return read, ""


def _need_entries(evidence: Evidence) -> Sequence[Entry]:
    if evidence.document.entries is None:
        raise _NotChecked("entries are not included")
    return evidence.document.entries


def _events_digest(evidence: Evidence) -> str:
    entries, receipt = _need_entries(evidence), evidence.receipt
    if receipt is None:
        raise _Failed("the receipt cannot be read")
    digest = hashlib.sha256(b"").digest()
    for entry in entries:
        digest = hashlib.sha256(digest + entry.body.encode()).digest()
    if receipt.get("events_digest") != "sha256:" + digest.hex():
        raise _Failed("the entries are not those that the receipt attests")
    if evidence.events_fault:
        raise _Failed(evidence.events_fault)
    events = [event.members for event in evidence.events if event.members is not None]
    # The first format counted every event.
    leave_out = _NO_ACTIONS if receipt.get("format") != _RECEIPT_V1 else ()
    actions = sum(event.get("action_type") not in leave_out for event in events)
    total = receipt.get("total_actions")
    if type(total) is not int or total != actions:
        raise _Failed(f"there are {actions} actions, and the receipt counts others")
    return f"{len(entries)} entries, {actions} actions"


def _payload_hashes(evidence: Evidence) -> str:
    entries = _need_entries(evidence)
    if evidence.events_fault:
        raise _NotChecked(evidence.events_fault)
    for at, event in enumerate(evidence.events, 1):
        for text, name in (
            (event.entry.payload, "payload_sha256"),
            (event.entry.redactions, "redactions_sha256"),
        ):
            if text is None or event.members is None:
                continue
            if event.members.get(name) != hashlib.sha256(text.encode()).hexdigest():
                raise _Failed(f"entry {at} has another {name}")
    there = sum(entry.payload is not None for entry in entries)
    events = sum(event.members is not None for event in evidence.events)
    if events and not there:
        raise _NotChecked("no payload is included")
    return f"{there} of {events} payloads are included"


def _attested_approvals(receipt: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    """Return the receipt's approvals; None if they cannot be read."""
    found = receipt.get("approvals") if receipt is not None else None
    if isinstance(found, list) and all(isinstance(element, dict) for element in found):
        return found
    return None


def _need_approvals(evidence: Evidence) -> Sequence[Approval]:
    if evidence.document.approvals is None:
        raise _NotChecked("approvals are not included")
    return evidence.document.approvals


def _approval_records(evidence: Evidence) -> str:
    approvals = _need_approvals(evidence)
    attested = _attested_approvals(evidence.receipt)
    if attested is None:
        raise _Failed("the receipt's approvals cannot be read")
    if len(attested) != len(approvals):
        raise _Failed(f"there are {len(approvals)}, and the receipt attests {len(attested)}")
    for at, (approval, element) in enumerate(zip(approvals, attested, strict=True), 1):
        record = read_object(approval.record)
        if record is None:
            raise _Failed(f"record {at} is no JSON object")
        if element.get("approval_hash") != _sha256(approval.record.encode()):
            raise _Failed(f"record {at} is not the one that the receipt attests")
        for name in ("approval_id", "status"):
            if not isinstance(record.get(name), str) or record[name] != element.get(name):
                raise _Failed(f"record {at} has another {name} than the receipt")
    return f"{len(approvals)} records"


def _approval_signatures(evidence: Evidence) -> str:
    approvals, trust = _need_approvals(evidence), evidence.trust
    keys, vouched = _read_registry(evidence)
    signed = revoked = 0
    for at, approval in enumerate(approvals, 1):
        if approval.signature is None and approval.key_id is None:
            if (read_object(approval.record) or {}).get("status") != "cancelled":
                raise _Failed(f"record {at} is not signed")
            continue
        if approval.signature is None or approval.key_id is None:
            raise _Failed(f"record {at} has a signature without a key, or a key without one")
        if approval.key_id not in keys:
            raise _Failed(f"the key of record {at} is not in signing_keys")
        try:
            signature = decode_base64(approval.signature)
        except ValueError as error:
            raise _Failed(f"the signature of record {at} is {error}") from None
        key = keys[approval.key_id]
        if not verify_ed25519(key.public, signature, approval.record.encode()):
            raise _Failed(f"the signature of record {at} does not verify")
        signed += 1
        revoked += key.revoked
    if not trust.log_keys:
        raise _NotChecked("no log key was given, so nothing vouches for signing_keys")
    if not vouched:
        raise _Failed("signing_keys is not signed with a log key that was given")
    if not signed:
        raise _NotChecked("there is no signature")
    if trust.log_key_revoked_at is not None:
        # Witnesses cosign checkpoints. Whoever has the key can sign signing_keys at any time.
        raise _NotChecked("the log key was revoked, and nothing shows that signing_keys is older")
    since = f", {revoked} of them with a key that was revoked since" if revoked else ""
    return f"{signed} signed{since}"


def _read_registry(evidence: Evidence) -> tuple[dict[str, _SigningKey], bool]:
    """Return the approval keys by id, and whether a given log key has signed them."""
    text = evidence.document.signing_keys
    if text is None:
        raise _Failed("signing_keys is not included")
    origin = evidence.need_checkpoint().origin
    try:
        note = read_note(text)
    except ValueError as error:
        raise _Failed(f"signing_keys cannot be read: {error}") from None
    lines = note.text[:-1].split("\n")
    if len(lines) != 3 or lines[0] != _REGISTRY:
        raise _Failed(f"signing_keys is no {_REGISTRY}")
    if lines[1] != origin:
        raise _Failed("signing_keys is of another log")
    own = [key for key in evidence.trust.log_keys if key.name == origin]
    return _read_keys(lines[2]), signed_by(note, own) is not None


@dataclass(frozen=True)
class _SigningKey:
    public: bytes
    revoked: bool


def _read_keys(text: str) -> dict[str, _SigningKey]:
    """Parse the keys of the registry. Other members, such as times, are ignored."""
    registry = read_object(text)
    elements = registry.get("keys") if registry is not None else None
    if not isinstance(elements, list):
        raise _Failed("signing_keys holds no object with keys")
    keys: dict[str, _SigningKey] = {}
    for element in elements:
        members = element if isinstance(element, dict) else {}
        key_id, encoded = members.get("key_id"), members.get("public_key")
        if not isinstance(key_id, str) or not key_id or key_id in keys:
            raise _Failed("a key of signing_keys has no id of its own")
        try:
            public = decode_base64(encoded if isinstance(encoded, str) else "")
        except ValueError as error:
            raise _Failed(f"a public key of signing_keys is {error}") from None
        if len(public) != 32:
            raise _Failed("a public key of signing_keys does not have 32 bytes")
        keys[key_id] = _SigningKey(public, members.get("status") == "revoked")
    return keys


def _inclusion(evidence: Evidence) -> str:
    checkpoint, proof = evidence.need_checkpoint(), evidence.proof
    assert proof is not None
    leaf = leaf_hash(evidence.receipt_bytes)
    if root_from_proof(leaf, proof.index, checkpoint.size, proof.hashes) != checkpoint.root:
        raise _Failed("the proof does not lead from the receipt to the checkpoint's root")
    return f"entry {proof.index + 1} of {checkpoint.size}"


def _checkpoint_signature(evidence: Evidence) -> str:
    trust = evidence.trust
    if not trust.log_keys:
        raise _NotChecked("no log key was given")
    checkpoint = evidence.need_checkpoint()
    own = [key for key in trust.log_keys if key.name == checkpoint.origin]
    if signed_by(checkpoint.note, own) is None:
        raise _Failed("the checkpoint is not signed with a log key that was given")
    revoked = trust.log_key_revoked_at
    if revoked is not None:
        before = sum(cosignature.time < revoked for cosignature in evidence.cosignatures)
        if before < max(trust.quorum, 1):
            raise _Failed(
                f"the log key was revoked, and {before} witnesses had cosigned before; "
                f"{max(trust.quorum, 1)} are wanted"
            )
    return f"signed by {checkpoint.origin}"


def _witnesses(evidence: Evidence) -> str:
    trust = evidence.trust
    if not trust.witnesses:
        raise _NotChecked("no witness was given")
    evidence.need_checkpoint()
    found, wanted = len(evidence.cosignatures), max(trust.quorum, 1)
    if found < wanted:
        raise _Failed(f"{found} of the given witnesses cosigned; {wanted} are wanted")
    return "cosigned by " + ", ".join(c.witness.name for c in evidence.cosignatures)


def _anchors(evidence: Evidence) -> str:
    anchors = evidence.document.anchors
    if not anchors:
        raise _NotChecked("there are none")
    digests: dict[Any, Any] = {"receipt": evidence.receipt_hash}
    for element in _attested_approvals(evidence.receipt) or ():
        if isinstance(element.get("approval_id"), str):
            digests.setdefault(element["approval_id"], element.get("approval_hash"))
    for at, anchor in enumerate(anchors, 1):
        if digests.get(anchor.subject) != anchor.digest or not _DIGEST.fullmatch(anchor.digest):
            raise _Failed(f"anchor {at} is not about the receipt or an approval of it")
        try:
            decode_base64(anchor.proof)
        except ValueError as error:
            raise _Failed(f"the proof of anchor {at} is {error}") from None
    raise _NotChecked("this verifier has no roots for them")


def _receipt_signature(evidence: Evidence) -> str:
    raise _NotChecked("it is an HMAC and needs the service; the log's leaf covers it")


_CHECKS: dict[str, Callable[[Evidence], str]] = {
    "receipt_hash": _receipt_hash,
    "events_digest": _events_digest,
    "payload_hashes": _payload_hashes,
    "approval_records": _approval_records,
    "approval_signatures": _approval_signatures,
    "inclusion": _inclusion,
    "checkpoint_signature": _checkpoint_signature,
    "witnesses": _witnesses,
    "anchors": _anchors,
    "receipt_signature": _receipt_signature,
}
