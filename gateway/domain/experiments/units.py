"""The part of one unit in an experiment's sums: a pure function of its events, in whatever order they come.

Events are rows of the ledger, refusals and votes. A unit's outcomes count from its first exposure until its outcome
window ends; then they are added to the sums of the day on which the window ended. Units with an error or a refusal are
counted at once, on the day of their first exposure, since guardrails cannot wait. A unit's outcomes are also counted by
days since its first exposure, as far as whole days fit into its window. All numbers are integers, so that a recount is
equal rather than close.

`state_after_events` counts anew from all events of a unit, `with_event` adds one event to what is known, and both
agree. Knows neither tables nor where events come from.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from gateway.domain.experiments.effects import Kind
from gateway.domain.experiments.feedback.judged import judged_units
from gateway.domain.experiments.metrics import METRICS
from gateway.domain.experiments.quantiles import bucket_of
from gateway.domain.experiments.segment_values import Values
from gateway.domain.experiments.sums import NO_UNITS, Sums, Unit, change

DAY_US = 86_400_000_000
US_PER_MS = 1_000

MAX_AGES = 28
"""The most days since a unit's first exposure that are counted each on its own."""


class Counts(msgspec.Struct, frozen=True, array_like=True):
    """Integers that add up over a unit's requests. The counts of a correction may be negative."""

    num_requests: int = 0
    num_errors: int = 0
    num_refusals: int = 0
    num_cut: int = 0
    """Requests that ended because they reached their maximum number of tokens."""
    cost_nanos: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ttft_us: int = 0
    """The sum of the times to the first token, in microseconds."""
    num_ttft: int = 0
    """Requests that got a first token: others have no time to it."""
    token_us: int = 0
    """The sum over requests of the mean time per token, in microseconds."""
    num_token_times: int = 0
    """Requests that have a time per token."""
    queue_us: int = 0
    """The sum of the times in the engines' queues, in microseconds."""
    engine_us: int = 0
    """The sum of the times that engines computed, in microseconds."""
    num_votes: int = 0
    """Votes of people and programs, without those of judges."""

    def __add__(self, other: Counts) -> Counts:
        """Return the sum of these counts and the other ones."""
        return Counts(*map(operator.add, _values(self), _values(other)))


NO_COUNTS = Counts()


class Event(msgspec.Struct, frozen=True):
    """Something that a unit did: a row of the ledger, a refusal or a vote."""

    at_us: int
    """The time at which the request was admitted or refused, or the vote was cast, in microseconds of Unix time."""
    request_id: str
    counts: Counts = NO_COUNTS
    """The counts that the event adds."""
    exposure: tuple[int, int] | None = None
    """The epoch and the index of the arm that the request got; None for votes, which expose nobody to anything."""
    revision: int = 0
    """The number of the row among those about the same request, from 0; a later row has the additions to the counts."""
    is_delivered: bool = True
    """True if the request got the arm's whole treatment."""
    times_us: Mapping[str, int] = {}
    """The request's times in microseconds, by the metrics that have quantiles."""
    votes: Mapping[str, tuple[int, int]] = {}
    """The amounts that the event adds to the sum and to the number of the unit's votes by a metric of the project's
    own, a judge's apart (`judged.judge_key`); a vote that is replaced is subtracted."""
    segments: Values = ()
    """The segments of the request; empty for votes, and where they are not known."""


class FirstTime(msgspec.Struct, frozen=True, array_like=True):
    """The time of one metric of a unit, taken from the unit's first request that has the metric."""

    at_us: int
    """The time of the request, in microseconds of Unix time."""
    request_id: str
    revision: int
    """The revision of the ledger's row that the time was taken from."""
    us: int
    """The metric's time, in microseconds."""


class DayOutcomes(msgspec.Struct, frozen=True, array_like=True):
    """The outcomes of a unit on one day since its first exposure."""

    counts: Counts = NO_COUNTS
    votes: Mapping[str, tuple[int, int]] = {}
    """The sum of the day's votes and their number, by metric."""


NO_OUTCOMES = DayOutcomes()


