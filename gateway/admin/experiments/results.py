"""Findings of an experiment over HTTP: results, the days so far, exposures, and health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Controller, Request, get
from litestar.params import FromPath

from gateway.admin.access import needs
from gateway.admin.common import unix_seconds, utc_time
from gateway.admin.experiments import wire_results as wire
from gateway.admin.experiments.experiments import existing_experiment
from gateway.admin.experiments.shown import (
    age_shown,
    arms_shown,
    comparisons_shown,
    day_shown,
    guardrails_shown,
    judged_shown,
    metric_scales,
    quantiles_shown,
    segment_shown,
    split_shown,
)
from gateway.admin.experiments.words import conclusion, segment_text
from gateway.admin.organization.projects import existing_project
from gateway.admin.paging import wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.experiments.experiments import ExperimentRow
from gateway.db.experiments.looks import LookRow
from gateway.db.experiments.metrics import list_metrics
from gateway.db.experiments.segments import names_of_keys
from gateway.db.experiments.shadows import load_outcomes, load_shadow_sums
from gateway.db.experiments.sums.reading import load_units_by_day
from gateway.domain.experiments.definition import Experiment
from gateway.domain.experiments.metrics import needs_equal_weights
from gateway.domain.experiments.segment_values import KINDS, Kind
from gateway.domain.percent import percent_text
from gateway.experiments.results import (
    Health,
    metric_names,
    read_ages,
    read_health,
    read_look,
    read_segments,
    read_timeline,
)
from gateway.http.shape import shape

if TYPE_CHECKING:
    import datetime
    from collections.abc import Mapping, Sequence

    from gateway.db.pool import Connection
    from gateway.domain.experiments.segments import SegmentSplit

SEGMENTED = shape(query={"segment": {"enum": list(KINDS)}})
MAX_UNIX_DIGITS = 10
LOW_COMPLIANCE = 0.9
MAX_LAG_S = 60.0


class ExperimentResultController(Controller):
    """Endpoints for the findings of an experiment."""

    path = "/projects/{project_id:str}/experiments/{experiment_id:str}"

    @get("/results", opt=needs("experiments.read", query=("metric", "as_of", "segment")) | SEGMENTED)
    async def get_experiment_results(
        self,
        project_id: FromPath[str],
        experiment_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> wire.ExperimentResults:
        """Return an experiment's results as of now. Their intervals stay valid however often anybody looks at them.

        The query `metric` names the only metric to show; `as_of`, in Unix seconds, asks for the latest look that was
        kept up to then. `segment` names a kind of segments, each of which is shown as well, by the sums of now.
        """
        metric, as_of = request.query_params.get("metric"), _read_time(request.query_params.get("as_of"))
        kind = _read_kind(request.query_params.get("segment"))
        if kind is not None and as_of is not None:
            raise wrong_value("segment", "segments are shown as they are now: leave out `as_of`")
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            row = await existing_experiment(conn, project_id, experiment_id)
            scale = metric_scales(await list_metrics(conn, project_id))
            look = await read_look(conn, row, metric=metric, as_of=as_of)
            shadow = await _shadow(conn, row) if as_of is None else None
            segments = None
            if kind is not None:
                found = await read_segments(conn, row, kind)
                names = await _names(conn, project_id, [each.split for each in found])
                segments = [segment_shown(row.definition, each, scale, names, metric) for each in found]
        return msgspec.structs.replace(_results(row, look, scale, shadow), segments=segments)

    @get("/timeline", opt=needs("experiments.read", query=("metric",)))
    async def get_experiment_timeline(
        self,
        project_id: FromPath[str],
        experiment_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> wire.ExperimentTimeline:
        """Return the results that a look at the end of each day would have shown, the oldest day first."""
        metric = request.query_params.get("metric")
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            row = await existing_experiment(conn, project_id, experiment_id)
            scale = metric_scales(await list_metrics(conn, project_id))
        days = await read_timeline(services.database, row, metric=metric)
        defined = row.definition
        return wire.ExperimentTimeline(
            experiment_id,
            [
                wire.TimelineDay(
                    day_shown(day),
                    each.is_srm,
                    arms_shown(defined, each),
                    comparisons_shown(defined, each, scale),
                    quantiles_shown(defined, each),
                )
                for day, each in days
            ],
        )

    @get("/ages", opt=needs("experiments.read", query=("metric",)))
    async def get_experiment_ages(
        self,
        project_id: FromPath[str],
        experiment_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> wire.ExperimentAges:
        """Return each effect by days since units' first requests: whether it fades as users get used to an arm.

        The query `metric` names the only metric to show.
        """
        metric = request.query_params.get("metric")
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            row = await existing_experiment(conn, project_id, experiment_id)
            scale = metric_scales(await list_metrics(conn, project_id))
            found = await read_ages(conn, row, metric=metric)
        return wire.ExperimentAges(experiment_id, [age_shown(row.definition, each, scale) for each in found])

    @get("/exposures", opt=needs("experiments.read"))
    async def get_experiment_exposures(
        self, project_id: FromPath[str], experiment_id: FromPath[str], services: Services, caller: Caller
    ) -> wire.ExperimentExposures:
        """Return how many units were exposed first on each day, by arm and epoch."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            row = await existing_experiment(conn, project_id, experiment_id)
            counted = await load_units_by_day(conn, experiment_id, by_day=True)
        names = [arm.name for arm in row.definition.arms]
        shown = [
            wire.ExposureCount(day_shown(each.day), names[each.arm], each.epoch, each.units, each.delivered)
            for each in counted
        ]
        return wire.ExperimentExposures(experiment_id, sum(each.units for each in shown), shown)

    @get("/health", opt=needs("experiments.read"))
    async def get_experiment_health(
        self, project_id: FromPath[str], experiment_id: FromPath[str], services: Services, caller: Caller
    ) -> wire.ExperimentHealth:
        """Return whether an experiment works as declared: the split, treatments delivered, requests without a unit."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            row = await existing_experiment(conn, project_id, experiment_id)
            found = await read_health(conn, row)
            names = await _names(conn, project_id, found.segments)
        return _health(row, found, names)


def _read_time(text: str | None) -> datetime.datetime | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_UNIX_DIGITS):
        raise wrong_value("as_of", "expected Unix seconds")
    return utc_time(int(text))


async def _shadow(conn: Connection, row: ExperimentRow) -> wire.ShadowResult | None:
    """Return the results of an experiment's shadow arm; None where it has none."""
    shadow = row.definition.shadow
    if shadow is None or row.started_at is None:
        return None
    sums = await load_shadow_sums(conn, row.id, row.started_at)
    return wire.ShadowResult(
        name=shadow.name,
        requests=sums.requests,
        errors=sums.errors,
        prompt_tokens=sums.prompt_tokens,
        completion_tokens=sums.completion_tokens,
        cost_nanos=sums.cost_nanos,
        ttft_ms=wire.ShadowTimes(sums.ttft_p50, sums.ttft_p95),
        latency_ms=wire.ShadowTimes(sums.latency_p50, sums.latency_p95),
        engine_ms=wire.ShadowTimes(sums.engine_p50, sums.engine_p95),
        outcomes=await load_outcomes(conn, row.id),
    )


