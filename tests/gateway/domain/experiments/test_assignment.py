"""Units keep their arms for ever, as few new ones as possible move, and experiments know nothing of each other."""

from __future__ import annotations

import math
import random
import re
from array import array
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gateway.domain import experiments
from gateway.domain.errors import Conflict, InvalidRequest
from gateway.domain.experiments.allocation import (
    Owner,
    arm_shares,
    bucket_counts,
    bucket_table,
    exposed_units,
    first_split,
    free_slots,
    num_moved_buckets,
    rebalanced_table,
    with_more_coverage,
    with_weights,
    without_arm,
)
from gateway.domain.experiments.assignment import NUM_BUCKETS, Exposed, Holdout, Split, assign, bucket, unit_digest

PAGE = Path(experiments.__file__).with_name("README.md")
SEED, LAYER, PROJECT = bytes(range(32)), bytes(32), b"p" * 32
ALL = range(NUM_BUCKETS)


def arm_of(split: Split, unit: str) -> tuple[int, str]:
    assigned = assign(split, unit, unit_digest(PROJECT, unit))
    return assigned.arm, assigned.reason


def exposed_by(split: Split, units: list[str]) -> dict[bytes, int]:
    found = {}
    for unit in units:
        digest = unit_digest(PROJECT, unit)
        assigned = assign(split, unit, digest)
        if assigned.is_analysed:
            found[digest] = assigned.epoch
    return found


@pytest.mark.parametrize(
    ("unit", "expected"), [("user-1", 7804), ("user-2", 6789), ("ann@example.com", 4295), ("é", 8394)]
)
def test_buckets_are_those_of_every_release(unit: str, expected: int) -> None:
    assert bucket(SEED, unit) == expected


