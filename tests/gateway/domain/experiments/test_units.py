"""Sums follow events in any order, late and corrected ones too, and equal a recount in every integer."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.experiments.effects import Kind
from gateway.domain.experiments.feedback.judged import judge_key
from gateway.domain.experiments.quantiles import bucket_of
from gateway.domain.experiments.sums import NO_UNITS, Sums, Unit, sums_of
from gateway.domain.experiments.units import (
    DAY_US,
    MAX_AGES,
    NO_ROWS,
    NOTHING,
    AgeKey,
    Counts,
    Event,
    Key,
    Rows,
    SegmentKey,
    UnitState,
    contribution,
    num_ages,
    rows_of,
    state_after_events,
    table_changes,
    with_event,
)

WINDOW_US = 7 * DAY_US
OWN: dict[str, Kind] = {"thumbs_up": "ratio", "paid": "mean"}

small = st.integers(-5, 50)


@st.composite
def units_events(draw: st.DrawFn) -> list[Event]:
    """Draw the events of one unit: requests with corrections, refusals, votes, and withdrawn votes."""
    events = []
    for number in range(draw(st.integers(0, 6))):
        at_us, request_id = draw(st.integers(0, 10 * DAY_US)), f"req_{number}"
        counts = Counts(1, draw(st.integers(0, 1)), 0, 0, *(draw(small) for _ in range(3)))
        times = draw(st.dictionaries(st.sampled_from(["ttft_ms", "queue_ms"]), st.integers(0, 10**7), max_size=2))
        arm = draw(st.integers(0, 1)), draw(st.integers(0, 2))
        segments = draw(st.sampled_from([(), ("key_1",) * 5, ("key_2",) * 5]))
        events.append(Event(at_us, request_id, counts, arm, 0, draw(st.booleans()), times, segments=segments))
        if draw(st.booleans()):
            correction = Counts(0, -counts.num_errors, cost_nanos=draw(small))
            times = {"ttft_ms": draw(st.integers(0, 9))}
            events.append(Event(at_us, request_id, correction, arm, 1, times_us=times, segments=segments))
    for number in range(draw(st.integers(0, 4))):
        key, value = draw(st.sampled_from(["thumbs_up", "paid", judge_key("paid")])), draw(small)
        at_us, num_votes = draw(st.integers(0, 20 * DAY_US)), int(key != judge_key("paid"))
        events.append(Event(at_us, f"req_{number}", Counts(num_votes=num_votes), votes={key: (value, 1)}))
        if draw(st.booleans()):
            events.append(Event(at_us, f"req_{number}", Counts(num_votes=-num_votes), votes={key: (-value, -1)}))
    return draw(st.permutations(events))


def follow_events(events: Sequence[Event], closed_after: int) -> tuple[UnitState | None, Tables]:
    """Follow events one by one as a bookkeeper does; return the unit's state and the tables.

    closed_after: the number of events after which the unit's window counts as closed.
    """
    state: UnitState | None = None
    tables, before = Tables(), NO_ROWS
    for number, event in enumerate(events, 1):
        state = None if state is None else with_event(state, event, WINDOW_US)
        if state is None:
            state = state_after_events(events[:number], WINDOW_US)
        after = rows_of(state, WINDOW_US, OWN, is_closed=number >= closed_after)
        tables.add(before, after)
        before = after
    closed = rows_of(state, WINDOW_US, OWN, is_closed=True)
    tables.add(before, closed)
    return state, tables


class Tables:
    """An experiment's tables in memory, which are only modified by changes."""

    def __init__(self) -> None:
        self.units: dict[Key, tuple[int, int, int]] = {}
        self.sums: dict[tuple[Key, str], Sums] = {}
        self.times: dict[tuple[Key, str, int], int] = {}
        self.ages: dict[AgeKey, Sums] = {}
        self.segment_units: dict[SegmentKey, tuple[int, int, int]] = {}
        self.segment_sums: dict[tuple[SegmentKey, str], Sums] = {}

    def add(self, before: Rows, after: Rows) -> None:
        found = table_changes(before, after)
        for units, listed in ((self.units, found.units), (self.segment_units, found.segment_units)):
            for key, more in listed.items():
                known = units.get(key, NOTHING)
                units[key] = known[0] + more[0], known[1] + more[1], known[2] + more[2]
        for sums, changed in ((self.sums, found.sums), (self.segment_sums, found.segment_sums)):
            for place, each in changed.items():
                sums[place] = sums.get(place, NO_UNITS) + each
        for bucket, num in found.times.items():
            self.times[bucket] = self.times.get(bucket, 0) + num
        for age, sums in found.ages.items():
            self.ages[age] = self.ages.get(age, NO_UNITS) + sums

    def full(self) -> tuple[object, ...]:
        """Return the content of the tables, without rows of zeros."""
        return (
            {key: each for key, each in self.units.items() if each != NOTHING},
            {key: each for key, each in self.sums.items() if each != NO_UNITS},
            {key: each for key, each in self.times.items() if each},
            {key: each for key, each in self.ages.items() if each != NO_UNITS},
            {key: each for key, each in self.segment_units.items() if each != NOTHING},
            {key: each for key, each in self.segment_sums.items() if each != NO_UNITS},
        )


