"""Changes of many units of many experiments, added up in memory. Knows no SQL."""

from __future__ import annotations

from gateway.db.experiments import segments
from gateway.domain.experiments.sums import NO_UNITS, Sums
from gateway.domain.experiments.units import NOTHING, AgeKey, Changes, Key

UnitsOf = dict[tuple[str, Key], tuple[int, int, int]]
SumsOf = dict[tuple[str, Key, str], Sums]
TimesOf = dict[tuple[str, Key, str, int], int]
AgesOf = dict[tuple[str, AgeKey], Sums]
TotalsOf = dict[tuple[str, int, int, str], Sums]
"""Sums by experiment, epoch, arm and metric, over all days together."""
TimeTotalsOf = dict[tuple[str, int, int, str, int], int]
"""Units by experiment, epoch, arm, metric and bucket, over all days together."""


class Total:
    """Changes of many units of many experiments, added up, so that one statement per table writes them."""

    def __init__(self) -> None:
        self.units: UnitsOf = {}
        self.sums: SumsOf = {}
        self.times: TimesOf = {}
        self.ages: AgesOf = {}
        self.segment_units: segments.UnitsOf = {}
        self.segment_sums: segments.SumsOf = {}

    def add(self, experiment_id: str, changes: Changes) -> None:
        """Add the changes of one unit."""
        for key, (units, delivered, requests) in changes.units.items():
            known = self.units.get((experiment_id, key), NOTHING)
            self.units[experiment_id, key] = known[0] + units, known[1] + delivered, known[2] + requests
        for (key, metric), sums in changes.sums.items():
            self.sums[experiment_id, key, metric] = self.sums.get((experiment_id, key, metric), NO_UNITS) + sums
        for (key, metric, bucket), num in changes.times.items():
            place = experiment_id, key, metric, bucket
            self.times[place] = self.times.get(place, 0) + num
        for age, sums in changes.ages.items():
            self.ages[experiment_id, age] = self.ages.get((experiment_id, age), NO_UNITS) + sums
        for of_segments, (units, delivered, requests) in changes.segment_units.items():
            known = self.segment_units.get((experiment_id, of_segments), NOTHING)
            counted = known[0] + units, known[1] + delivered, known[2] + requests
            self.segment_units[experiment_id, of_segments] = counted
        for (of_segments, metric), sums in changes.segment_sums.items():
            where = experiment_id, of_segments, metric
            self.segment_sums[where] = self.segment_sums.get(where, NO_UNITS) + sums

    def totals(self) -> TotalsOf:
        """Return the sums of all days together."""
        found: TotalsOf = {}
        for (experiment_id, (_, epoch, arm), metric), sums in self.sums.items():
            place = experiment_id, epoch, arm, metric
            found[place] = found.get(place, NO_UNITS) + sums
        return {place: each for place, each in found.items() if each != NO_UNITS}

    def time_totals(self) -> TimeTotalsOf:
        """Return the units by bucket of all days together."""
        found: TimeTotalsOf = {}
        for (experiment_id, (_, epoch, arm), metric, bucket), num in self.times.items():
            place = experiment_id, epoch, arm, metric, bucket
            found[place] = found.get(place, 0) + num
        return {place: num for place, num in found.items() if num}

    def nonzero(self) -> tuple[UnitsOf, SumsOf, TimesOf, AgesOf]:
        """Return the units, sums, times and ages that are not zero."""
        return (
            {key: each for key, each in self.units.items() if each != NOTHING},
            {key: each for key, each in self.sums.items() if each != NO_UNITS},
            {key: each for key, each in self.times.items() if each},
            {key: each for key, each in self.ages.items() if each != NO_UNITS},
        )