class UnitState(msgspec.Struct, frozen=True, array_like=True):
    """The facts about a unit that was exposed."""

    first_us: int
    """The time of the first exposure, in microseconds of Unix time."""
    first_id: str
    """The id of the request that exposed the unit first."""
    epoch: int
    """The epoch that chose the arm."""
    arm: int
    """The index of the arm."""
    is_delivered: bool
    """True if all the unit's requests within the window got the arm's whole treatment."""
    counts: Counts
    """The sums over the unit's requests within its window."""
    votes: Mapping[str, tuple[int, int]]
    """The sum of the unit's votes and their number, by metric, a judge's apart."""
    firsts: Mapping[str, FirstTime]
    """The time of each metric that has quantiles, by metric."""
    days: Mapping[int, DayOutcomes] = {}
    """The outcomes by days since the first exposure: days that are counted on their own (`num_ages`) and on which the
    unit did something."""
    before: Mapping[str, int] = {}
    """The unit's outcomes before its first exposure, by metric (`covariates_of`): the covariate.

    Metrics with 0 are left out.
    """
    segments: Values = ()
    """The segments of the request that exposed the unit first; empty where they are not known."""

    def closes_us(self, window_us: int) -> int:
        """Return the end of the unit's outcome window, in microseconds of Unix time."""
        return self.first_us + window_us


Key = tuple[int, int, int]
"""A day since 1970 in UTC, an epoch and the index of an arm."""

SegmentKey = tuple[Values, int, int]
"""The segments of units, an epoch and the index of an arm."""


AgeKey = tuple[int, int, str, int]
"""An epoch, the index of an arm, a metric, and days since a unit's first exposure."""


class Rows(msgspec.Struct, frozen=True):
    """The contribution of one unit to an experiment's tables."""

    units: Mapping[Key, tuple[int, int, int]] = {}
    """Units, units that got the whole treatment, and their requests within their windows."""
    sums: Mapping[tuple[Key, str], Unit] = {}
    """The contributions by day, epoch, arm and metric."""
    times: Mapping[tuple[Key, str], int] = {}
    """The bucket of the unit's time (`quantiles.bucket_of`), by key and metric."""
    ages: Mapping[AgeKey, Unit] = {}
    """The contributions by days since the first exposure, for units whose window ended; idle days are left out."""
    segments: Values = ()
    """The segments that the unit and its sums count in."""


NO_ROWS = Rows()
NOTHING = (0, 0, 0)


class Changes(msgspec.Struct, frozen=True):
    """The amounts to add to an experiment's tables, in any order with other changes."""

    units: Mapping[Key, tuple[int, int, int]]
    """The changes of the numbers of units, of those that got the whole treatment, and of their requests."""
    sums: Mapping[tuple[Key, str], Sums]
    """The changes of the sums of metrics."""
    times: Mapping[tuple[Key, str, int], int]
    """The change of the number of units in each bucket."""
    ages: Mapping[AgeKey, Sums] = {}
    """The changes of the sums of metrics by days since exposure."""
    segment_units: Mapping[SegmentKey, tuple[int, int, int]] = {}
    """The changes of the numbers of units by segment, over all days."""
    segment_sums: Mapping[tuple[SegmentKey, str], Sums] = {}
    """The changes of the sums of metrics by segment, over all days."""


def state_after_events(events: Iterable[Event], window_us: int) -> UnitState | None:
    """Return the state of a unit after all its events; None where it was never exposed.

    window_us: the length of the outcome window in microseconds.
    """
    listed = list(events)
    exposures = [event for event in listed if event.exposure is not None]
    if not exposures:
        return None
    first = min(exposures, key=_place)
    assert first.exposure is not None
    state = UnitState(first.at_us, first.request_id, *first.exposure, True, NO_COUNTS, {}, {}, segments=first.segments)
    for event in listed:
        state = _state_after(state, event, window_us)
    return state


def with_event(state: UnitState, event: Event, window_us: int) -> UnitState | None:
    """Return the state of a unit after one more event.

    Return None if the event exposed the unit before its known first exposure, which moves the outcome window: the
    caller then computes the state anew by `state_after_events`.
    """
    if event.exposure is not None:
        known, new = (state.first_us, state.first_id), _place(event)
        if new < known or (new == known and event.exposure != (state.epoch, state.arm)):
            return None
    return _state_after(state, event, window_us)


