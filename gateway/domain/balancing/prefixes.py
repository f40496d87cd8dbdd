"""Beginnings of prompts: the keys by which shared beginnings are recognized, and where each was last sent.

An engine keeps the blocks of a prompt it has computed, by tenant and adapter; a prompt that begins alike saves their
computation there. Knows nothing of replicas but their names.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

MAX_PREFIXES = 12
"""The most beginnings of one prompt: with blocks of 16 tokens they reach 32,768 tokens."""
MAX_REMEMBERED = 1 << 16

T = TypeVar("T")


def prefix_keys(token_ids: Sequence[int], salt: str, block_size: int = 16) -> tuple[bytes, ...]:
    """Return the keys of a prompt's beginnings of 1, 2, 4, 8... blocks, the shortest first.

    Beginnings that double are few for any prompt, and at least half of a shared beginning is found. The last token is
    computed in any case, so a beginning ends before it.
    salt: the tenant and the adapter, which must be equal as well.
    """
    digest = hashlib.blake2b(salt.encode(), digest_size=8)
    keys: list[bytes] = []
    start, end = 0, block_size
    while end < len(token_ids) and len(keys) < MAX_PREFIXES:
        digest.update(array("I", token_ids[start:end]).tobytes())
        keys.append(digest.digest())
        start, end = end, 2 * end
    return tuple(keys)


class PrefixMemory(Generic[T]):
    """The places to which beginnings of prompts were first sent; the least recently used ones are forgotten.

    A beginning keeps its first place while that replica exists. If a prompt goes elsewhere, as its place is busy, only
    those of its beginnings that no other prompt has get the new place.
    """

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._places: OrderedDict[bytes, T] = OrderedDict()
        self._max_remembered = max_remembered

    def __len__(self) -> int:
        return len(self._places)

    def longest(self, keys: Sequence[bytes]) -> tuple[T, bool] | None:
        """Return the place of the longest beginning that is known, and whether that is at least half of the prompt.

        The place of the shortest beginning is not remembered: every gateway computes the same one by rendezvous
        hashing.
        """
        places, last = self._places, len(keys) - 1
        for i in range(last, 0, -1):
            place = places.get(keys[i])
            if place is not None:
                return place, i == last
        return None

    def remember(self, keys: Sequence[bytes], place: T) -> None:
        """Record the place to which a prompt with these beginnings was sent."""
        places = self._places
        for i in range(1, len(keys)):
            if keys[i] in places:
                places.move_to_end(keys[i])
            else:
                places[keys[i]] = place
        while len(places) > self._max_remembered:
            places.popitem(last=False)

    def forget(self, place: T) -> None:
        """Forget all beginnings that were sent to a place."""
        gone = [key for key, each in self._places.items() if each is place]
        for key in gone:
            del self._places[key]