def test_the_published_test_vectors_of_assignment_hold() -> None:
    rows = re.findall(r"^\| `(.+)` \| `([0-9a-f]{32})` \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) >= 4
    for unit, digest, expected in rows:
        assert blake2b(unit.encode(), key=SEED, digest_size=16).hexdigest() == digest
        assert bucket(SEED, unit) == int(expected)


def test_the_hash_is_keyed_blake2b() -> None:
    assert blake2b(b"user-1", key=SEED, digest_size=16).hexdigest() == "2bbd2c0bbd82cdc76d05cd31613b7b66"


def test_digests_of_two_projects_differ() -> None:
    assert unit_digest(PROJECT, "ann") != unit_digest(b"q" * 32, "ann")
    assert len(unit_digest(PROJECT, "ann")) == 16


@pytest.mark.parametrize(
    ("before", "after", "least"),
    [
        ((1, 1, 1), (2, 1, 1), 1667),
        ((1, 1, 1, 1), (4, 2, 2, 2), 1500),
        ((1, 3, 6), (6, 3, 1), 5000),
        ((95, 5), (9, 1), 500),
        ((1, 1), (1, 0), 5000),
    ],
)
def test_weights_change_by_the_least_moves(before: tuple[int, ...], after: tuple[int, ...], least: int) -> None:
    first = bucket_table(before)
    second = rebalanced_table(first, after)
    assert abs(num_moved_buckets(first, second) - least) <= 1
    assert [second.count(arm) for arm in range(len(after))] == bucket_counts(after)


def test_buckets_add_up_whatever_the_weights() -> None:
    rng = random.Random(1)
    for _ in range(200):
        weights = [rng.randrange(0, 10_001) for _ in range(rng.randrange(2, 9))] + [1]
        counts = bucket_counts(weights)
        assert sum(counts) == NUM_BUCKETS
        assert all(abs(n - w * NUM_BUCKETS / sum(weights)) < 1 for n, w in zip(counts, weights, strict=True))


def test_bad_weights_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as refused:
        bucket_counts([1, -1])
    assert refused.value.param == "arms[1].weight"
    with pytest.raises(InvalidRequest) as refused:
        bucket_counts([0, 0])
    assert refused.value.param == "arms"


def test_reasons_say_why_a_unit_gets_the_control() -> None:
    split = first_split(SEED, LAYER, range(5_000), (0, 1), Holdout(b"h" * 32, 5_000))
    reasons = {arm_of(split, f"unit {number}") for number in range(200)}
    assert reasons == {(1, "split"), (0, "held_out"), (0, "not_covered")}
    assert assign(split, None, b"").reason == assign(split, "", b"").reason == "no_unit"


def test_a_paused_experiment_gives_everybody_the_control_and_the_same_arms_later() -> None:
    split = first_split(SEED, LAYER, ALL, (1, 1))
    units = [f"unit {number}" for number in range(100)]
    before = [arm_of(split, unit) for unit in units]
    paused = msgspec.structs.replace(split, paused=True)
    assert {arm_of(paused, unit) for unit in units} == {(0, "paused")}
    assert [arm_of(split, unit) for unit in units] == before


def test_closed_enrolment_keeps_the_exposed_and_gives_new_units_the_control() -> None:
    split = first_split(SEED, LAYER, ALL, (0, 1))
    closed = msgspec.structs.replace(split, enrolling=False, exposed=exposed_units(exposed_by(split, ["known"])))
    assert arm_of(closed, "known") == (1, "split")
    assert arm_of(closed, "new") == (0, "enrolment_closed")


def test_more_coverage_moves_nobody_and_its_weights_are_for_new_slots_alone() -> None:
    units = [f"unit {number}" for number in range(3_000)]
    split = first_split(SEED, LAYER, range(1_000), (1, 1))
    wider = with_more_coverage(split, range(1_000, 3_000))
    ramped = with_more_coverage(wider, range(3_000, 6_000), (9, 1))
    before, middle = exposed_by(split, units), exposed_by(wider, units)
    assert set(before) < set(middle) < set(exposed_by(ramped, units))
    for unit in units:
        if arm_of(wider, unit)[1] == "split":
            assert arm_of(ramped, unit) == arm_of(wider, unit)
    assert arm_shares(ramped, 2, 2) == (0.9, 0.1)


def test_an_ended_arm_leaves_all_others_where_they_are() -> None:
    units = [f"unit {number}" for number in range(2_000)]
    split = with_more_coverage(first_split(SEED, LAYER, range(4_000), (1, 1, 1)), range(4_000, 9_000), (2, 1, 1))
    before = {unit: arm_of(split, unit) for unit in units}
    fewer = without_arm(split, 2)
    for unit in units:
        assert arm_of(fewer, unit) == ((0, "arm_ended") if before[unit] == (2, "split") else before[unit])
    assert arm_shares(fewer, 3, 3)[2] == 0 and sum(arm_shares(fewer, 3, 3)) == pytest.approx(1)
    after = with_weights(fewer, (1, 1, 0), exposed_units(exposed_by(fewer, units)))
    assert {arm_of(after, unit) for unit in units if before[unit] == (1, "split")} == {(1, "split")}
    with pytest.raises(Conflict):
        without_arm(fewer, 1)
    with pytest.raises(InvalidRequest) as refused:
        with_weights(fewer, (1, 1, 1), exposed_units({}))
    assert refused.value.param == "arms[2].weight"


def test_slots_of_a_layer_have_one_owner() -> None:
    first = first_split(SEED, LAYER, free_slots("default", [], 6_000), (1, 1))
    owners = [Owner("first", "stopped", first.slots)]
    second = free_slots("default", owners, 4_000)
    assert not any(first.slots[slot] for slot in second)
    with pytest.raises(Conflict) as refused:
        free_slots("default", owners, 4_001)
    assert refused.value.param == "coverage"
    assert "'first' (stopped) holds 60 %, until it is decided: decide 'first'." in refused.value.message


def test_a_full_layers_refusal_names_those_with_most_units_and_not_the_asker() -> None:
    sizes = {"a": 1_000, "b": 5_000, "c": 500, "d": 2_000, "e": 1_500}
    owners: list[Owner] = []
    for name, size in sizes.items():
        split = first_split(SEED, LAYER, free_slots("default", owners, size), (1, 1))
        owners.append(Owner(name, "running", split.slots))
    with pytest.raises(Conflict) as refused:
        free_slots("default", owners, 100, asker="d")
    said = "'b' (running) holds 50 %, 'e' (running) holds 15 %, 'a' (running) holds 10 %, and 1 other hold"
    assert said in refused.value.message and "'d'" not in refused.value.message
    assert "stop 'b' and decide it" in refused.value.message


def test_epochs_have_a_bound() -> None:
    split = first_split(SEED, LAYER, ALL, (1, 1))
    with pytest.raises(Conflict):
        for number in range(300):
            split = with_weights(split, (1, number + 1), exposed_units({}))


def test_coverage_tells_nothing_about_the_arm() -> None:
    split = first_split(SEED, LAYER, range(1_000), (1, 1))
    arms = [arm for arm, reason in (arm_of(split, f"u{number}") for number in range(60_000)) if reason == "split"]
    assert abs(len(arms) - 6_000) < 4 * (60_000 * 0.09) ** 0.5
    assert abs(sum(arms) - len(arms) / 2) < 4 * (len(arms) / 4) ** 0.5


def test_no_exposed_unit_ever_moves(full: bool) -> None:
    """200 random changes of weights and coverage; units are exposed in between, and new units follow the new
    weights."""
    num_units = 1_000_000 if full else 20_000
    rng, random_units = np.random.default_rng(5), random.Random(5)
    units = [f"user-{number}" for number in range(num_units)]
    slot, place = (np.array([bucket(seed, unit) for unit in units]) for seed in (LAYER, SEED))
    keys = np.array([int.from_bytes(unit_digest(PROJECT, unit)[:8], "little") for unit in units], dtype="<u8")
    order = np.argsort(keys)
    split = first_split(SEED, LAYER, range(500), (1, 1, 1))
    epoch_of, arm_seen, covered = np.zeros(num_units, np.uint8), np.full(num_units, -1), 500
    for step in range(200):
        weights = [random_units.randrange(1, 100) for _ in range(3)]
        before = split.tables[-1]
        if step % 4 == 0 and covered < NUM_BUCKETS:
            more = min(NUM_BUCKETS - covered, random_units.randrange(1, 400))
            split = with_more_coverage(split, range(covered, covered + more), weights if step % 8 else None)
            covered += more
        else:
            known = order[epoch_of[order] > 0]
            index = Exposed(array("Q", keys[known].tobytes()), epoch_of[known].tobytes())
            split = with_weights(split, weights, index)
        assert num_moved_buckets(before, split.tables[-1]) == sum(
            max(0, split.tables[-1].count(arm) - before.count(arm)) for arm in range(3)
        )
        tables = np.array([np.frombuffer(each, np.uint8) for each in split.tables]).astype(np.int16)
        epochs = np.where(epoch_of > 0, epoch_of, np.frombuffer(split.slots, np.uint8)[slot])
        arms = np.where(epochs > 0, tables[np.maximum(epochs, 1) - 1, place], -1)
        seen = arm_seen >= 0
        assert (arms[seen] == arm_seen[seen]).all()
        for each in rng.integers(0, num_units, 20):  # the table agrees with the gateway's function
            assigned = assign(split, units[each], unit_digest(PROJECT, units[each]))
            assert (assigned.arm if assigned.is_analysed else -1) == arms[each]
        newly = (rng.random(num_units) < 0.02) & (arms >= 0) & ~seen
        arm_seen[newly], epoch_of[newly] = arms[newly], epochs[newly]
    assert (arm_seen >= 0).mean() > 0.5


def test_experiments_are_independent_of_each_other(full: bool) -> None:
    """The chi-squared p values of the 2 x 2 tables of pairs of experiments are uniform."""
    num_pairs, num_units = (1_000, 2_000) if full else (100, 500)
    units = [f"user-{number}" for number in range(num_units)]
    values = []
    for pair in range(num_pairs):
        a, b = (
            np.array([bucket(blake2b(f"{pair} {side}".encode(), digest_size=32).digest(), unit) for unit in units])
            >= NUM_BUCKETS // 2
            for side in "ab"
        )
        both, n = float((a & b).sum()), num_units
        expected = a.sum() * b.sum() / n
        spread = expected * (n - a.sum()) * (n - b.sum()) / n / n
        values.append(_normal_p(float((both - expected) / spread**0.5)))
    values.sort()
    distance = max(abs(value - (rank + 0.5) / num_pairs) for rank, value in enumerate(values))
    assert distance < 1.63 / num_pairs**0.5  # Kolmogorov and Smirnov at 1 %


def _normal_p(z: float) -> float:
    return math.erfc(abs(z) / math.sqrt(2))
