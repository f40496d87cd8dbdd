"""The split is checked in each segment: silent while it holds, and a fault is found in its segment."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gateway.domain.experiments.segment_values import KINDS, MAX_VALUES, OTHER, Kind, add_segment_values, segments_of
from gateway.domain.experiments.segments import SegmentSplit, SegmentUnits, splits_of

SHARES = {1: (0.95, 0.05)}
EVEN = {1: (0.5, 0.5)}
VALUES: dict[Kind, tuple[str, ...]] = {
    "api_key": ("key_1", "key_2", OTHER),
    "endpoint": ("chat.completions", "completions"),
    "stream": ("false", "true"),
    "service_tier": ("default",),
    "gateway": ("gw_1", "gw_2"),
}


def rows(counts: dict[tuple[Kind, str], tuple[int, int]], epoch: int = 1) -> list[SegmentUnits]:
    """Return the segments' units, from their counts in two arms."""
    return [
        SegmentUnits(kind, value, epoch, arm, units, units)
        for (kind, value), both in counts.items()
        for arm, units in enumerate(both)
    ]


def mismatched_segments(splits: list[SegmentSplit]) -> set[tuple[Kind, str]]:
    return {(each.kind, each.value) for each in splits if each.is_srm}


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_split_of_95_to_5_is_silent_for_a_million_units(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = {(kind, value): np.zeros(2, int) for kind, values in VALUES.items() for value in values}
    for _ in range(200):  # looks
        arms = rng.random(5_000) < SHARES[1][1]
        for kind, values in VALUES.items():
            where = rng.choice(len(values), 5_000, p=np.array([8, 1, 1][: len(values)]) / sum([8, 1, 1][: len(values)]))
            for at, value in enumerate(values):
                counts[kind, value] += np.bincount(arms[where == at], minlength=2)
        shown = splits_of(rows({place: (int(a), int(b)) for place, (a, b) in counts.items()}), SHARES)
        assert mismatched_segments(shown) == set()
    assert sum(sum(each.units) for each in shown if each.kind == "stream") == 1_000_000


def test_an_arm_that_loses_streams_alone_is_found_in_that_segment_before_it_shows_in_the_whole() -> None:
    rng = random.Random(1)
    counts = {("stream", "true"): [0, 0], ("stream", "false"): [0, 0], ("api_key", "key_1"): [0, 0]}
    found: set[tuple[Kind, str]] = set()
    while not found:
        stream, arm = ("true" if rng.random() < 0.1 else "false"), rng.randrange(2)
        if stream == "true" and arm == 1:
            continue  # lost before anything counted it
        counts["stream", stream][arm] += 1
        counts["api_key", "key_1"][arm] += 1
        both = {place: (a, b) for place, (a, b) in counts.items()}
        found = mismatched_segments(splits_of(rows(both), EVEN))  # type: ignore[arg-type]
    assert found == {("stream", "true")}
    assert counts["stream", "true"] == [counts["stream", "true"][0], 0] and counts["stream", "true"][0] <= 50


def test_epochs_with_other_weights_are_no_fault_of_a_segment() -> None:
    ramp = rows({("stream", "true"): (1_800, 200)}) + rows({("stream", "true"): (1_000, 1_000)}, epoch=2)
    (shown,) = splits_of(ramp, {1: (0.9, 0.1), 2: (0.5, 0.5)})
    assert (shown.units, shown.is_srm) == ((2_800, 1_200), False)
    assert shown.expected == pytest.approx((2_800, 1_200))
    assert splits_of(ramp, {1: (0.5, 0.5), 2: (0.5, 0.5)})[0].is_srm


def test_more_segments_need_more_evidence() -> None:
    lost = {("stream", "true"): (100, 40)}
    assert mismatched_segments(splits_of(rows(lost), EVEN)) == {("stream", "true")}  # type: ignore[arg-type]
    crowd = {("api_key", f"key_{number}"): (50, 50) for number in range(MAX_VALUES)}
    assert mismatched_segments(splits_of(rows(lost | crowd), EVEN)) == set()  # type: ignore[arg-type, operator]


def test_a_unit_stays_in_its_segments_whatever_values_come_later() -> None:
    known: dict[Kind, set[str]] = {}
    first = ("key_1", "chat.completions", "true", "default", "gw_1")
    add_segment_values(known, [first])
    before = segments_of(first, known)
    add_segment_values(
        known, [(f"key_{number}", "chat.completions", "false", "flex", f"gw_{number}") for number in range(2, 99)]
    )
    late = ("key_98", "completions", "false", "default", "gw_1")
    assert segments_of(late, known)[0] == ("api_key", OTHER)
    add_segment_values(known, [late])
    assert segments_of(first, known) == before == list(zip(KINDS, first, strict=True))
    assert {kind: len(values) for kind, values in known.items()} == {
        "api_key": MAX_VALUES,
        "endpoint": 2,
        "stream": 2,
        "service_tier": 2,
        "gateway": MAX_VALUES,
    }
    assert segments_of((), known) == []
