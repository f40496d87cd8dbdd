"""The present state of an experiment: results, their days, and health, from sums alone, in a bounded number of queries.

The formulas are in `gateway.domain.experiments.results`. Shown results are stored (`experiment_looks`).
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

import msgspec

from gateway.db.experiments.events import WaitingEvents, count_waiting
from gateway.db.experiments.looks import LookRow, find_look, keep_look
from gateway.db.experiments.scopes import Scope, find_scopes
from gateway.db.experiments.segments import load_segment_sums, load_segment_units
from gateway.db.experiments.sums.reading import (
    DayUnits,
    load_ages,
    load_reasons,
    load_sums,
    load_times,
    load_units_by_day,
)
from gateway.db.experiments.units import busy_units, num_noted_alone
from gateway.domain.errors import NotFound
from gateway.domain.experiments import allocation, metrics
from gateway.domain.experiments.ages import OF_ALL, AgeEffects, effects_by_age
from gateway.domain.experiments.assignment import Split
from gateway.domain.experiments.definition import Experiment
from gateway.domain.experiments.feedback.judged import judge_key, people_and_judge_key
from gateway.domain.experiments.results import Results, Tally, UnitsRow, daily_results, results_of
from gateway.domain.experiments.segment_values import Kind
from gateway.domain.experiments.segments import SegmentResults, SegmentSplit, results_of_segments, splits_of
from gateway.domain.experiments.statistics import counts
from gateway.domain.experiments.statistics.counts import EpochCounts

if TYPE_CHECKING:
    from gateway.db.pool import Connection, Database

DAY = datetime.timedelta(days=1)
_TIMELINES = asyncio.Semaphore(1)
"""Lets one timeline at a time be computed in a gateway: years of days take a processor for seconds."""


class HasId(Protocol):
    """Any row of an experiment: only its id is read."""

    @property
    def id(self) -> str:
        """The experiment's id."""


async def read_results(
    conn: Connection,
    experiment: HasId,
    *,
    metric: str | None = None,
    as_of: datetime.datetime | None = None,
) -> Results:
    """Return the results of a look at an experiment: see `read_look`.

    metric: the metric to read; None: all.
    """
    return (await read_look(conn, experiment, metric=metric, as_of=as_of)).results


async def read_look(
    conn: Connection,
    experiment: HasId,
    *,
    metric: str | None = None,
    as_of: datetime.datetime | None = None,
) -> LookRow:
    """Return a look at an experiment, and store it unless one was stored within the last minute.

    metric: the only metric to show. as_of: the latest stored look up to then is returned.

    Raises NotFound: when the experiment has not started, does not have the metric, or was not looked at by then.
    """
    if as_of is not None:
        look = await find_look(conn, experiment.id, as_of)
        if look is None:
            raise NotFound("Nobody had looked at the experiment by then.", param="as_of")
    else:
        async with _one_moment(conn):
            scope = await _scope(conn, experiment.id)
            look = await new_look(conn, scope)
        await keep_look(conn, scope.id, look.version, look.days, look.results)
    return look if metric is None else msgspec.structs.replace(look, results=results_of_metric(look.results, metric))


def _one_moment(conn: Connection) -> AbstractAsyncContextManager[object]:
    """Return a transaction whose queries all see one state of the database, while the bookkeeper adds to the sums."""
    return conn.transaction(isolation="repeatable_read", readonly=True)


async def new_look(conn: Connection, scope: Scope) -> LookRow:
    """Compute a look at the present sums, and return it without storing it."""
    now = datetime.datetime.now(datetime.UTC)
    tally = await load_tally(conn, scope, scope.definition, by_day=False)
    return LookRow(now, scope.version, tally.days, results_of(scope.definition, tally, scope.own))


async def keep_state_look(conn: Connection, experiment: HasId) -> None:
    """Store the results that the experiment shows at a change of its state, in the transaction of the change."""
    scope = await _scope(conn, experiment.id)
    look = await new_look(conn, scope)
    await keep_look(conn, scope.id, look.version, look.days, look.results, always=True)


async def read_timeline(
    database: Database, experiment: HasId, *, metric: str | None = None
) -> list[tuple[int, Results]]:
    """Return the results of looks at the end of each day, with the day since 1970, oldest first.

    No connection is held while they are computed.

    Raises NotFound: when the experiment has not started, or does not have the metric.
    """
    async with database.acquire() as conn, _one_moment(conn):
        scope = await _scope(conn, experiment.id)
        tally = await load_tally(conn, scope, scope.definition, by_day=True)
    async with _TIMELINES:
        days = await asyncio.to_thread(daily_results, scope.definition, tally, scope.own)
    return [(day, each if metric is None else results_of_metric(each, metric)) for day, each in days]