def _read_kind(text: str | None) -> Kind | None:
    kind = next((each for each in KINDS if each == text), None)
    if kind is None and text is not None:
        raise wrong_value("segment", f"expected one of {', '.join(KINDS)}")
    return kind


async def _names(conn: Connection, project_id: str, splits: Sequence[SegmentSplit]) -> dict[str, str]:
    """Return the names of the API keys whose segments are among the splits, by the key's id."""
    key_ids = [each.value for each in splits if each.kind == "api_key"]
    return await names_of_keys(conn, project_id, key_ids) if key_ids else {}


def _results(
    row: ExperimentRow, look: LookRow, scale: Mapping[str, float], shadow: wire.ShadowResult | None
) -> wire.ExperimentResults:
    defined, found = row.definition, look.results
    comparisons = comparisons_shown(defined, found, scale)
    quantiles, guardrails = quantiles_shown(defined, found), guardrails_shown(defined, found)
    return wire.ExperimentResults(
        experiment_id=row.id,
        name=row.name,
        state=row.state,
        version=look.version,
        looked_at=unix_seconds(look.looked_at),
        days=look.days,
        conclusion=conclusion(
            comparisons,
            quantiles,
            guardrails,
            units=sum(each.units for each in found.arms),
            is_srm=found.is_srm,
            days=look.days,
            min_days=defined.analysis.min_days,
            window_seconds=defined.analysis.outcome_window_seconds,
            is_stopped=row.stopped_at is not None and row.stopped_at <= look.looked_at,
            chosen=_chosen(row, look),
        ),
        may_decide=found.may_decide,
        is_srm=found.is_srm,
        srm_log_e=found.srm_log_e,
        arms=arms_shown(defined, found),
        comparisons=comparisons,
        quantiles=quantiles,
        guardrails=guardrails,
        not_analysed=dict(found.not_analysed),
        shadow=shadow,
        judged=judged_shown(defined, found, scale),
    )


