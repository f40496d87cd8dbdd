"""Allocates buckets and slots: tables from weights, changes by the fewest moves, coverage of a layer, epochs.

Every change makes a new `Split`; no change moves a unit that has been exposed.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gateway.domain.errors import Conflict, InvalidRequest
from gateway.domain.experiments.assignment import ENDED_BUCKET, MAX_EPOCHS, NUM_BUCKETS, Exposed, Holdout, Split
from gateway.domain.experiments.states import State

MAX_NAMED = 3
"""The most experiments that an error message names."""


class Owner(msgspec.Struct, frozen=True):
    """An experiment that owns slots of a layer."""

    name: str
    state: State
    slots: bytes
    """The slots that the experiment owns, as `Split.slots` has them."""


def bucket_counts(weights: Sequence[int]) -> list[int]:
    """Return how many of 10,000 buckets each arm gets, by largest remainders; ties go to the earlier arm.

    Raises InvalidRequest: when a weight is negative, or all are 0.
    """
    total = sum(weights)
    for at, weight in enumerate(weights):
        if weight < 0:
            raise InvalidRequest("A weight is 0 or more.", param=f"arms[{at}].weight")
    if total <= 0:
        raise InvalidRequest("At least one arm needs a weight above 0.", param="arms")
    counts = [weight * NUM_BUCKETS // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda arm: (-(weights[arm] * NUM_BUCKETS % total), arm))
    for arm in by_remainder[: NUM_BUCKETS - sum(counts)]:
        counts[arm] += 1
    return counts


def bucket_table(weights: Sequence[int]) -> bytes:
    """Return the table of buckets for weights: a run of buckets for each arm, in the arms' order."""
    return b"".join(bytes([arm]) * count for arm, count in enumerate(bucket_counts(weights)))


def rebalanced_table(before: bytes, weights: Sequence[int]) -> bytes:
    """Return the table of new weights that differs from another one in the fewest buckets, half the sum of |changes|.

    Arms with too many buckets give their highest ones, arms with too few take them in ascending order.
    """
    wanted = bucket_counts(weights)
    surplus = {arm: count - (wanted[arm] if arm < len(wanted) else 0) for arm, count in Counter(before).items()}
    after, free = bytearray(before), []
    for at in range(NUM_BUCKETS - 1, -1, -1):
        if surplus[before[at]] > 0:
            surplus[before[at]] -= 1
            free.append(at)
    takers = (arm for arm, count in enumerate(wanted) for _ in range(count - before.count(arm)))
    for at, arm in zip(reversed(free), takers, strict=True):
        after[at] = arm
    return bytes(after)


def num_moved_buckets(before: bytes, after: bytes) -> int:
    """Return the number of buckets in which two tables differ."""
    return sum(a != b for a, b in zip(before, after, strict=True))


def free_slots(layer: str, owners: Sequence[Owner], count: int, *, asker: str = "") -> list[int]:
    """Return the lowest slots of a layer that no experiment owns.

    layer: the name of the layer.
    owners: all experiments that own slots of the layer.
    asker: the name of the experiment that wants more slots than it owns.

    Raises Conflict: when fewer than `count` are free; the message names the other experiments that own most.
    """
    free = [slot for slot, epochs in enumerate(_union(owners)) if not epochs]
    if len(free) < count:
        raise Conflict(
            f"The layer '{layer}' has {len(free) / 100:g} % of its units free, and {count / 100:g} % are needed. "
            f"{_holders([each for each in owners if each.name != asker])}You can also ask for less coverage, or use "
            "another layer.",
            param="coverage",
        )
    return free[:count]


def num_free(owners: Iterable[Owner]) -> int:
    """Return the number of slots of a layer that no experiment owns. owners: as for `free_slots`."""
    return _union(owners).count(0)


def first_split(
    seed: bytes, layer_seed: bytes, slots: Iterable[int], weights: Sequence[int], holdout: Holdout | None = None
) -> Split:
    """Return the split of an experiment that starts, its first epoch covering some slots of its layer.

    holdout: the holdout that the experiment names; None for none.
    """
    return Split(seed, layer_seed, _with_epoch(bytes(NUM_BUCKETS), slots, 1), (bucket_table(weights),), holdout=holdout)


