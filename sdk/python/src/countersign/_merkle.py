"""Inclusion proofs of Merkle trees (RFC 6962, RFC 9162)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

__all__ = ["leaf_hash", "root_from_proof"]


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of a log entry."""
    return hashlib.sha256(b"\x00" + entry).digest()


def root_from_proof(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes | None:
    """Compute the root from a leaf and its proof (RFC 9162, section 2.1.3.2). Returns None if the
    proof has the wrong length for this index and tree size.

    >>> root_from_proof(b"leaf", 0, 1, []), root_from_proof(b"leaf", 1, 1, [])
    (b'leaf', None)
    """
    if not 0 <= index < size:
        return None
    node, last, current = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return None
        if node & 1 or node == last:
            current = hashlib.sha256(b"\x01" + sibling + current).digest()
            # A node without a right sibling moves up until it has a left one.
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            current = hashlib.sha256(b"\x01" + current + sibling).digest()
        node, last = node >> 1, last >> 1
    return current if last == 0 else None
