"""The contributions of past units to a metric of the ledger or of feedback, counted as for results. Knows no SQL.

Tens of thousands of them take seconds of Python, so that they travel to another process, packed.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from gateway.db.experiments.events import Request
from gateway.db.experiments.past import PastRow, PastVotes
from gateway.domain.experiments.calibration import Calibration, PastUnit, calibrate
from gateway.domain.experiments.effects import Kind
from gateway.domain.experiments.sums import Sums, Unit, sums_of
from gateway.domain.experiments.units import DAY_US, Event, contribution, state_after_events
from gateway.experiments.recount import request_event

NOT_IN_LEDGER = frozenset({"refusal_rate", "answer_rate"})
"""Built-in metrics that the ledger has no data for."""
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_US = datetime.timedelta(microseconds=1)
_FOR_EVER = 100_000 * DAY_US
_decode_rows = msgspec.msgpack.Decoder(list[PastRow]).decode
_decode_votes = msgspec.msgpack.Decoder(list[PastVotes]).decode


class PackedPast(msgspec.Struct, frozen=True):
    """The rows of a project's past traffic or feedback that tell of one metric."""

    slices: list[bytes]
    """The rows in slices, each as msgpack: of `PastVotes` for feedback, else of `PastRow`."""
    num_rows: int
    metric: str
    kind: Kind
    """The kind of the metric: a mean over units, or a ratio of sums."""
    is_feedback: bool
    """True for a metric of feedback, whose units are those with a vote."""

    def units(self) -> list[PastUnit]:
        """Return the contribution of each unit, in the order of first requests or votes."""
        if self.is_feedback:
            return past_votes(chain.from_iterable(map(_decode_votes, self.slices)), self.kind)
        return past_units(chain.from_iterable(map(_decode_rows, self.slices)), self.metric)


class PastSums(msgspec.Struct, frozen=True):
    """The sums over the units of the past, and the days of the first and the last of them; 0 without units."""

    total: Sums
    first_day: int
    last_day: int


def sum_past(past: PackedPast) -> PastSums:
    """Return the sums over the units of the past."""
    units = past.units()
    total = sums_of(each.unit for each in units)
    return PastSums(total, units[0].day, units[-1].day) if units else PastSums(total, 0, 0)


def calibrate_past(past: PackedPast, *, alpha: float, tightest_at: int, num_runs: int) -> Calibration:
    """Split the units of the past at random, as `calibrate` does, with its arguments and its errors."""
    return calibrate(past.units(), past.kind, alpha=alpha, tightest_at=tightest_at, num_runs=num_runs)


def past_units(rows: Iterable[PastRow], metric: str) -> list[PastUnit]:
    """Return the contribution of each unit to a built-in metric over all its requests, in the order of first requests.

    rows: rows of the ledger, in any order.
    """
    by_unit: dict[bytes, dict[str, list[PastRow]]] = {}
    for row in rows:
        by_unit.setdefault(row.unit, {}).setdefault(row.request_id, []).append(row)
    found = []
    for requests in by_unit.values():
        state = state_after_events((_event(request_id, each) for request_id, each in requests.items()), _FOR_EVER)
        unit = contribution(state.counts, metric) if state is not None else None
        if state is not None and unit is not None:
            found.append((state.first_us, unit))
    found.sort(key=lambda each: each[0])
    return [PastUnit(first_us // DAY_US, unit) for first_us, unit in found]


def past_votes(rows: Iterable[PastVotes], kind: Kind) -> list[PastUnit]:
    """Return the contribution of each unit to a feedback metric, in the order of first votes.

    kind: the kind of values that the metric has.
    """
    return [
        PastUnit((row.at - _EPOCH) // _US // DAY_US, Unit(row.total, d=row.num if kind == "ratio" else 0))
        for row in rows
    ]


def _event(request_id: str, rows: Sequence[PastRow]) -> Event:
    usage = sorted((row.usage for row in rows), key=lambda each: (each.attempt, each.revision))
    at_us = min((row.at - _EPOCH) // _US for row in rows)
    return request_event(Request(request_id, at_us, 1, 0, True, 0), usage)
