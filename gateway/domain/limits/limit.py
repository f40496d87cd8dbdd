"""Limits, and the calendar that their windows follow. Pure data: knows neither accounts nor requests."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import Literal, get_args

import msgspec

Unit = Literal[
    "requests",
    "input_tokens",
    "output_tokens",
    "tokens",
    "cost_nanos",
    "concurrency",
    "storage_bytes",
    "enqueued_batch_tokens",
]
Window = Literal["minute", "day", "month", "none"]
Scope = Literal["organization", "project", "key"]

UNITS: tuple[Unit, ...] = get_args(Unit)
WINDOWS: tuple[Window, ...] = get_args(Window)

RATED: frozenset[Unit] = frozenset({"requests", "input_tokens", "output_tokens", "tokens", "cost_nanos"})
"""The units that are counted per window."""

SIZES: frozenset[Unit] = frozenset({"input_tokens", "output_tokens", "tokens"})
"""The units that without a window bound the size of one request: its prompt, each completion, or both together."""

OF_NO_KEY: frozenset[Unit] = frozenset({"storage_bytes", "enqueued_batch_tokens"})
"""The units that are counted for projects alone, not for keys."""

ALERT_PERCENTS = (80, 100)
"""The percentages of a limit at which it alerts by default."""

NS_PER_S = 1_000_000_000
_UTC_DAY_S = 86_400


class Limit(msgspec.Struct, frozen=True):
    """A limit: at most `max` of a unit per window."""

    id: str
    organization_id: str
    project_id: str | None
    """The id of the project; None stands for the whole organization."""
    api_key_id: str | None
    """The id of the key; None stands for all keys."""
    model: str | None
    """The public id of the model to which the limit applies; None stands for all models."""
    unit: Unit
    window: Window
    max: int
    hard: bool
    """True: the limit refuses requests; False: it only alerts."""
    alert_percents: tuple[int, ...] = ()

    @property
    def scope(self) -> Scope:
        """The kind of account that the limit is for."""
        if self.api_key_id is not None:
            return "key"
        return "organization" if self.project_id is None else "project"

    @property
    def reserves(self) -> bool:
        """Tell whether requests reserve a part of the limit before they run."""
        if self.unit == "concurrency" or self.is_balance:
            return self.hard
        return self.hard and self.unit in RATED and self.window != "none"

    @property
    def is_balance(self) -> bool:
        """Tell whether this is a prepaid balance: the credits of a project, all that the project may ever cost."""
        return self.unit == "cost_nanos" and self.window == "none"

    @property
    def bounds_size(self) -> bool:
        """Tell whether the limit bounds the size of each request by itself."""
        return self.hard and self.window == "none" and self.unit in SIZES

    def applies(self, api_key_id: str, model: str) -> bool:
        """Tell whether the limit applies to a request of its project or organization."""
        return self.api_key_id in (None, api_key_id) and self.model in (None, model)


def sends_alerts(unit: Unit, window: Window) -> bool:
    """Tell whether a limit notifies webhooks at shares of its maximum: only limits with usage summed by window do."""
    return unit in RATED and window != "none"


def limit_fault(unit: Unit, window: Window, *, hard: bool, alert_percents: Collection[int]) -> tuple[str, str] | None:
    """Return the field that makes a limit wrong, and the words that follow its name; None for a valid limit.

    hard: True: the limit refuses requests; False: it raises alerts alone.
    """
    if unit not in RATED and window != "none":
        return "window", f"must be 'none' with the unit '{unit}'"
    if unit in RATED and unit not in SIZES and window == "none":
        return "window", f"must be 'minute', 'day' or 'month' with the unit '{unit}'"
    if sends_alerts(unit, window):
        return None
    if unit in SIZES and not hard:
        return "window", "must be 'minute', 'day' or 'month' for a soft limit"
    if not hard:
        return "hard", f"must be true with the unit '{unit}': it has no alerts"
    if alert_percents:
        return "alert_percents", "must be empty or left out without a window: there are no alerts"
    return None


class Period(msgspec.Struct, frozen=True):
    """One window, from start up to end in Unix seconds. Without a window, start is 0 and there is no end."""

    start: int
    end: int | None


NO_PERIOD = Period(0, None)


def calendar_window(window: Window, instant_ns: int) -> Period:
    """Return the calendar window in UTC in which an instant (Unix time in ns) lies."""
    instant_s = instant_ns // NS_PER_S
    match window:
        case "minute":
            start = instant_s - instant_s % 60
            return Period(start, start + 60)
        case "day":
            start = instant_s - instant_s % _UTC_DAY_S
            return Period(start, start + _UTC_DAY_S)
        case "month":
            first = datetime.datetime.fromtimestamp(instant_s, datetime.UTC).replace(
                day=1, hour=0, minute=0, second=0, microsecond=0
            )
            following = (first + datetime.timedelta(days=31)).replace(day=1)
            return Period(int(first.timestamp()), int(following.timestamp()))
        case "none":
            return NO_PERIOD


class Calendar:
    """The current periods of windows, each computed once; for a clock that only goes forward."""

    def __init__(self) -> None:
        self._current: dict[Window, Period] = {"none": NO_PERIOD}

    def period(self, window: Window, instant_ns: int) -> Period:
        """Return the period of a window that an instant lies in."""
        known = self._current.get(window)
        if known is not None and (known.end is None or known.start * NS_PER_S <= instant_ns < known.end * NS_PER_S):
            return known
        self._current[window] = now = calendar_window(window, instant_ns)
        return now
