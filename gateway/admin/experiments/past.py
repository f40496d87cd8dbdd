"""Reads a project's past traffic and feedback before an experiment starts, for previews and calibrations."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Sequence

import msgspec

from gateway.admin.experiments.wire_previews import Past
from gateway.admin.organization.projects import existing_project
from gateway.admin.paging import wrong_value
from gateway.admin.services import AdminServices
from gateway.db.experiments.metrics import MetricRow, list_metrics
from gateway.db.experiments.past import PastRow, PastVotes, has_units, load_past, load_past_votes
from gateway.domain.experiments.effects import Kind
from gateway.domain.experiments.metrics import METRICS, read_metric
from gateway.domain.tenancy.actor import Actor
from gateway.experiments.past import NOT_IN_LEDGER, PackedPast, PastSums, sum_past
from gateway.support.process import call_apart

FEW_ROWS = 1_000
"""The most rows that are summed in a thread, which takes tens of milliseconds; a process takes a second to start."""


class PastTraffic(msgspec.Struct, frozen=True):
    """A project's past traffic or feedback, as it tells of one metric."""

    rows: PackedPast
    unit_kind: Past
    """The thing that counts as a unit."""
    feedback_metrics: Sequence[MetricRow]
    """The feedback metrics of the project."""

    @property
    def is_feedback(self) -> bool:
        """True for a metric of feedback."""
        return self.rows.is_feedback

    async def sums(self) -> PastSums:
        """Return the sums over the units."""
        if self.rows.num_rows <= FEW_ROWS:
            return await asyncio.to_thread(sum_past, self.rows)
        return await call_apart(sum_past, self.rows)


def check_metric(metric: str, own: Sequence[MetricRow], past: Past | None) -> Kind:
    """Return the kind of a metric that can be computed from the past.

    own: the feedback metrics of the project. past: the thing that is to count as a unit; None: the usual one.

    Raises InvalidRequest: for a metric that cannot be computed, and for a feedback metric with API keys as its units.
    """
    kinds: dict[str, Kind] = {each.name: each.kind for each in own}
    read = read_metric(metric, kinds)
    if read is None:
        known = ", ".join(name for name in METRICS if name not in NOT_IN_LEDGER)
        raise wrong_value("metric", f"expected one of {known}, or a feedback metric of the project")
    if read.metric is None:
        if past == "api_key":
            raise wrong_value("past_units", "feedback is about a unit or a request, not about an API key")
        return kinds[metric]
    if read.quantile is not None:
        raise wrong_value("metric", "name the metric without its quantile")
    if read.name in NOT_IN_LEDGER:
        raise wrong_value("metric", "the ledger tells nothing of it")
    return "ratio" if read.metric.per_request else "mean"


async def read_past(
    services: AdminServices, caller: Actor, project_id: str, metric: str, past: Past | None, days: int
) -> PastTraffic:
    """Read the traffic or the feedback of the last days that tells of a metric.

    Raises InvalidRequest: for a metric without data of the past.
    Raises NotFound: for an unknown project.
    """
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
    async with services.database.transaction() as conn:
        await existing_project(conn, caller.organization_id, project_id)
        own = await list_metrics(conn, project_id)
        kind = check_metric(metric, own, past)
        found: AsyncIterator[Sequence[PastRow | PastVotes]]
        is_feedback = any(each.name == metric for each in own)
        if is_feedback:
            chosen: Past = past or "unit"
            found = load_past_votes(conn, project_id, metric, since, by_unit=past != "request")
        else:
            chosen = past or ("unit" if await has_units(conn, project_id, since) else "request")
            found = load_past(conn, project_id, since, chosen)
        slices, num_rows = [], 0
        async for rows in found:
            slices.append(msgspec.msgpack.encode(rows))
            num_rows += len(rows)
    return PastTraffic(PackedPast(slices, num_rows, metric, kind, is_feedback), chosen, own)
