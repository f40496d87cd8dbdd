"""Rendezvous hashing (Thaler and Ravishankar, 1998): each key has an order of preference over all replicas.

An order depends on the key and on the replicas' ids and weights alone, so every gateway finds the same one. A replica
that comes or goes leaves the order of the others as it was: with n replicas, one takes or frees about 1/n of the keys.

Orders are kept by bucket, CRC-32 of the key modulo `NUM_BUCKETS`: memory is bounded without forgetting, and keys of one
bucket share an order. Buckets with the same order share one tuple, so that the few orders of a few replicas take as
much memory after many keys as after a few. Knows nothing of load.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from math import log
from operator import itemgetter
from typing import Generic, Protocol, TypeVar
from zlib import crc32

NUM_BUCKETS = 1 << 14
_MASK = (1 << 64) - 1
_UNIT = 2.0**-64 * (1 - 2.0**-52)


class Weighted(Protocol):
    """A member of the orders: a replica with a seed and a weight."""

    @property
    def seed(self) -> int:
        """A hash of the replica's id (`seed_of`)."""

    @property
    def weight(self) -> float:
        """The replica's weight: its share of first places, relative to the others."""


def seed_of(name: str) -> int:
    """Return an odd 64-bit number for a replica's id, the same in every process."""
    return _hash(name.encode()) | 1


def bucket_of(key: str | int) -> int:
    """Return the bucket of a key: of an adapter's, or of a prompt's beginning (`prefixes.prefix_keys`)."""
    return crc32(key.encode() if isinstance(key, str) else key.to_bytes(8)) % NUM_BUCKETS


def uniform(bucket: int, seed: int) -> float:
    """Return a number in (0, 1) that the bucket and the seed determine, by a product of two hashes modulo 2**64."""
    return ((_hash(b"%d" % bucket) * seed & _MASK) + 1) * _UNIT


def _hash(name: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())


R = TypeVar("R", bound=Weighted)


class Orders(Generic[R]):
    """The orders of preference over a set of replicas."""

    def __init__(self) -> None:
        self._members: tuple[R, ...] = ()
        self._seeds: list[int] = []
        self._weights: list[float] = []
        self._orders: list[tuple[R, ...] | None] = [None] * NUM_BUCKETS
        """The order of each bucket; None where it was not asked for yet."""
        self._distinct: dict[tuple[R, ...], tuple[R, ...]] = {}

    def set_members(self, members: Iterable[R]) -> None:
        """Set the replicas that are ordered."""
        self._members = tuple(members)
        self._seeds = [each.seed for each in self._members]
        self._weights = [each.weight for each in self._members]
        self._orders = [None] * NUM_BUCKETS
        self._distinct.clear()

    def order_of(self, bucket: int) -> tuple[R, ...]:
        """Return all replicas, the most preferred first: those with the greatest ln(u) / weight, u being uniform.

        bucket: the bucket of a key, by which the order is known.
        """
        order = self._orders[bucket]
        if order is None:
            order = self._order(_hash(b"%d" % bucket))
            order = self._orders[bucket] = self._distinct.setdefault(order, order)
        return order

    def _order(self, hashed: int) -> tuple[R, ...]:
        scores: list[float] = [hashed * seed & _MASK for seed in self._seeds]
        if len(set(self._weights)) > 1:  # else the logarithm changes no order
            scores = [log((score + 1) * _UNIT) / weight for score, weight in zip(scores, self._weights, strict=True)]
        ordered = sorted(zip(scores, self._members, strict=True), key=itemgetter(0), reverse=True)
        return tuple([replica for _, replica in ordered])
