"""Windows are the calendar's, amounts are the most a request can use, and no function here reads the time of day."""

from __future__ import annotations

import ast
import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway.domain
from gateway.domain.limits.limit import (
    NS_PER_S,
    RATED,
    SIZES,
    UNITS,
    WINDOWS,
    Calendar,
    Unit,
    Window,
    calendar_window,
    limit_fault,
)
from gateway.domain.limits.refusal import duration
from gateway.domain.limits.work import PRICE_SCALE, Price, PromptWork, RequestWork

INSTANTS = st.integers(min_value=0, max_value=4 * 10**9).map(lambda seconds: seconds * NS_PER_S)
WORKS = st.builds(
    RequestWork,
    parts=st.lists(
        st.builds(PromptWork, st.just("req"), st.integers(1, 500), st.integers(1, 8), st.integers(0, 500)),
        min_size=1,
        max_size=4,
    ).map(tuple),
    price=st.builds(Price, st.integers(0, 50 * PRICE_SCALE), st.integers(0, 50 * PRICE_SCALE)),
)


def utc(text: str) -> int:
    return int(datetime.datetime.fromisoformat(f"{text}+00:00").timestamp())


@pytest.mark.parametrize(
    ("window", "instant", "start", "end"),
    [
        ("minute", "2026-02-28 23:59:59", "2026-02-28 23:59", "2026-03-01 00:00"),
        ("day", "2026-02-28 23:59:59", "2026-02-28 00:00", "2026-03-01 00:00"),
        ("month", "2026-02-28 23:59:59", "2026-02-01 00:00", "2026-03-01 00:00"),
        ("month", "2026-12-01 00:00:00", "2026-12-01 00:00", "2027-01-01 00:00"),
        ("month", "2028-02-29 12:00:00", "2028-02-01 00:00", "2028-03-01 00:00"),
    ],
)
def test_windows_are_those_of_the_calendar_in_utc(window: Window, instant: str, start: str, end: str) -> None:
    found = calendar_window(window, utc(instant) * NS_PER_S)
    assert (found.start, found.end) == (utc(start), utc(end))


@given(st.lists(INSTANTS, max_size=20))
def test_a_calendar_remembers_what_is_true(instants: list[int]) -> None:
    calendar = Calendar()
    for instant in instants:
        assert [calendar.period(window, instant) for window in WINDOWS] == [
            calendar_window(each, instant) for each in WINDOWS
        ]


@given(WORKS, st.sampled_from(sorted(RATED)), st.integers(0, 10**6))
def test_the_cap_is_within_the_budget(work: RequestWork, unit: Unit, budget: int) -> None:
    cap = work.cap_within(unit, budget)
    if cap is None:
        assert work.amount(unit, 0) > budget
    else:
        assert 0 <= cap <= work.max_tokens
        assert work.amount(unit, cap) <= budget
    if work.amount(unit, work.max_tokens) <= budget:
        assert cap == work.max_tokens


@given(WORKS, st.sampled_from(sorted(RATED)), st.integers(0, 500))
def test_the_amounts_of_the_parts_add_up_to_the_requests_amount(work: RequestWork, unit: Unit, cap: int) -> None:
    assert work.amount(unit, cap) == sum(most for (most,) in work.of_parts([unit], cap))


def test_every_combination_is_allowed_or_says_why() -> None:
    allowed = {
        (unit, window)
        for unit in UNITS
        for window in WINDOWS
        if limit_fault(unit, window, hard=True, alert_percents=()) is None
    }
    assert {window for unit, window in allowed if unit == "requests"} == {"minute", "day", "month"}
    assert {window for unit, window in allowed if unit == "tokens"} == {"minute", "day", "month", "none"}
    assert {window for unit, window in allowed if unit == "concurrency"} == {"none"}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("window", WINDOWS)
def test_alert_thresholds_are_refused_for_limits_that_never_alert(unit: Unit, window: Window) -> None:
    if limit_fault(unit, window, hard=True, alert_percents=()) is not None:
        return
    soft = limit_fault(unit, window, hard=False, alert_percents=())
    percents = limit_fault(unit, window, hard=True, alert_percents=(80,))
    assert (soft is None) == (percents is None) == (window != "none")
    if percents is not None and soft is not None:
        assert (percents[0], soft[0]) == ("alert_percents", "window" if unit in SIZES else "hard")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0ms"),
        (0.012, "12ms"),
        (1.5, "1.5s"),
        (59, "59s"),
        (360, "6m0s"),
        (86_399, "23h59m59s"),
        (90_000, "25h0m0s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_no_clock_of_the_machine_is_read() -> None:
    """Time comes from PostgreSQL's clock and from a monotonic clock that is passed in."""
    for path in Path(gateway.domain.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & {"time"}, path
            if isinstance(node, ast.ImportFrom):
                assert node.module != "time", path
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("now", "utcnow", "today", "time_ns"), (path, node.lineno)
