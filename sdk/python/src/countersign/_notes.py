"""Signed notes, verifier keys, checkpoints and inclusion proofs, as specified by C2SP
(signed-note, tlog-checkpoint, tlog-cosignature, tlog-proof). Only Ed25519 is supported.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = [
    "Checkpoint",
    "Cosignature",
    "Key",
    "Note",
    "Proof",
    "cosignatures",
    "decode_base64",
    "log_key",
    "read_checkpoint",
    "read_note",
    "read_proof",
    "signed_by",
    "verify_ed25519",
    "witness_key",
]

_ED25519 = 1
_COSIGNATURE = 4
_MAX_SIGNATURES = 100
_MAX_COUNT = 2**62
_MAX_HASHES = 63
_MAX_TIME = 253402300799  # the end of the year 9999
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")
# Control characters, Unicode's White_Space and "+". str.isspace has a set of its own.
_NOT_IN_NAMES = re.compile("[\x00-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000+]")

# The points of small order of Ed25519's curve, in all their encodings, without the sign of x.
# Anyone can make signatures for such a key. Libraries and browsers disagree on whether one
# verifies, and also on a signature that begins with such a point, so a bundle has neither.
_SMALL_ORDER = frozenset(
    map(
        bytes.fromhex,
        (
            "0000000000000000000000000000000000000000000000000000000000000000",
            "0100000000000000000000000000000000000000000000000000000000000000",
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        ),
    )
)


def _is_small_order(point: bytes) -> bool:
    return point[:31] + bytes([point[31] & 0x7F]) in _SMALL_ORDER


def decode_base64(text: str) -> bytes:
    """Decode standard base64 in its canonical form. Raises ``ValueError`` for anything else."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("not base64") from error
    if base64.b64encode(data).decode("ascii") != text:
        raise ValueError("not the one spelling of its base64")
    return data