async def read_ages(conn: Connection, experiment: HasId, *, metric: str | None = None) -> list[AgeEffects]:
    """Return the effects by days since units' first exposures.

    Raises NotFound: when the experiment has not started, or does not have the metric.
    """
    async with _one_moment(conn):
        scope = await _scope(conn, experiment.id)
        wanted = {metric} if metric is not None else set(metric_names(scope.definition))
        if not wanted <= set(metric_names(scope.definition)):
            raise _no_metric()
        units = await load_units_by_day(conn, scope.id, by_day=False)
        closed = await load_sums(conn, scope.id, {OF_ALL}, by_day=False)
        ages = await load_ages(conn, scope.id, wanted)
    rows = [UnitsRow(row.day, row.epoch, row.arm, row.units, row.delivered) for row in units]
    found = effects_by_age(scope.definition, Tally(all_shares(scope), rows, closed), ages, scope.own)
    return [each for each in found if each.metric in wanted]


async def read_segments(conn: Connection, experiment: HasId, kind: Kind) -> list[SegmentResults]:
    """Return the present results of each segment of a kind, in the order of the segments' values. Nothing is stored.

    Raises NotFound: when the experiment has not started.
    """
    async with _one_moment(conn):
        scope = await _scope(conn, experiment.id)
        units = await load_segment_units(conn, scope.id)
        reads = [metrics.read_metric(name, scope.own) for name in metric_names(scope.definition)]
        names = {read.name for read in reads if read is not None and read.quantile is None}
        sums = await load_segment_sums(conn, scope.id, kind, names)
    shares = all_shares(scope)
    splits = [each for each in splits_of(units, shares) if each.kind == kind]
    own_units = [each for each in units if each.kind == kind]
    return await asyncio.to_thread(results_of_segments, scope.definition, shares, splits, own_units, sums, scope.own)


def results_of_metric(results: Results, metric: str) -> Results:
    """Return the part of results about one metric, at the levels that all metrics share.

    Raises NotFound: when the results do not show the metric.
    """
    shown = [index for index, each in enumerate(results.comparisons) if each.metric == metric]
    quantiles = tuple(each for each in results.quantiles if each.metric == metric)
    guardrails = tuple(each for each in results.guardrails if each.metric == metric)
    judged = tuple(each for each in results.judged if each.metric == metric)
    if not (shown or quantiles or guardrails):
        raise _no_metric()
    return msgspec.structs.replace(
        results,
        comparisons=tuple(results.comparisons[index] for index in shown),
        discoveries=tuple(place for place, index in enumerate(shown) if index in results.discoveries),
        quantiles=quantiles,
        guardrails=guardrails,
        judged=judged,
    )


def _no_metric() -> NotFound:
    return NotFound("The experiment shows nothing of this metric.", param="metric")


async def load_tally(conn: Connection, scope: Scope, definition: Experiment, *, by_day: bool) -> Tally:
    """Return the shares, units, sums and times that results are made of, for each day or for all days together."""
    wanted = metric_names(definition)
    reads = [read for name in wanted if (read := metrics.read_metric(name, scope.own)) is not None]
    units = await load_units_by_day(conn, scope.id, by_day=by_day)
    names = {read.name for read in reads if read.quantile is None}
    names |= {key(read.name) for read in reads if read.metric is None for key in (judge_key, people_and_judge_key)}
    return Tally(
        all_shares(scope),
        [UnitsRow(row.day, row.epoch, row.arm, row.units, row.delivered) for row in units],
        await load_sums(conn, scope.id, names, by_day=by_day),
        await load_times(conn, scope.id, {read.name for read in reads if read.quantile is not None}, by_day=by_day),
        await load_reasons(conn, scope.id),
        days_since(scope),
    )


def metric_names(definition: Experiment) -> Collection[str]:
    """Return the names of all metrics of an experiment, each once: primary ones, guardrails, secondary ones."""
    listed = definition.metrics
    primary = [each.metric for each in listed.primary]
    guardrails = [each.metric for each in listed.guardrails]
    return tuple(dict.fromkeys((*primary, *guardrails, *listed.secondary)))


def shares_of(scope: Scope, epoch: int) -> tuple[float, ...]:
    """Return for each arm the part of an epoch's units, from 0 to 1, that the arm is declared to get."""
    split = Split(b"", b"", b"", scope.tables)
    return allocation.arm_shares(split, epoch, len(scope.definition.arms))


def all_shares(scope: Scope) -> dict[int, tuple[float, ...]]:
    """Return the declared shares of the arms, as `shares_of` does, by the number of the epoch."""
    return {epoch: shares_of(scope, epoch) for epoch in range(1, len(scope.tables) + 1)}


