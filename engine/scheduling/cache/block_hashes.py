"""Identities of full cache blocks: a block's tokens, everything before them, and the tenant that may share them.

Keys and values depend on the whole prefix and on the adapter's weights, so the hash of a block is chained over its
parent's, back to a root made of the adapter's content key and the tenant. The root is keyed with a secret that this
process draws when it starts: nobody outside can construct tokens whose blocks collide with another tenant's.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from array import array

import msgspec

from engine.sequence import Sequence

HASH_BYTES = 16


class BlockHasher:
    """Hashes blocks with SHA-256 truncated to HASH_BYTES.

    Collisions stay out of reach at any number of blocks that a machine can hold.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._secret = secrets.token_bytes(32)

    def extend(self, sequence: Sequence, num_blocks: int) -> None:
        """Extend sequence.block_hashes to at least its first num_blocks blocks, whose tokens must all be there."""
        hashes = sequence.block_hashes
        if len(hashes) >= num_blocks:
            return
        parent = hashes[-1] if hashes else self._root(sequence)
        for start in range(len(hashes) * self._block_size, num_blocks * self._block_size, self._block_size):
            tokens = array("q", sequence.token_ids[start : start + self._block_size])
            parent = hashlib.sha256(parent + tokens.tobytes()).digest()[:HASH_BYTES]
            hashes.append(parent)

    def _root(self, sequence: Sequence) -> bytes:
        kind = (sequence.request.tenant, sequence.request.adapter, sequence.is_long)
        return hmac.digest(self._secret, msgspec.msgpack.encode(kind), "sha256")[:HASH_BYTES]
