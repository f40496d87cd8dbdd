"""What an experiment shows now: results and their days, from sums alone, in a bounded number of queries.

The formulas are in `gateway.domain.experiments.results`. Results that are shown are kept (`experiment_looks`).
"""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

import msgspec

from gateway.db.experiments.looks import LookRow, find_look, keep_look
from gateway.db.experiments.scopes import Scope, find_scopes
from gateway.db.experiments.sums import load_reasons, load_sums, load_times, load_units_by_day
from gateway.domain.errors import NotFound
from gateway.domain.experiments import allocation, metrics
from gateway.domain.experiments.assignment import Split
from gateway.domain.experiments.definition import Experiment
from gateway.domain.experiments.results import Results, Tally, UnitsRow, results_of, timeline

if TYPE_CHECKING:
    from gateway.db.pool import Connection

DAY = datetime.timedelta(days=1)


class HasId(Protocol):
    """An experiment as any query returns it."""

    @property
    def id(self) -> str: ...


async def read_results(
    conn: Connection,
    experiment: HasId,
    *,
    metric: str | None = None,
    as_of: datetime.datetime | None = None,
) -> Results:
    """Return what a look at an experiment shows: see `read_look`."""
    return (await read_look(conn, experiment, metric=metric, as_of=as_of)).results


async def read_look(
    conn: Connection,
    experiment: HasId,
    *,
    metric: str | None = None,
    as_of: datetime.datetime | None = None,
) -> LookRow:
    """Return what a look at an experiment shows, and keep it unless one was kept within the last minute.

    metric: the only one that is shown. as_of: the latest kept look up to then is returned.
    Raises NotFound: when the experiment has not started, does not have the metric, or was not looked at by then.
    """
    if as_of is not None:
        look = await find_look(conn, experiment.id, as_of)
        if look is None:
            raise NotFound("Nobody had looked at the experiment by then.", param="as_of")
    else:
        scope = await _scope(conn, experiment.id)
        look = await look_at(conn, scope)
        await keep_look(conn, scope.id, look.version, look.days, look.results)
    return look if metric is None else msgspec.structs.replace(look, results=of_metric(look.results, metric))


async def look_at(conn: Connection, scope: Scope) -> LookRow:
    """Return what the sums show now."""
    now = datetime.datetime.now(datetime.UTC)
    tally = await load_tally(conn, scope, scope.definition, by_day=False)
    return LookRow(now, scope.version, tally.days, results_of(scope.definition, tally, scope.own))


async def keep_state_look(conn: Connection, experiment: HasId) -> None:
    """Keep what the experiment shows at a change of its state, in the transaction of the change."""
    scope = await _scope(conn, experiment.id)
    look = await look_at(conn, scope)
    await keep_look(conn, scope.id, look.version, look.days, look.results, always=True)


async def read_timeline(conn: Connection, experiment: HasId, *, metric: str | None = None) -> list[tuple[int, Results]]:
    """Return what looks at the end of each day showed, with the day since 1970, oldest first.

    Raises NotFound: when the experiment has not started, or does not have the metric.
    """
    scope = await _scope(conn, experiment.id)
    days = timeline(scope.definition, await load_tally(conn, scope, scope.definition, by_day=True), scope.own)
    return [(day, each if metric is None else of_metric(each, metric)) for day, each in days]


def of_metric(results: Results, metric: str) -> Results:
    """Return what results show of one metric, at the levels that all metrics share.

    Raises NotFound: when they do not show the metric.
    """
    shown = [index for index, each in enumerate(results.comparisons) if each.metric == metric]
    quantiles = tuple(each for each in results.quantiles if each.metric == metric)
    guardrails = tuple(each for each in results.guardrails if each.metric == metric)
    if not (shown or quantiles or guardrails):
        raise NotFound("The experiment shows nothing of this metric.", param="metric")
    return msgspec.structs.replace(
        results,
        comparisons=tuple(results.comparisons[index] for index in shown),
        discoveries=tuple(place for place, index in enumerate(shown) if index in results.discoveries),
        quantiles=quantiles,
        guardrails=guardrails,
    )


async def load_tally(conn: Connection, scope: Scope, definition: Experiment, *, by_day: bool) -> Tally:
    """Return all that results of some metrics are made of: of each day, or of all days together."""
    wanted = names_of(definition)
    reads = [read for name in wanted if (read := metrics.read_metric(name, scope.own)) is not None]
    units = await load_units_by_day(conn, scope.id, by_day=by_day)
    return Tally(
        {epoch: shares_of(scope, epoch) for epoch in range(1, len(scope.tables) + 1)},
        [UnitsRow(row.day, row.epoch, row.arm, row.units, row.delivered) for row in units],
        await load_sums(conn, scope.id, {read.name for read in reads if read.quantile is None}, by_day=by_day),
        await load_times(conn, scope.id, {read.name for read in reads if read.quantile is not None}, by_day=by_day),
        await load_reasons(conn, scope.id),
        days_since(scope),
    )


def names_of(definition: Experiment) -> Collection[str]:
    """Return the names of all metrics of an experiment."""
    listed = definition.metrics
    named = {each.metric for each in listed.primary} | {each.metric for each in listed.guardrails}
    return named | set(listed.secondary)


def shares_of(scope: Scope, epoch: int) -> tuple[float, ...]:
    """Return the part of an epoch's units that each arm should get."""
    split = Split(b"", b"", b"", scope.tables)
    return allocation.shares(split, epoch, len(scope.definition.arms))


def days_since(scope: Scope) -> int:
    """Return the whole days since an experiment's start, up to its stop."""
    until = scope.stopped_at or datetime.datetime.now(datetime.UTC)
    return max(0, (until - scope.started_at) // DAY)


async def _scope(conn: Connection, experiment_id: str) -> Scope:
    scope = (await find_scopes(conn, [experiment_id])).get(experiment_id)
    if scope is None:
        raise NotFound("The experiment has not started: there is nothing to see yet.")
    return scope
