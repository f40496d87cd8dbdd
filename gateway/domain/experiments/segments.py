"""The results of an experiment at one look by segment: the split of each, and the value of each metric in it.

Each segment must be split as the whole is; one that is not tells where units are lost. Knows neither tables nor words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gateway.domain.experiments.definition import Experiment
from gateway.domain.experiments.effects import Kind as MetricKind
from gateway.domain.experiments.results import ArmResult, Comparison, SumsRow, Tally, UnitsRow, results_of
from gateway.domain.experiments.segment_values import KINDS, Kind
from gateway.domain.experiments.statistics import counts, many
from gateway.domain.experiments.statistics.counts import EpochCounts


class SegmentUnits(msgspec.Struct, frozen=True):
    """Units of one segment, epoch and arm."""

    kind: Kind
    value: str
    epoch: int
    arm: int
    """The index of the arm."""
    units: int
    delivered: int
    """Units that got the whole treatment with each of their requests."""


class SegmentSplit(msgspec.Struct, frozen=True):
    """The split of one segment's units between the arms."""

    kind: Kind
    value: str
    units: tuple[int, ...]
    """The number of units by arm."""
    expected: tuple[float, ...]
    """The number of units by arm that the declared shares give, over all epochs."""
    log_e: float
    """ln of the E-value against these shares, over all epochs."""
    is_srm: bool
    """True if e-BH over all segments finds that the units are not split as declared."""


def splits_of(rows: Sequence[SegmentUnits], shares: Mapping[int, tuple[float, ...]]) -> list[SegmentSplit]:
    """Return the split of each segment, in the order of kinds and values. shares: the shares by arm, of each epoch."""
    found = []
    for kind, value in sorted(
        {(row.kind, row.value) for row in rows}, key=lambda each: (KINDS.index(each[0]), each[1])
    ):
        own = [row for row in rows if (row.kind, row.value) == (kind, value)]
        epochs = [_epoch_counts(own, epoch, each) for epoch, each in sorted(shares.items())]
        units = tuple(map(sum, zip(*(each.counts for each in epochs), strict=True)))
        expected = tuple(sum(sum(each.counts) * each.shares[arm] for each in epochs) for arm in range(len(units)))
        found.append(SegmentSplit(kind, value, units, expected, counts.srm_log_e(epochs), is_srm=False))
    broken = many.e_bh([each.log_e for each in found], counts.SRM_ALPHA)
    return [msgspec.structs.replace(each, is_srm=at in broken) for at, each in enumerate(found)]


def _epoch_counts(rows: Sequence[SegmentUnits], epoch: int, shares: tuple[float, ...]) -> EpochCounts:
    units = [sum(row.units for row in rows if (row.epoch, row.arm) == (epoch, arm)) for arm in range(len(shares))]
    return EpochCounts(tuple(units), shares)


class SegmentResults(msgspec.Struct, frozen=True):
    """The results of a look at one segment."""

    split: SegmentSplit
    arms: tuple[ArmResult, ...]
    comparisons: tuple[Comparison, ...]
    discoveries: tuple[int, ...]
    """Indexes in `comparisons` of the effects that e-BH over all segments of the kind keeps: among many comparisons,
    some look like effects by chance."""


def results_of_segments(
    experiment: Experiment,
    shares: Mapping[int, tuple[float, ...]],
    splits: Sequence[SegmentSplit],
    units: Sequence[SegmentUnits],
    sums: Mapping[str, Sequence[SumsRow]],
    own: Mapping[str, MetricKind],
) -> list[SegmentResults]:
    """Return the results of a look at the segments of one kind.

    There are no quantiles, and no guardrails, which are about all units.
    splits, units: those of this kind.
    sums: the sums by the value of the segment.
    own: the kind of each metric of the project's own.
    """
    found = []
    for split in splits:
        rows = [UnitsRow(0, row.epoch, row.arm, row.units, row.delivered) for row in units if row.value == split.value]
        shown = results_of(experiment, Tally(shares, rows, sums.get(split.value, ())), own)
        found.append(SegmentResults(split, shown.arms, shown.comparisons, ()))
    places = [(at, index) for at, each in enumerate(found) for index in range(len(each.comparisons))]
    log_es = [found[at].comparisons[index].effect.log_e for at, index in places]
    rejected = {places[each] for each in many.e_bh(log_es, experiment.analysis.alpha)}
    return [
        msgspec.structs.replace(each, discoveries=tuple(sorted(index for place, index in rejected if place == at)))
        for at, each in enumerate(found)
    ]