def days_since(scope: Scope) -> int:
    """Return the whole days since an experiment's start, up to its stop."""
    until = scope.stopped_at or datetime.datetime.now(datetime.UTC)
    return max(0, (until - scope.started_at) // DAY)


async def _scope(conn: Connection, experiment_id: str) -> Scope:
    scope = (await find_scopes(conn, [experiment_id])).get(experiment_id)
    if scope is None:
        raise NotFound("The experiment has not started: there is nothing to see yet.")
    return scope


class EpochHealth(msgspec.Struct, frozen=True):
    """The units of one epoch, and how they are split between the arms."""

    epoch: int
    units: tuple[int, ...]
    """The number of units by arm."""
    shares: tuple[float, ...]
    """The part of the units that each arm should have."""
    log_e: float
    """ln of the E-value against these shares."""


class ArmHealth(msgspec.Struct, frozen=True):
    """The units of one arm, over all epochs."""

    units: int
    expected_units: float
    """The number of units by the declared split."""
    delivered: int
    """Units that got the arm's whole treatment with each of their requests."""


class BusyShare(msgspec.Struct, frozen=True):
    """A unit with more than one per cent of all requests."""

    digest: bytes
    num_requests: int
    share: float
    """The unit's part of all requests, from 0 to 1."""


class Health(msgspec.Struct, frozen=True):
    """The health of an experiment: the facts by which its results can be believed."""

    epochs: tuple[EpochHealth, ...]
    """The epochs, the first one first."""
    srm_log_e: float
    """ln of the E-value against the declared split, over all epochs."""
    is_srm: bool
    """True if units are not split as declared (sample ratio mismatch): results are not to be believed then."""
    segments: tuple[SegmentSplit, ...]
    """Segments whose units are not split as declared."""
    arms: tuple[ArmHealth, ...]
    not_analysed: Mapping[str, int]
    """The number of requests that are not analysed, by reason (`assignment.Reason`)."""
    num_units: int
    num_requests: int
    """Requests of units within their outcome windows."""
    num_noted_alone: int
    """The number of units that a gateway noted at least a minute ago and that have no row in the ledger."""
    answer_rate: float | None
    """The part of units with any vote, of those whose window has ended; None where none has."""
    busy_units: tuple[BusyShare, ...]
    days: int
    """Whole days since the start."""
    days_left: int
    """Days until the declared days have passed."""
    waiting: WaitingEvents
    """Events of all experiments that are not in the sums yet."""


BUSY_SHARE = 0.01
NOT_BUSY = 10
"""The requests up to which no unit counts as busy, since a new experiment has few others."""
MAX_BUSY = 20


async def read_health(conn: Connection, experiment: HasId) -> Health:
    """Return the health of an experiment, from sums alone: whether it works as declared.

    Raises NotFound: when the experiment has not started.
    """
    async with _one_moment(conn):
        return await _read_health(conn, experiment)


async def _read_health(conn: Connection, experiment: HasId) -> Health:
    scope = await _scope(conn, experiment.id)
    by_epoch: dict[int, dict[int, DayUnits]] = {}
    for row in await load_units_by_day(conn, scope.id, by_day=False):
        by_epoch.setdefault(row.epoch, {})[row.arm] = row
    num_arms = len(scope.definition.arms)
    epochs, counted = [], []
    for epoch in range(1, len(scope.tables) + 1):
        arms = by_epoch.get(epoch, {})
        units, shares = tuple(arms[arm].units if arm in arms else 0 for arm in range(num_arms)), shares_of(scope, epoch)
        counted.append(EpochCounts(units, shares))
        epochs.append(EpochHealth(epoch, units, shares, counts.srm_log_e([counted[-1]])))
    srm_log_e = counts.srm_log_e(counted)
    rows = [row for arms in by_epoch.values() for row in arms.values()]
    num_units, num_requests = sum(row.units for row in rows), sum(row.requests for row in rows)
    answers = [row.sums for row in await load_sums(conn, scope.id, ["answer_rate"], by_day=False)]
    num_answered, num_closed = sum(each.y for each in answers), sum(each.n for each in answers)
    busy = await busy_units(conn, scope.id, max(NOT_BUSY, int(num_requests * BUSY_SHARE)), MAX_BUSY)
    days = days_since(scope)
    segments = splits_of(await load_segment_units(conn, scope.id), all_shares(scope))
    return Health(
        epochs=tuple(epochs),
        srm_log_e=srm_log_e,
        is_srm=counts.is_beyond(srm_log_e, counts.SRM_ALPHA),
        segments=tuple(each for each in segments if each.is_srm),
        arms=tuple(
            ArmHealth(
                sum(row.units for row in rows if row.arm == arm),
                sum(sum(each.units) * each.shares[arm] for each in epochs),
                sum(row.delivered for row in rows if row.arm == arm),
            )
            for arm in range(num_arms)
        ),
        not_analysed=await load_reasons(conn, scope.id),
        num_units=num_units,
        num_requests=num_requests,
        num_noted_alone=await num_noted_alone(conn, scope.id),
        answer_rate=num_answered / num_closed if num_closed else None,
        busy_units=tuple(BusyShare(each.digest, each.num_requests, each.num_requests / num_requests) for each in busy),
        days=days,
        days_left=max(0, scope.definition.analysis.min_days - days),
        waiting=await count_waiting(conn),
    )
