"""The arm of an experiment that a unit gets: a pure function of keyed hashes and tables.

No I/O, no clock, no randomness.

A unit passes up to three hashes, each under a key of its own, so that none tells anything about another:

1. its holdout's seed: held-out units are in no experiment of any layer;
2. its layer's seed: one of 10,000 slots, each owned by at most one experiment, which gives coverage;
3. the experiment's seed: one of 10,000 buckets, which a table maps to an arm.

The table is that of the unit's epoch: the epoch that covered the unit's slot, or the one in which the unit was exposed
first. Later weights therefore never move a unit that has seen an arm. `allocation` makes and changes splits.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from functools import lru_cache
from hashlib import blake2b
from typing import Literal

import msgspec

NUM_BUCKETS = 10_000
"""Buckets of an experiment's table, slots of a layer, and parts that a holdout is measured in."""
SEED_BYTES = 32
DIGEST_BYTES = 16
MAX_EPOCHS = 255
CONTROL = 0
"""The index of the arm that everybody gets without an experiment: the first."""
ENDED_BUCKET = 255
"""The entry of a bucket whose arm has ended."""

Reason = Literal["split", "forced", "arm_ended", "enrolment_closed", "held_out", "not_covered", "no_unit", "paused"]
"""The reason why a request gets its arm. Only requests with `split` are analysed."""

OPEN_FEATURE_REASONS: dict[Reason, str] = {
    "split": "split",
    "forced": "targeting_match",
    "arm_ended": "disabled",
    "enrolment_closed": "disabled",
    "held_out": "default",
    "not_covered": "default",
    "no_unit": "default",
    "paused": "disabled",
}
"""The reason in OpenFeature's words, in lower case, for each of our reasons."""


class Exposed(msgspec.Struct, frozen=True):
    """The units that had seen an arm when weights changed: nine bytes a unit."""

    keys: array[int]
    """The first eight bytes, little-endian, of the units' digests, ascending, of type `Q`."""
    epochs: bytes
    """The epoch of the first exposure of each unit."""

    def epoch(self, digest: bytes) -> int:
        """Return the epoch of the first exposure of the unit with this digest; 0 where it was not exposed."""
        key = int.from_bytes(digest[:8], "little")
        at = bisect_left(self.keys, key)
        return self.epochs[at] if at < len(self.keys) and self.keys[at] == key else 0


class Holdout(msgspec.Struct, frozen=True):
    """Units that are kept out of all experiments of a project."""

    seed: bytes
    size: int
    """The part of the units that is kept out, in parts of 10,000."""


class Split(msgspec.Struct, frozen=True):
    """All that an experiment's assignment depends on; a gateway holds one for each running experiment."""

    seed: bytes
    """32 secret bytes of the experiment."""
    layer_seed: bytes
    """32 secret bytes of the experiment's layer."""
    slots: bytes
    """For each slot of the layer the epoch that covers it; 0 where the experiment does not own it."""
    tables: tuple[bytes, ...]
    """The table of each epoch from the first, numbered 1: for each bucket the index of its arm."""
    exposed: Exposed | None = None
    """The units that were exposed before the latest weights; None before an epoch has taken slots of an earlier one."""
    ended: tuple[int, ...] = ()
    """The indexes of arms that have ended: their units get the control and are no longer analysed."""
    enrolling: bool = True
    """False while an epoch changes: units that are not in `exposed` get the control."""
    paused: bool = False
    """True if all units get the control."""
    holdout: Holdout | None = None


class Assigned(msgspec.Struct, frozen=True):
    """The arm that one request gets."""

    arm: int
    """The index of the arm; the control's for every reason but `split` and `forced`."""
    reason: Reason
    epoch: int = 0
    """The epoch whose table chose the arm; 0 for reasons other than `split`."""

    @property
    def is_analysed(self) -> bool:
        """True if the unit counts in the results."""
        return self.reason == "split"


_NO_UNIT, _PAUSED = Assigned(CONTROL, "no_unit"), Assigned(CONTROL, "paused")
_HELD_OUT, _NOT_COVERED = Assigned(CONTROL, "held_out"), Assigned(CONTROL, "not_covered")
_CLOSED, _ARM_ENDED = Assigned(CONTROL, "enrolment_closed"), Assigned(CONTROL, "arm_ended")


def unit_digest(project_key: bytes, unit: str) -> bytes:
    """Return the 16 bytes by which a project's tables know a unit.

    project_key: 32 secret bytes of the project, so that two projects' digests of one person differ, and a digest cannot
    be guessed back from a list of names.
    """
    hasher = _keyed(project_key, b"lorikeet unit").copy()
    hasher.update(unit.encode())
    return hasher.digest()


def bucket(seed: bytes, unit: str) -> int:
    """Return the bucket of a unit, 0 to 9,999.

    The bucket is the first eight bytes, little-endian, of BLAKE2b-128 of the unit's UTF-8 under a seed, times 10,000,
    shifted right by 64.
    """
    hasher = _keyed(seed).copy()
    hasher.update(unit.encode())
    return int.from_bytes(hasher.digest()[:8], "little") * NUM_BUCKETS >> 64


@lru_cache(maxsize=4_096)
def _keyed(key: bytes, person: bytes = b"") -> blake2b:
    """Return a hasher that has read its key: copying it takes a third less time than reading the key again.

    person: the personalization of BLAKE2 (RFC 7693), by which hashes under one key differ by purpose.
    """
    return blake2b(key=key, digest_size=DIGEST_BYTES, person=person)


def assign(split: Split, unit: str | None, digest: bytes) -> Assigned:
    """Return the arm of a unit.

    unit: None or empty where the request names none.
    digest: the unit's digest by `unit_digest`; read where `split.exposed` is set.
    """
    if not unit:
        return _NO_UNIT
    if split.paused:
        return _PAUSED
    if split.holdout is not None and bucket(split.holdout.seed, unit) < split.holdout.size:
        return _HELD_OUT
    epoch = split.slots[bucket(split.layer_seed, unit)]
    if not epoch:
        return _NOT_COVERED
    seen = 0 if split.exposed is None else split.exposed.epoch(digest)
    if not seen and not split.enrolling:
        return _CLOSED
    epoch = seen or epoch
    arm = split.tables[epoch - 1][bucket(split.seed, unit)]
    if arm == ENDED_BUCKET or arm in split.ended:
        return _ARM_ENDED
    return Assigned(arm, "split", epoch)