def verify_ed25519(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the signature of the message is valid."""
    if len(signature) != 64 or _is_small_order(public_key) or _is_small_order(signature[:32]):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Key:
    """A key that signs notes. Its name and hash identify its signature lines."""

    name: str
    hash: bytes
    public: bytes


def _key_hash(name: str, algorithm: int, public: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + bytes([algorithm]) + public).digest()[:4]


def _read_vkey(vkey: str, what: str) -> tuple[str, int, bytes]:
    """Parse a verifier key into its name, algorithm and public key. Errors repeat only the name,
    because the caller may have passed a private key by mistake."""
    name, _, rest = vkey.partition("+")
    digits, _, encoded = rest.partition("+")
    try:
        if not _is_name(name) or len(digits) != 8:
            raise ValueError("malformed")
        hashed, data = bytes.fromhex(digits), decode_base64(encoded)
        algorithm, public = data[0], data[1:]
        expected = _key_hash(name, algorithm, public)
    except (ValueError, IndexError):
        raise ValueError(
            f"the {what} {name[:100]!r} cannot be read: it is written NAME+HASH+KEY, on one line, "
            "as its owner prints it"
        ) from None
    if hashed != expected:
        raise ValueError(f"the {what} {name!r} does not fit its own hash: copy it again")
    return name, algorithm, public


def log_key(vkey: str) -> Key:
    """Parse the verifier key of a log."""
    name, algorithm, public = _read_vkey(vkey, "log key")
    if algorithm != _ED25519 or len(public) != 32 or _is_small_order(public):
        raise ValueError(f"the log key {name!r} is no usable Ed25519 key (algorithm 1)")
    return Key(name, _key_hash(name, algorithm, public), public)


def witness_key(vkey: str) -> Key:
    """Parse the verifier key of a witness. A plain Ed25519 key is converted to the witness's
    cosignature key, which has another hash."""
    name, algorithm, public = _read_vkey(vkey, "witness key")
    known = algorithm in (_ED25519, _COSIGNATURE)
    if not known or len(public) != 32 or _is_small_order(public):
        raise ValueError(f"the witness key {name!r} is no usable Ed25519 key (algorithm 4 or 1)")
    return Key(name, _key_hash(name, _COSIGNATURE, public), public)


def _is_name(name: str) -> bool:
    return bool(name) and not _NOT_IN_NAMES.search(name)


@dataclass(frozen=True)
class Note:
    """A text and its signatures, by the name and hash of their keys. Of several signatures by one
    key the first counts."""

    text: str
    signatures: dict[tuple[str, bytes], bytes]


def read_note(message: str) -> Note:
    """Parse a signed note. Raises ``ValueError`` for anything else."""
    if _CONTROL.search(message):
        raise ValueError("the note holds a control character")
    before, blank, below = message.rpartition("\n\n")
    if not blank or not below.endswith("\n"):
        raise ValueError("the note has no signatures below a blank line")
    lines = below[:-1].split("\n")
    if len(lines) > _MAX_SIGNATURES:
        raise ValueError(f"the note has more than {_MAX_SIGNATURES} signatures")
    signatures: dict[tuple[str, bytes], bytes] = {}
    for line in lines:
        dash, _, rest = line.partition(" ")
        name, _, encoded = rest.partition(" ")
        try:
            data = decode_base64(encoded)
        except ValueError as error:
            raise ValueError(f"a signature of the note is {error}") from None
        if dash != "—" or not _is_name(name) or len(data) < 5:
            raise ValueError("a signature of the note is malformed")
        signatures.setdefault((name, data[:4]), data[4:])
    return Note(before + "\n", signatures)


def signed_by(note: Note, keys: Iterable[Key]) -> Key | None:
    """Return the first of the keys that signed the note."""
    text = note.text.encode()
    for key in keys:
        signature = note.signatures.get((key.name, key.hash))
        if signature is not None and verify_ed25519(key.public, signature, text):
            return key
    return None


@dataclass(frozen=True)
class Cosignature:
    """A witness's signature of a checkpoint, and its time."""

    witness: Key
    time: int
    """Unix seconds."""


def cosignatures(note: Note, witnesses: Iterable[Key]) -> list[Cosignature]:
    """Return the valid cosignatures of these witnesses, in the witnesses' order."""
    found: list[Cosignature] = []
    for witness in witnesses:
        signature = note.signatures.get((witness.name, witness.hash), b"")
        if len(signature) != 8 + 64:
            continue
        time = int.from_bytes(signature[:8], "big")
        message = f"cosignature/v1\ntime {time}\n{note.text}".encode()
        if time <= _MAX_TIME and verify_ed25519(witness.public, signature[8:], message):
            found.append(Cosignature(witness, time))
    return found


@dataclass(frozen=True)
class Checkpoint:
    """The size and root of a log's tree, as its note states them."""

    note: Note
    origin: str
    size: int
    root: bytes


def read_checkpoint(message: str) -> Checkpoint:
    """Parse a checkpoint without verifying it. Raises ``ValueError`` for anything else."""
    note = read_note(message)
    lines = note.text[:-1].split("\n")
    if len(lines) < 3 or not all(lines):
        raise ValueError("a checkpoint has three lines or more, and none is empty")
    try:
        return Checkpoint(note, lines[0], _count(lines[1]), _hash(lines[2]))
    except ValueError as error:
        raise ValueError(f"the checkpoint's size or root cannot be read: {error}") from None


@dataclass(frozen=True)
class Proof:
    """An inclusion proof. The checkpoint is not parsed yet."""

    index: int
    hashes: tuple[bytes, ...]
    checkpoint: str


def read_proof(text: str) -> Proof:
    """Parse an inclusion proof. Raises ``ValueError`` for anything else."""
    head, blank, checkpoint = text.partition("\n\n")
    lines = head.split("\n")
    if not blank or lines.pop(0) != "c2sp.org/tlog-proof@v1":
        raise ValueError("it is no c2sp.org/tlog-proof@v1")
    if lines and lines[0].startswith("extra "):
        decode_base64(lines.pop(0).removeprefix("extra "))
    if not lines or not lines[0].startswith("index "):
        raise ValueError("it has no index")
    index = _count(lines.pop(0).removeprefix("index "))
    if len(lines) > _MAX_HASHES:
        raise ValueError(f"it has more than {_MAX_HASHES} hashes")
    return Proof(index, tuple(map(_hash, lines)), checkpoint)


def _count(text: str) -> int:
    if not _DECIMAL.fullmatch(text) or int(text) > _MAX_COUNT:
        raise ValueError("not a number without leading zeros, at most 2^62")
    return int(text)


def _hash(text: str) -> bytes:
    data = decode_base64(text)
    if len(data) != 32:
        raise ValueError("not a hash of 32 bytes")
    return data
