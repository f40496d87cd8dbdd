"""Beginnings of prompts: the keys by which shared beginnings are recognized, and where each was last sent.

An engine keeps the blocks of a prompt it has computed, by tenant and adapter; a prompt that begins alike saves their
computation there. Knows nothing of replicas but their names.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Generic, TypeVar

MAX_PREFIXES = 12
"""The most beginnings of one prompt: with blocks of 16 tokens they reach 32,768 tokens."""
MAX_REMEMBERED = 1 << 17
"""The slots for beginnings that one pool's balancer remembers, a power of two."""

T = TypeVar("T")


def prefix_keys(token_ids: Sequence[int], salt: str, block_size: int = 16) -> tuple[int, ...]:
    """Return the keys of a prompt's beginnings of 1, 2, 4, 8... blocks, the shortest first: numbers of 64 bits.

    Beginnings that double are few for any prompt, and at least half of a shared beginning is found. The last token is
    computed in any case, so a beginning ends before it.
    salt: the tenant and the adapter, which must be equal as well.
    """
    digest = hashlib.blake2b(salt.encode(), digest_size=8)
    keys: list[int] = []
    start, end = 0, block_size
    while end < len(token_ids) and len(keys) < MAX_PREFIXES:
        digest.update(array("I", token_ids[start:end]).tobytes())
        keys.append(int.from_bytes(digest.digest()))
        start, end = end, 2 * end
    return tuple(keys)


class PrefixMemory(Generic[T]):
    """The places to which beginnings of prompts were first sent, in a table that never grows: 16 bytes for each.

    A key has two slots, at an even number and at the next one, which it shares with other keys: the one that was used
    last is in the first. A new key takes the first slot, and the key there takes the second, whose key is forgotten. So
    about the least recently used ones are forgotten, without a list of all of them in their order.

    A beginning keeps its first place while that replica exists. If a prompt goes elsewhere, as its place is busy, only
    those of its beginnings that no other prompt has get the new place.
    """

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        """Make a memory without any beginnings.

        max_remembered: the number of slots, a power of two.
        """
        self._last_pair = max_remembered - 2
        self._keys = array("Q")
        """The key in each slot; none at all before the first one."""
        self._places: list[T | None] = []
        """The place of each slot's key; None where the slot is free."""

    def longest(self, keys: Sequence[int]) -> tuple[T, bool] | None:
        """Return the place of the longest beginning that is known, and whether that is at least half of the prompt.

        The place of the shortest beginning is not remembered: every gateway computes the same one by rendezvous
        hashing.
        """
        last = len(keys) - 1
        known, places, last_pair = self._keys, self._places, self._last_pair
        if not places:
            return None
        for i in range(last, 0, -1):
            key = keys[i]
            slot = key & last_pair
            if known[slot] != key:
                slot += 1
                if known[slot] != key:
                    continue
            place = places[slot]
            if place is not None:
                return place, i == last
        return None

    def remember(self, keys: Sequence[int], place: T) -> None:
        """Record the place to which a prompt with these beginnings was sent."""
        if len(keys) < 2:
            return
        if not self._places:
            self._keys = array("Q", [0]) * (self._last_pair + 2)
            self._places = [None] * len(self._keys)
        known, places = self._keys, self._places
        for i in range(1, len(keys)):
            key = keys[i]
            slot = key & self._last_pair
            if known[slot] == key and places[slot] is not None:
                continue
            other = slot + 1
            first_place = places[other] if known[other] == key else None
            known[other], places[other] = known[slot], places[slot]
            known[slot], places[slot] = key, place if first_place is None else first_place

    def forget(self, place: T) -> None:
        """Forget all beginnings that were sent to a place."""
        self._places = [None if each is place else each for each in self._places]