def with_more_coverage(split: Split, slots: Iterable[int], weights: Sequence[int] | None = None) -> Split:
    """Return a split that covers more slots of its layer.

    slots: free slots.
    weights: the weights for units of these slots alone, as a new epoch; None: those of the last epoch.
    No look-up of exposed units is needed: no unit of the new slots was exposed.

    Raises Conflict: when there are too many epochs.
    """
    if weights is None:
        return msgspec.structs.replace(split, slots=_with_epoch(split.slots, slots, len(split.tables)))
    _check_ended(split, weights)
    tables = (*split.tables, rebalanced_table(split.tables[-1], weights))
    return msgspec.structs.replace(split, slots=_with_epoch(split.slots, slots, _number(tables)), tables=tables)


def with_weights(split: Split, weights: Sequence[int], exposed: Exposed) -> Split:
    """Return a split with new weights for all units that have not been exposed, as a new epoch.

    exposed: all units that have been exposed by now. Enrolment has to be closed from before these were read until all
    gateways have the new split.

    Raises Conflict: when there are too many epochs.
    Raises InvalidRequest: when an arm that has ended gets a weight.
    """
    _check_ended(split, weights)
    tables = (*split.tables, rebalanced_table(split.tables[-1], weights))
    covered = [slot for slot, epoch in enumerate(split.slots) if epoch]
    slots = _with_epoch(split.slots, covered, _number(tables))
    return msgspec.structs.replace(split, slots=slots, tables=tables, exposed=exposed, enrolling=True)


def without_arm(split: Split, arm: int) -> Split:
    """Return a split without one arm: its buckets get the control and are not analysed, all others stay as they are.

    Each epoch that covers slots is followed by one of its own, so that shares of units are judged by epoch.
    Raises Conflict: when there are too many epochs, or fewer than two arms would be left.
    """
    ended = (*split.ended, arm)
    if len({each for each in split.tables[-1] if each != ENDED_BUCKET} - set(ended)) < 2:
        raise Conflict("Two arms have to stay: stop the experiment instead.", param="arms")
    tables, slots = list(split.tables), split.slots
    for epoch in sorted(set(split.slots) - {0}):
        tables.append(split.tables[epoch - 1].replace(bytes([arm]), bytes([ENDED_BUCKET])))
        slots = slots.replace(bytes([epoch]), bytes([_number(tables)]))
    return msgspec.structs.replace(split, slots=slots, tables=tuple(tables), ended=ended)


def arm_shares(split: Split, epoch: int, num_arms: int) -> tuple[float, ...]:
    """Return the part of an epoch's analysed units that each arm should get; 0 for arms that had ended."""
    counts = [split.tables[epoch - 1].count(arm) for arm in range(num_arms)]
    return tuple(count / sum(counts) for count in counts)


def exposed_units(epochs: Mapping[bytes, int]) -> Exposed:
    """Return the index of exposed units. epochs: by each unit's digest, the epoch of its first exposure."""
    pairs = sorted((int.from_bytes(digest[:8], "little"), epoch) for digest, epoch in epochs.items())
    return Exposed(array("Q", [key for key, _ in pairs]), bytes(epoch for _, epoch in pairs))


def _union(owners: Iterable[Owner]) -> bytes:
    """Return the layer's 10,000 slots as bytes: 0 for each slot that no experiment owns."""
    taken = 0
    for owner in owners:
        taken |= int.from_bytes(owner.slots, "big")
    return taken.to_bytes(NUM_BUCKETS, "big")


def _holders(owners: Sequence[Owner]) -> str:
    """Return a sentence about the experiments that own a layer's slots, the largest first, and how to free slots."""
    sized = sorted(((NUM_BUCKETS - each.slots.count(0), each) for each in owners), key=lambda it: (-it[0], it[1].name))
    named = [f"'{each.name}' ({each.state}) holds {size / 100:g} %" for size, each in sized[:MAX_NAMED]]
    if not named:
        return ""
    more = len(sized) - len(named)
    first = sized[0][1]
    freed = f"decide '{first.name}'" if first.state == "stopped" else f"stop '{first.name}' and decide it"
    others = f", and {more} other{'s' * (more != 1)} hold some" if more else ""
    return f"{', '.join(named)}{others}, until it is decided: {freed}. "


def _check_ended(split: Split, weights: Sequence[int]) -> None:
    for arm in split.ended:
        if arm < len(weights) and weights[arm]:
            raise InvalidRequest("An arm that has ended has the weight 0.", param=f"arms[{arm}].weight")


def _with_epoch(slots: bytes, taken: Iterable[int], epoch: int) -> bytes:
    marked = bytearray(slots)
    for slot in taken:
        marked[slot] = epoch
    return bytes(marked)


def _number(tables: Sequence[bytes]) -> int:
    if len(tables) > MAX_EPOCHS:
        raise Conflict(f"An experiment has at most {MAX_EPOCHS} epochs: start a new one.", param="arms")
    return len(tables)