def _chosen(row: ExperimentRow, look: LookRow) -> str | None:
    """Return the name of the arm that had been decided for by the time of a look."""
    if row.decided_arm is None or row.decided_at is None or row.decided_at > look.looked_at:
        return None
    return row.definition.arms[row.decided_arm].name


def _health(row: ExperimentRow, found: Health, names: Mapping[str, str]) -> wire.ExperimentHealth:
    arms = [
        wire.ArmHealth(arm.name, each.units, each.expected_units, each.delivered / each.units if each.units else None)
        for arm, each in zip(row.definition.arms, found.arms, strict=True)
    ]
    segments = [split_shown(row.definition, each, names) for each in found.segments]
    problems = _problems(row.definition, found, arms, segments)
    return wire.ExperimentHealth(
        experiment_id=row.id,
        status="broken" if found.is_srm or found.segments else "warning" if problems else "healthy",
        problems=problems,
        is_srm=found.is_srm,
        srm_log_e=found.srm_log_e,
        segments=segments,
        arms=arms,
        not_analysed=dict(found.not_analysed),
        analysed_units=found.num_units,
        answer_rate=found.answer_rate,
        busy_units=[wire.BusyUnit(each.digest.hex(), each.num_requests, each.share) for each in found.busy_units],
        num_waiting=found.waiting.num,
        lag_seconds=found.waiting.lag_s,
    )


def _problems(
    defined: Experiment, found: Health, arms: list[wire.ArmHealth], segments: list[wire.SegmentSplit]
) -> list[str]:
    """Return the faults of an experiment in words, the worst first."""
    problems = []
    if found.is_srm:
        problems.append("Units are not split as declared: the results are not to be believed.")
    problems += [segment_text(each) for each in segments]
    problems += [
        f"{percent_text(arm.compliance)} of the units in {arm.name} got the whole treatment: requests set themselves "
        "what the arm sets. Results are of all units, by intention to treat."
        for arm in arms
        if arm.compliance is not None and arm.compliance < LOW_COMPLIANCE
    ]
    no_unit = found.not_analysed.get("no_unit", 0)
    if no_unit > found.num_requests / 10:
        problems.append(f"{no_unit:,} requests named no unit in `{defined.unit.source}`: they are not analysed.")
    timed = next((each for each in metric_names(defined) if needs_equal_weights(each)), None)
    if timed is not None and found.epochs and len({each for each in found.epochs[-1].shares if each}) > 1:
        problems.append(
            "Weights are unequal, and prompts of the smaller arm are cached less, which makes it slower without any "
            f"effect: `{timed}` is compared over units that came under equal weights."
        )
    if found.busy_units:
        problems.append(
            f"{len(found.busy_units)} units made more than 1 % of the requests each: perhaps a placeholder such as "
            "`anonymous`, or a program. Each counts as one unit."
        )
    if found.num_noted_alone:
        problems.append(f"{found.num_noted_alone:,} units were exposed, but their requests are not in the ledger.")
    if found.waiting.lag_s > MAX_LAG_S:
        problems.append(f"The sums are {found.waiting.lag_s:,.0f} seconds behind.")
    return problems
