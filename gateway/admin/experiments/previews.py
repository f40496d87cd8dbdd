"""Previews of an experiment over HTTP: the arm of a unit, the units and days that an effect needs, and calibrations.

A calibration shows how often experiments on the project's own traffic would be wrong.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from litestar import Controller, Request, post
from litestar.params import FromPath

from gateway.admin.access import needs, read_body
from gateway.admin.experiments import wire_previews as wire
from gateway.admin.experiments.experiments import existing_experiment
from gateway.admin.experiments.past import PastTraffic, check_metric, read_past
from gateway.admin.experiments.shown import metric_scales
from gateway.admin.experiments.warnings import find_warnings
from gateway.admin.experiments.words import DAY_SECONDS, days_declared, duration
from gateway.admin.organization.projects import existing_project
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.experiments.experiments import ExperimentRow, find_epoch, holdout_of, split_of
from gateway.db.experiments.layers import find_layer
from gateway.db.experiments.metrics import list_metrics
from gateway.domain.errors import InvalidRequest, Overloaded
from gateway.domain.experiments import sizes
from gateway.domain.experiments.allocation import exposed_units, first_split, free_slots
from gateway.domain.experiments.assignment import NUM_BUCKETS, Split, assign, unit_digest
from gateway.domain.experiments.calibration import Calibration
from gateway.domain.experiments.effects import MIN_UNITS, mean_of, ratio_of
from gateway.domain.experiments.statistics.many import alpha_of_each
from gateway.domain.percent import percent_text
from gateway.domain.tenancy.actor import Actor
from gateway.experiments.past import calibrate_past
from gateway.support.process import call_apart

if TYPE_CHECKING:
    from gateway.db.pool import Connection

DEFAULT_ALPHA = 0.05
_CALIBRATING = asyncio.Semaphore(1)
"""Lets one calibration at a time run in a gateway: each takes a processor."""
_PROJECTS_CALIBRATING: set[str] = set()
"""The projects of which a calibration runs or waits in this gateway: one each, so that none keeps others waiting for
long."""
_UNITS = {"unit": "units", "api_key": "API keys", "request": "requests"}


class PreviewController(Controller):
    """Endpoints for questions before the start of an experiment."""

    path = "/projects/{project_id:str}/experiments"

    @post("/preview", status_code=200, opt=needs("experiments.write", body=wire.PreviewExperiment))
    async def preview_experiment(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> wire.ExperimentPreview:
        """Tell which arm a unit would get, or how many units and days an effect needs. Nothing is exposed or stored."""
        wanted = await read_body(request, wire.PreviewExperiment)
        _check(wanted)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            if wanted.metric is not None:
                check_metric(wanted.metric, await list_metrics(conn, project_id), wanted.past_units)
            row, warnings = None, []
            if wanted.experiment_id is not None:
                row = await existing_experiment(conn, project_id, wanted.experiment_id)
                warnings = await find_warnings(conn, caller.organization_id, row)
        assignment = size = why_no_size = None
        if row is not None and wanted.unit is not None:
            assignment = await _assignment(services, row, wanted.unit)
        if wanted.metric is not None and wanted.relative_effect is not None:
            try:
                size = await _size(services, caller, project_id, wanted, row)
            except _NothingKnown as unknown:
                why_no_size = str(unknown)
        return wire.ExperimentPreview(assignment, size, warnings, why_no_size)

    @post("/calibrate", status_code=200, opt=needs("experiments.write", body=wire.CalibrateExperiment))
    async def calibrate_experiment(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> wire.ExperimentCalibration:
        """Split the project's past units at random many times, and count what would have looked like an effect.

        The reply also says which effects some days of such traffic can find.
        """
        wanted = await read_body(request, wire.CalibrateExperiment)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            check_metric(wanted.metric, await list_metrics(conn, project_id), wanted.past_units)
        async with _place(project_id), _CALIBRATING:
            past = await read_past(services, caller, project_id, wanted.metric, wanted.past_units, wanted.past_days)
            found = await call_apart(
                calibrate_past,
                past.rows,
                alpha=wanted.alpha,
                tightest_at=wanted.tightest_at,
                num_runs=wanted.runs,
            )
        return _calibration(wanted, past, found)


class _NothingKnown(Exception):
    """The error when past traffic does not determine the size that an effect needs."""


@asynccontextmanager
async def _place(project_id: str) -> AsyncIterator[None]:
    """Keep a project's place for a calibration until the end of the block.

    Raises Overloaded: when the project has a calibration already.
    """
    if project_id in _PROJECTS_CALIBRATING:
        raise Overloaded("A calibration of this project is under way. Try again when it is done.", retry_after_s=10)
    _PROJECTS_CALIBRATING.add(project_id)
    try:
        yield
    finally:
        _PROJECTS_CALIBRATING.discard(project_id)


def _check(wanted: wire.PreviewExperiment) -> None:
    if wanted.metric is None and wanted.unit is None:
        raise InvalidRequest("Name a `unit`, or a `metric` with its `relative_effect`.", param="unit")
    if wanted.unit is not None and wanted.experiment_id is None:
        raise InvalidRequest("Name the experiment whose arm for the unit is to be shown.", param="experiment_id")
    if (wanted.metric is None) != (wanted.relative_effect is None):
        raise InvalidRequest("`metric` and `relative_effect` go together.", param="relative_effect")


async def _assignment(services: AdminServices, row: ExperimentRow, unit: str) -> wire.Assignment:
    """Return the arm that a unit gets, or would get if a draft started now."""
    digest = unit_digest(await services.unit_keys.key(row.project_id), unit)
    async with services.database.acquire() as conn:
        split = await _draft_split(conn, row) if row.slots is None else await _split(conn, row, digest)
    assigned = assign(split, unit, digest)
    return wire.Assignment(row.id, row.definition.arms[assigned.arm].name, assigned.reason, assigned.epoch)


async def _draft_split(conn: Connection, row: ExperimentRow) -> Split:
    """Return the split that a draft would have. Raises Conflict: when its layer has no room."""
    name = row.definition.layer
    layer = await find_layer(conn, row.project_id, name)
    slots = free_slots(name, layer.owners if layer is not None else (), row.definition.coverage)
    weights = [arm.weight for arm in row.definition.arms]
    return first_split(row.seed, row.layer_seed, slots, weights, holdout_of(row))


async def _split(conn: Connection, row: ExperimentRow, digest: bytes) -> Split:
    """Return the split of an experiment that has started, as far as it matters to one unit."""
    if row.exposed_at is None:
        return split_of(row)
    epoch = await find_epoch(conn, row.id, digest)
    return split_of(row, exposed_units({digest: epoch} if epoch else {}))


async def _size(
    services: AdminServices, caller: Actor, project_id: str, wanted: wire.PreviewExperiment, row: ExperimentRow | None
) -> wire.SizeNeeded:
    """Return the units and days that an effect needs. Raises _NothingKnown: when the past does not tell.

    row: the experiment that the question is about; None: one that is not stored yet.
    """
    assert wanted.metric is not None and wanted.relative_effect is not None
    past = await read_past(services, caller, project_id, wanted.metric, wanted.past_units, wanted.past_days)
    kind, sums = past.rows.kind, await past.sums()
    total = sums.total
    if total.n < 2 * MIN_UNITS or (kind == "ratio" and not total.d):
        what = "feedback" if past.is_feedback else "traffic"
        raise _NothingKnown(f"There is too little {what} of the past to learn from.")
    whole = ratio_of(total) if kind == "ratio" else mean_of(total)
    if not whole.mean:
        raise _NothingKnown("The metric's mean is 0: an effect relative to 0 cannot be stated.")
    defined = row.definition if row is not None else None
    num_arms = wanted.num_arms or (len(defined.arms) if defined else 2)
    alpha = wanted.alpha or (defined.analysis.alpha if defined else DEFAULT_ALPHA)
    num_primary = wanted.num_primary or (len(defined.metrics.primary) if defined else 1)
    alpha = alpha_of_each(alpha, num_primary, num_arms)
    coverage = wanted.coverage or (defined.coverage if defined else NUM_BUCKETS)
    variance, effect = whole.variance * whole.n, abs(wanted.relative_effect * whole.mean)
    per_arm = sizes.units_per_arm_anytime(variance, variance, effect, alpha, wanted.power) if variance else MIN_UNITS
    num_days = sums.last_day - sums.first_day + 1
    per_day = total.n / num_days * coverage / NUM_BUCKETS
    window_s, min_days = _times(wanted, row)
    days = sizes.days_needed(per_arm * num_arms, per_day, min_days, window_s / DAY_SECONDS) if per_day else None
    scale = metric_scales(past.feedback_metrics).get(wanted.metric, 1.0)
    return wire.SizeNeeded(
        metric=wanted.metric,
        relative_effect=wanted.relative_effect,
        effect=wanted.relative_effect * whole.mean * scale,
        mean=whole.mean * scale,
        deviation=math.sqrt(variance) * scale,
        units_per_arm=per_arm,
        units=per_arm * num_arms,
        units_per_day=per_day,
        days=days,
        min_days=min_days,
        past_units=past.unit_kind,
        past_days=num_days,
        text=_size_text(
            wanted, past, total.n, per_arm, num_arms, (per_day, coverage, num_days), days, window_s, min_days
        ),
    )


def _times(wanted: wire.PreviewExperiment, row: ExperimentRow | None) -> tuple[int, int]:
    """Return the outcome window in seconds and the least days: the question's, else the experiment's, else 0.

    row: the experiment that the question is about; None: one that is not stored yet.
    """
    analysis = row.definition.analysis if row is not None else None
    window_s, min_days = wanted.outcome_window_seconds, wanted.min_days
    if window_s is None:
        window_s = analysis.outcome_window_seconds if analysis else 0
    if min_days is None:
        min_days = analysis.min_days if analysis else 0
    return window_s, min_days


def _size_text(
    wanted: wire.PreviewExperiment,
    past: PastTraffic,
    num_units: int,
    per_arm: int,
    num_arms: int,
    pace: tuple[float, int, int],
    days: int | None,
    window_s: int,
    min_days: int,
) -> str:
    """Return a size in words.

    num_units: the units of the past. per_arm: the units of each arm. pace: new units a day, the coverage, and the days
    that were read. days: the days until the experiment ends; None: it never ends. window_s: the length of the outcome
    window in seconds. min_days: the days before which nothing is to be decided.
    """
    assert wanted.relative_effect is not None
    per_day, coverage, num_days = pace
    lasts = "never ends" if days is None else f"takes {days:,} {'day' if days == 1 else 'days'}"
    voting = " with feedback" if past.is_feedback else ""
    later = f", and the outcome window of the last one, which is {duration(window_s)}" if window_s else ""
    part = "" if coverage == NUM_BUCKETS else f", the {100 * coverage / NUM_BUCKETS:.4g}% of all that take part"
    least = f" Nothing is to be decided before {days_declared(min_days)} are over." if min_days else ""
    return (
        f"At your {per_day:,.0f} units{voting} a day{part}, an experiment that finds an effect of "
        f"{percent_text(wanted.relative_effect)} on {wanted.metric} with a probability of {wanted.power:.0%} {lasts}: "
        f"it needs {per_arm:,} units{voting} in each of {num_arms} arms, with intervals that hold at every look{later}."
        f"{least} Learnt from {num_units:,} {_UNITS[past.unit_kind]}{voting} of the last "
        f"{'day' if num_days == 1 else f'{num_days} days'}{', each counted as one unit' * (past.unit_kind != 'unit')}."
    )


def _calibration(wanted: wire.CalibrateExperiment, past: PastTraffic, found: Calibration) -> wire.ExperimentCalibration:
    rate, fixed = found.num_false / found.num_runs, found.num_false_fixed / found.num_runs
    scale = metric_scales(past.feedback_metrics).get(wanted.metric, 1.0)
    horizons = [wire.EffectFound(each.days, each.units, each.effect * scale, each.relative) for each in found.horizons]
    finds = "; ".join(
        f"{each.days} days find {percent_text(each.relative)} or more" for each in horizons if each.relative is not None
    )
    text = (
        f"{found.num_runs:,} times {found.num_units:,} {_UNITS[past.unit_kind]}"
        f"{' as units' * (past.unit_kind != 'unit')} "
        f"of your past{', which gave feedback,' if past.is_feedback else ''} were split at "
        f"random, so that no arm did anything. Looked at each day, {percent_text(rate)} of these splits were ever "
        f"called an effect; at most {percent_text(wanted.alpha)} are to be expected. An ordinary test, looked at as "
        f"often, would have called {percent_text(fixed)} one."
    ) + (f" Of real effects, {finds}." if finds else "")
    return wire.ExperimentCalibration(
        metric=wanted.metric,
        past_units=past.unit_kind,
        num_units=found.num_units,
        num_days=found.num_days,
        mean=found.mean * scale,
        deviation=found.deviation * scale,
        runs=found.num_runs,
        false_rate=rate,
        false_rate_fixed=fixed,
        horizons=horizons,
        text=text,
    )