def recounted(units: Iterable[Rows]) -> Tables:
    """Return tables that are counted from all units anew."""
    tables = Tables()
    for rows in units:
        tables.add(NO_ROWS, rows)
    return tables


PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Settings of hypothesis for a busy machine, which draws examples slowly."""


@PATIENT
@given(units_events(), st.randoms(use_true_random=False), st.integers(0, 12))
def test_any_order_of_events_gives_the_sums_of_a_recount(events: list[Event], rng: random.Random, closed: int) -> None:
    state, tables = follow_events(events, closed)
    rng.shuffle(events)
    again, other = follow_events(events, 12 - closed)
    assert state == again == state_after_events(events, WINDOW_US)
    whole = recounted([rows_of(state, WINDOW_US, OWN, is_closed=True)])
    assert tables.full() == other.full() == whole.full()


@PATIENT
@given(st.lists(units_events(), max_size=4))
def test_a_unit_that_is_forgotten_leaves_nothing(listed: list[list[Event]]) -> None:
    rows = [rows_of(state_after_events(events, WINDOW_US), WINDOW_US, OWN, is_closed=True) for events in listed]
    tables = recounted(rows)
    for each in rows[1:]:
        tables.add(each, NO_ROWS)
    assert tables.full() == recounted(rows[:1]).full()


@given(units_events())
def test_days_since_exposure_add_up_to_the_whole_window(events: list[Event]) -> None:
    state = state_after_events(events, WINDOW_US)
    rows = rows_of(state, WINDOW_US, OWN, is_closed=True)
    whole = {metric: unit.y for (_, metric), unit in rows.sums.items()}
    for metric in ("cost_nanos", "completion_tokens", "paid"):
        by_day = sum(unit.y for (_, _, name, _), unit in rows.ages.items() if name == metric)
        assert by_day == whole.get(metric, by_day)
    assert all(0 <= age < 7 for _, _, _, age in rows.ages)


def test_days_since_exposure_are_bounded_and_a_window_of_one_day_has_none() -> None:
    assert [num_ages(days * DAY_US) for days in (0, 1, 2, 28, 90)] == [0, 0, 2, MAX_AGES, MAX_AGES]
    events = [Event(day * DAY_US, f"req_{day}", Counts(1), (1, 0)) for day in range(90)]
    state = state_after_events(events, 90 * DAY_US)
    assert state is not None and sorted(state.days) == list(range(MAX_AGES))


def test_sums_equal_the_sums_of_the_units_outcomes() -> None:
    costs = [3, 0, 7_000_000_001]
    exposed = [Event(0, "req_1", Counts(1, cost_nanos=cost), (1, 0)) for cost in costs]
    tables = recounted(
        rows_of(state_after_events([each], WINDOW_US), WINDOW_US, OWN, is_closed=True) for each in exposed
    )
    assert tables.units == {(0, 1, 0): (3, 3, 3)}
    assert tables.sums[(7, 1, 0), "cost_nanos"] == sums_of(Unit(cost) for cost in costs)


def test_only_errors_and_refusals_count_before_the_window_has_closed() -> None:
    failed = state_after_events([Event(DAY_US, "req_1", Counts(1, 1, cost_nanos=5), (1, 1))], WINDOW_US)
    refused = state_after_events([Event(DAY_US, "req_2", Counts(1, 0, 1), (1, 1))], WINDOW_US)
    open_ones = [rows_of(state, WINDOW_US, OWN, is_closed=False) for state in (failed, refused)]
    day: Key = (1, 1, 1)
    assert [rows.sums for rows in open_ones] == [
        {(day, "error_rate"): Unit(1), (day, "refusal_rate"): Unit(0)},
        {(day, "error_rate"): Unit(0), (day, "refusal_rate"): Unit(1)},
    ]
    closed = rows_of(failed, WINDOW_US, OWN, is_closed=True)
    assert closed.sums[(8, 1, 1), "cost_nanos"] == Unit(5)


def test_events_after_the_window_or_before_the_first_exposure_are_left_out() -> None:
    exposed = Event(DAY_US, "req_2", Counts(1, cost_nanos=1), (1, 0))
    late = Event(DAY_US + WINDOW_US, "req_3", Counts(1, cost_nanos=10), (1, 0))
    early = Event(DAY_US - 1, "req_1", Counts(num_votes=1), votes={"thumbs_up": (1, 1)})
    last = Event(DAY_US + WINDOW_US - 1, "req_4", Counts(1, cost_nanos=100), (1, 0))
    state = state_after_events([late, early, exposed, last], WINDOW_US)
    assert state is not None
    assert (state.counts, state.votes) == (Counts(2, cost_nanos=101), {})


def test_a_unit_keeps_the_arm_of_its_first_exposure() -> None:
    first, second = Event(5, "req_1", Counts(1), (1, 1)), Event(6, "req_2", Counts(1), (2, 0))
    state = state_after_events([second], WINDOW_US)
    assert state is not None and with_event(state, first, WINDOW_US) is None, "its window moves"
    state = state_after_events([second, first], WINDOW_US)
    assert state is not None and (state.first_us, state.epoch, state.arm) == (5, 1, 1)


def test_the_time_of_a_unit_is_that_of_its_first_request_by_its_best_row() -> None:
    slow = Event(5, "req_1", Counts(1), (1, 0), times_us={"ttft_ms": 900_000})
    better = Event(5, "req_1", Counts(), (1, 0), 1, times_us={"ttft_ms": 300_000})
    later = Event(6, "req_2", Counts(1), (1, 0), times_us={"ttft_ms": 1_000})
    rows = rows_of(state_after_events([later, better, slow], WINDOW_US), WINDOW_US, OWN, is_closed=True)
    assert rows.times == {((7, 1, 0), "ttft_ms"): bucket_of(300.0)}


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("ttft_ms", Unit(30, d=2)), ("length_rate", Unit(1, d=3)), ("answer_rate", Unit(1)), ("time_per_token_ms", None)],
)
def test_ratios_divide_by_requests_and_have_no_value_without_any(metric: str, expected: Unit | None) -> None:
    state = state_after_events(
        [Event(0, "req_1", Counts(3, num_cut=1, ttft_us=30, num_ttft=2, num_votes=2), (1, 0))], WINDOW_US
    )
    assert state is not None and contribution(state.counts, metric) == expected
