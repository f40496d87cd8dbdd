"""A silent peer counts as dead by its own silence, not by pauses of the side that judges it; in simulated time."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import DEAD_AFTER_S, DEAD_ALONE_AFTER_S, HEARTBEAT_INTERVAL_S, LATE_AFTER_S, MIN_LOOK_S, Silence

LIMITS_S = st.sampled_from([DEAD_AFTER_S, DEAD_ALONE_AFTER_S])
PAUSES = st.lists(st.tuples(st.floats(0.01, 20.0), st.floats(0.01, 60.0)), max_size=6)
"""Pauses of the judging side: how long it ran before each of them, and how long each lasts, in seconds."""


class Clock:
    """The clock of a simulation, with the pauses during which the judging side does not run while time goes on."""

    def __init__(self, pauses: list[tuple[float, float]]) -> None:
        self.now_s = 0.0
        self._spans: list[tuple[float, float]] = []
        end_s = 0.0
        for ran_s, lasts_s in pauses:
            self._spans.append((end_s + ran_s, end_s + ran_s + lasts_s))
            end_s = self._spans[-1][1]

    @property
    def last_pause_s(self) -> float:
        """The time at which the last pause ends; 0 if there is no pause."""
        return self._spans[-1][1] if self._spans else 0.0

    def runs_at(self, at_s: float) -> float:
        """Return the first time from `at_s` on at which the judging side runs."""
        return next((end_s for begin_s, end_s in self._spans if begin_s <= at_s < end_s), at_s)


def given_up_at(
    limit_s: float, messages_s: list[float], pauses: list[tuple[float, float]], until_s: float
) -> float | None:
    """Return the time at which the judging side gives its peer up; None if no check due before `until_s` does.

    limit_s: the silence after which a peer is given up. messages_s: the times at which messages arrive. A message that
    arrives during a pause is read after the check at the end of the pause, which is the worst case. pauses: how long
    the judging side runs before each pause, and how long the pause lasts, in seconds.
    """
    clock = Clock(pauses)
    silence, left = Silence(0.0), sorted(messages_s)
    due_s = silence.next_look_s(limit_s)
    while due_s < until_s:
        if left and left[0] == clock.runs_at(left[0]) <= due_s:  # read at once
            silence.note_message(left.pop(0))
            continue
        now_s = clock.runs_at(due_s)
        if silence.is_over(limit_s, now_s):
            return now_s
        while left and left[0] <= now_s:
            silence.note_message(now_s)
            left.pop(0)
        due_s = now_s + silence.next_look_s(limit_s)
    return None


@given(LIMITS_S, st.data(), PAUSES)
def test_a_peer_that_sends_its_heartbeats_lives_however_often_and_long_the_judge_pauses(
    limit_s: float, data: st.DataObject, pauses: list[tuple[float, float]]
) -> None:
    gaps = data.draw(st.lists(st.floats(0.1, limit_s - LATE_AFTER_S - 0.01), min_size=5, max_size=80), "gaps")
    messages_s = list(accumulate(gaps))
    assert given_up_at(limit_s, messages_s, pauses, messages_s[-1]) is None


@given(LIMITS_S, st.data())
def test_a_peer_lives_by_gaps_just_below_the_limit_where_the_judge_runs(limit_s: float, data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.floats(0.1, limit_s - 0.001), min_size=1, max_size=20), "gaps")
    messages_s = list(accumulate(gaps))
    assert given_up_at(limit_s, messages_s, [], messages_s[-1]) is None


@given(LIMITS_S, st.lists(st.floats(0.1, 1.2), max_size=20), PAUSES)
def test_a_dead_peer_is_given_up_soon_after_the_judge_runs_and_never_before_the_limit(
    limit_s: float, gaps: list[float], pauses: list[tuple[float, float]]
) -> None:
    messages_s = list(accumulate(gaps))
    last_s = messages_s[-1] if messages_s else 0.0
    dead_s = given_up_at(limit_s, messages_s, pauses, float("inf"))
    assert dead_s is not None
    assert dead_s >= last_s + limit_s - 1e-6
    assert dead_s <= max(last_s, Clock(pauses).last_pause_s) + limit_s + HEARTBEAT_INTERVAL_S


@given(LIMITS_S, st.floats(0.0, 1.2))
def test_a_judge_that_runs_gives_a_dead_peer_up_at_the_limit(limit_s: float, last_s: float) -> None:
    dead_s = given_up_at(limit_s, [last_s], [], float("inf"))
    assert dead_s is not None and abs(dead_s - last_s - limit_s) < 2 * MIN_LOOK_S


def test_a_judge_that_was_stopped_for_an_hour_first_reads_what_waits() -> None:
    assert given_up_at(DEAD_AFTER_S, [1.0, 3600.2], [(1.5, 3600.0)], 3603.0) is None


def test_a_dead_peer_is_given_up_by_a_judge_that_is_late_at_every_look() -> None:
    silence, now_s, num_looks = Silence(0.0), 0.0, 0
    while not silence.is_over(DEAD_AFTER_S, now_s):
        now_s, num_looks = now_s + 2 * LATE_AFTER_S, num_looks + 1
    assert num_looks == 2 * DEAD_AFTER_S / LATE_AFTER_S
