"""Feedback metrics over HTTP: the values that votes about requests and units may have."""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author, unix_seconds
from gateway.admin.experiments import wire
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page_of_all, read_list_query, wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.experiments import metrics
from gateway.db.experiments.metrics import MetricRow
from gateway.db.organization import audit
from gateway.domain.errors import Conflict, InvalidRequest, NotFound, shortened
from gateway.domain.experiments.metrics import METRICS

MAX_METRICS = 200
MILLION = 1_000_000
NUM_DECIMALS = 6
"""The number of decimals of a vote that are stored: votes are counted in millionths."""
DECIMALS = f"it is kept with {NUM_DECIMALS} decimals: give no more"


class FeedbackMetricController(Controller):
    """Endpoints for the feedback metrics of a project."""

    path = "/projects/{project_id:str}/feedback_metrics"

    @get(opt=needs("experiments.read", query=LIST_QUERY))
    async def list_feedback_metrics(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[wire.FeedbackMetric]:
        """List the feedback metrics of a project. Metrics of usage alone, such as `cost_nanos`, are always there."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            rows = await metrics.list_metrics(conn, project_id)
        return page_of_all([_wire(row) for row in rows], query)

    @post(status_code=200, opt=needs("experiments.write", body=wire.CreateFeedbackMetric))
    async def create_feedback_metric(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> wire.FeedbackMetric:
        """Create a feedback metric. It never changes, so that votes keep their meaning."""
        wanted = await read_body(request, wire.CreateFeedbackMetric)
        _check(wanted)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            if len(await metrics.list_metrics(conn, project_id)) >= MAX_METRICS:
                raise InvalidRequest(
                    f"The project already has {MAX_METRICS} feedback metrics, the most there can be. Delete one first."
                )
            labels = wanted.labels
            if not await metrics.create_metric(
                conn,
                project_id,
                wanted.name,
                type=wanted.type,
                goal=wanted.goal,
                kind=wanted.kind,
                least=_millionths(wanted.least),
                most=_millionths(wanted.most),
                labels=None if labels is None else {label: round(value * MILLION) for label, value in labels.items()},
                description=wanted.description,
            ):
                raise Conflict(f"The project already has a feedback metric named '{wanted.name}'.", param="name")
            row = await metrics.find_metric(conn, project_id, wanted.name)
            assert row is not None
            made = _wire(row)
            await audit.record(conn, audit_author(caller), "metric.created", made.id, project_id=project_id, after=made)
        return made

    @delete("/{name:str}", status_code=200, opt=needs("experiments.write"))
    async def delete_feedback_metric(
        self, project_id: FromPath[str], name: FromPath[str], services: Services, caller: Caller
    ) -> wire.DeletedFeedbackMetric:
        """Delete a feedback metric that no experiment names and that has no votes."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            row = await metrics.find_metric(conn, project_id, name)
            if row is None:
                raise NotFound(f"The project has no feedback metric named '{name}'.", param="name")
            user = await metrics.user_of_metric(conn, project_id, name)
            if user is not None:
                raise Conflict(f"The experiment '{user}' names the metric '{name}'.", param="name")
            if await metrics.has_votes(conn, project_id, name):
                raise Conflict(f"There is feedback about the metric '{name}'.", param="name")
            await metrics.delete_metric(conn, project_id, name)
            before = _wire(row)
            await audit.record(conn, audit_author(caller), "metric.deleted", name, project_id=project_id, before=before)
        return wire.DeletedFeedbackMetric(name)


def _check(wanted: wire.CreateFeedbackMetric) -> None:
    """Check the rules of a new metric that the types of fields do not express.

    Raises InvalidRequest: when a field is wrong; the error names the first one.
    """
    if wanted.name in METRICS:
        raise wrong_value("name", "a built-in metric has this name")
    if "." in wanted.name:
        raise wrong_value("name", "it must not hold a dot, which stands before a quantile")
    for field in ("least", "most"):
        if getattr(wanted, field) is not None and wanted.type != "number":
            raise wrong_value(field, "bounds are for the type `number` alone")
        if not _is_exact(getattr(wanted, field)):
            raise wrong_value(field, DECIMALS)
    if wanted.least is not None and wanted.most is not None and wanted.least >= wanted.most:
        raise wrong_value("most", "it must be above `least`")
    if (wanted.labels is not None) != (wanted.type == "label"):
        raise wrong_value("labels", "the type `label`, and no other, needs the value of each label")
    for label, value in (wanted.labels or {}).items():
        if not _is_exact(value):
            raise wrong_value("labels", f"{DECIMALS} (the wrong entry is '{shortened(label)}')")
    if any("\0" in label for label in wanted.labels or ()):
        raise wrong_value("labels", "labels must not hold a NUL character")
    if "\0" in wanted.description:
        raise wrong_value("description", "it must not hold a NUL character")


def _is_exact(value: float | None) -> bool:
    """Tell whether a number has at most NUM_DECIMALS decimals."""
    return value is None or float(f"{value:.{NUM_DECIMALS}f}") == value


def _millionths(value: float | None) -> int | None:
    return None if value is None else round(value * MILLION)


def _value(millionths: int | None) -> float | None:
    return None if millionths is None else millionths / MILLION


def _wire(row: MetricRow) -> wire.FeedbackMetric:
    labels = None if row.labels is None else {label: value / MILLION for label, value in row.labels.items()}
    return wire.FeedbackMetric(
        row.name,
        row.name,
        row.type,
        row.goal,
        row.kind,
        _value(row.least),
        _value(row.most),
        labels,
        row.description,
        unix_seconds(row.created_at),
    )