def num_ages(window_us: int) -> int:
    """Return how many days since a unit's first exposure are counted each on its own: none where its window has one."""
    days = min(window_us // DAY_US, MAX_AGES)
    return days if days > 1 else 0


def covariates_of(
    first_us: int, earlier: Iterable[tuple[str, UnitState, int]], own: Mapping[str, Kind]
) -> Mapping[str, int]:
    """Return a unit's outcomes before its first exposure, by metric; only means over units have covariates.

    The outcomes are taken from one other experiment of the project: the one in which the unit's outcome window ended
    last before first_us. Metrics with 0 are left out.

    first_us: the time of the first exposure, in microseconds of Unix time.
    earlier: the unit in other experiments with the same source of units: the experiment's id, the state, and the length
    of the window in microseconds.
    own: as for `rows_of`.
    """
    ended = [
        (state.closes_us(window_us), experiment_id, state)
        for experiment_id, state, window_us in earlier
        if state.closes_us(window_us) <= first_us
    ]
    if not ended:
        return {}
    last = max(ended, key=lambda each: each[:2])[2]
    values = {name: unit.y for name in _MEANS if (unit := contribution(last.counts, name)) is not None}
    values |= {name: total for name, (total, _) in last.votes.items() if own.get(name) == "mean"}
    return {name: int(value) for name, value in sorted(values.items()) if value}


def rows_of(state: UnitState | None, window_us: int, own: Mapping[str, Kind], *, is_closed: bool) -> Rows:
    """Return the contribution of a unit to an experiment's tables.

    is_closed: True if the unit's outcome window counts as ended.
    own: the kind of each metric of the project's own.
    state: None: the unit was never exposed, and contributes nothing. window_us: the length of the outcome window in
    microseconds.
    """
    if state is None:
        return NO_ROWS
    first: Key = (state.first_us // DAY_US, state.epoch, state.arm)
    last: Key = (state.closes_us(window_us) // DAY_US, state.epoch, state.arm)
    sums = {(first, name): unit for name in AT_ONCE if (unit := contribution(state.counts, name, state.before))}
    times: dict[tuple[Key, str], int] = {}
    ages: dict[AgeKey, Unit] = {}
    if is_closed:
        for name in RECIPES:
            if (unit := contribution(state.counts, name, state.before)) is not None:
                sums[last, name] = unit
        sums |= {(last, name): unit for name, unit in _of_votes(state.votes, own, state.before)}
        sums |= {(last, name): unit for name, unit in judged_units(state.votes, own)}
        times = {(last, name): bucket_of(each.us / US_PER_MS) for name, each in state.firsts.items()}
        for age in range(num_ages(window_us) if state.days else 0):
            did = state.days.get(age, NO_OUTCOMES)
            named = [(name, contribution(did.counts, name)) for name in METRICS] if did is not NO_OUTCOMES else []
            ages |= {
                (state.epoch, state.arm, name, age): unit
                for name, unit in [*named, *_of_votes(did.votes, own)]
                if unit is not None and (unit.y or unit.d)
            }
    units = {first: (1, int(state.is_delivered), state.counts.num_requests)}
    return Rows(units, sums, times, ages, segments=state.segments)


def contribution(counts: Counts, metric: str, before: Mapping[str, int] | None = None) -> Unit | None:
    """Return a unit's contribution to a built-in metric; None where it has no value.

    before: the values of the unit's state before its first exposure.
    """
    x = before.get(metric, 0) if before else 0
    if metric in AT_ONCE:
        return Unit(int(getattr(counts, AT_ONCE[metric]) > 0), x)
    above, below = RECIPES[metric]
    if metric in _FLAGS:
        return Unit(int(getattr(counts, above) > 0), x)
    if below is None:
        return Unit(getattr(counts, above), x)
    denominator = getattr(counts, below)
    return Unit(getattr(counts, above), d=denominator) if denominator else None


def _of_votes(
    votes: Mapping[str, tuple[int, int]], own: Mapping[str, Kind], before: Mapping[str, int] | None = None
) -> Iterable[tuple[str, Unit]]:
    """Yield the contributions of votes to the metrics of the project's own.

    votes: the sum and the number of the votes by metric. before: the covariates of the unit; None: there are none.
    """
    for name, (total, num_votes) in votes.items():
        if name not in own or not num_votes:
            continue
        is_ratio = own[name] == "ratio"
        yield name, Unit(total, 0 if is_ratio else (before or {}).get(name, 0), num_votes if is_ratio else 0)


def table_changes(before: Rows, after: Rows) -> Changes:
    """Return the changes of tables that hold `before` of a unit, so that they hold `after`."""
    units = {
        key: (mine[0] - its[0], mine[1] - its[1], mine[2] - its[2])
        for key in _union(before.units, after.units)
        if (mine := after.units.get(key, NOTHING)) != (its := before.units.get(key, NOTHING))
    }
    sums = {
        key: difference
        for key in _union(before.sums, after.sums)
        if (difference := change(before.sums.get(key), after.sums.get(key))) != NO_UNITS
    }
    times: dict[tuple[Key, str, int], int] = {}
    for listed, sign in ((before.times, -1), (after.times, 1)):
        for (key, metric), bucket in listed.items():
            place = key, metric, bucket
            times[place] = times.get(place, 0) + sign
    ages = {
        key: difference
        for key in _union(before.ages, after.ages)
        if (difference := change(before.ages.get(key), after.ages.get(key))) != NO_UNITS
    }
    if before.units and after.units and before.segments != after.segments:  # its first request was another one
        gone, come = table_changes(before, NO_ROWS), table_changes(NO_ROWS, after)
        by_segment = {**gone.segment_units, **come.segment_units}, {**gone.segment_sums, **come.segment_sums}
    else:
        by_segment = _of_all_days(units, sums, after.segments or before.segments)
    return Changes(units, sums, {place: num for place, num in times.items() if num}, ages, *by_segment)


def _of_all_days(
    units: Mapping[Key, tuple[int, int, int]], sums: Mapping[tuple[Key, str], Sums], segments: Values
) -> tuple[dict[SegmentKey, tuple[int, int, int]], dict[tuple[SegmentKey, str], Sums]]:
    """Return the units and sums of segments with those of all days added up; none where the segments are not known."""
    all_units: dict[SegmentKey, tuple[int, int, int]] = {}
    all_sums: dict[tuple[SegmentKey, str], Sums] = {}
    if segments:
        for (_, epoch, arm), (num, delivered, requests) in units.items():
            key = segments, epoch, arm
            known = all_units.get(key, NOTHING)
            all_units[key] = known[0] + num, known[1] + delivered, known[2] + requests
        for ((_, epoch, arm), metric), each in sums.items():
            place = (segments, epoch, arm), metric
            all_sums[place] = all_sums[place] + each if place in all_sums else each
    return all_units, all_sums


AT_ONCE: dict[str, str] = {"error_rate": "num_errors", "refusal_rate": "num_refusals"}
"""Metrics that count a unit at its first request of a kind, each with the field of `Counts` for such requests."""

RECIPES: dict[str, tuple[str, str | None]] = {
    "cost_nanos": ("cost_nanos", None),
    "prompt_tokens": ("prompt_tokens", None),
    "completion_tokens": ("completion_tokens", "num_requests"),
    "ttft_ms": ("ttft_us", "num_ttft"),
    "time_per_token_ms": ("token_us", "num_token_times"),
    "queue_ms": ("queue_us", "num_requests"),
    "engine_ms": ("engine_us", "num_requests"),
    "length_rate": ("num_cut", "num_requests"),
    "answer_rate": ("num_votes", None),
}
"""By metric, the count that is the numerator and, for ratios, the count that is the denominator.

Times are in microseconds.
"""

_FLAGS = frozenset({"answer_rate"})

_MEANS = (*AT_ONCE, *(name for name, (_, below) in RECIPES.items() if below is None))
"""The built-in metrics that are means over units."""

IN_EVERY_UNIT = frozenset(_MEANS)
"""Metrics that have a value for each unit on each day since its first exposure: 0 where the unit did nothing."""

assert METRICS.keys() == AT_ONCE.keys() | RECIPES.keys()


def _state_after(state: UnitState, event: Event, window_us: int) -> UnitState:
    """Return a unit's state after an event. An event outside of the unit's window changes nothing."""
    if not state.first_us <= event.at_us < state.closes_us(window_us):
        return state
    age, days = (event.at_us - state.first_us) // DAY_US, dict(state.days)
    if age < num_ages(window_us):
        did = days.pop(age, NO_OUTCOMES)
        did = DayOutcomes(did.counts + event.counts, _with_votes(did.votes, event))
        if did != NO_OUTCOMES:
            days[age] = did
    firsts = dict(state.firsts)
    for metric, time_us in event.times_us.items():
        new = FirstTime(event.at_us, event.request_id, event.revision, time_us)
        firsts[metric] = min(
            firsts.get(metric, new), new, key=lambda each: (each.at_us, each.request_id, -each.revision)
        )
    return msgspec.structs.replace(
        state,
        is_delivered=state.is_delivered and event.is_delivered,
        counts=state.counts + event.counts,
        votes=_with_votes(state.votes, event),
        firsts=firsts,
        days=days,
    )


def _with_votes(votes: Mapping[str, tuple[int, int]], event: Event) -> Mapping[str, tuple[int, int]]:
    """Return sums and numbers of votes by metric with those of an event."""
    if not event.votes:
        return votes
    changed = dict(votes)
    for metric, (more, num) in event.votes.items():
        total, num_votes = changed.get(metric, (0, 0))
        changed[metric] = total + more, num_votes + num
    return {metric: both for metric, both in changed.items() if both != (0, 0)}


def _place(event: Event) -> tuple[int, str]:
    """Return the key that orders exposures: time and id of the request."""
    return event.at_us, event.request_id


def _values(counts: Counts) -> tuple[Any, ...]:
    return msgspec.structs.astuple(counts)


def _union(before: Collection[Any], after: Collection[Any]) -> list[Any]:
    return [*before, *(key for key in after if key not in before)]
