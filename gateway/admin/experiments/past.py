"""Reads a project's past traffic before an experiment starts, for previews and calibrations."""

from __future__ import annotations

import asyncio
import datetime

import msgspec

from gateway.admin.experiments.wire_previews import Past
from gateway.admin.organization.projects import existing_project
from gateway.admin.paging import wrong_value
from gateway.admin.services import AdminServices
from gateway.db.experiments.past import has_units, load_past
from gateway.domain.experiments.calibration import PastUnit
from gateway.domain.experiments.effects import Kind
from gateway.domain.experiments.metrics import METRICS, read_metric
from gateway.domain.tenancy.actor import Actor
from gateway.experiments.past import NOT_IN_LEDGER, past_units


class LearntFrom(msgspec.Struct, frozen=True):
    """Units of the past, and what counted as one."""

    units: list[PastUnit]
    past: Past
    kind: Kind


def check_metric(metric: str) -> Kind:
    """Return how sums make a metric that the ledger alone tells of. Raises InvalidRequest: for every other one."""
    read = read_metric(metric)
    if read is None or read.metric is None:
        known = ", ".join(name for name in METRICS if name not in NOT_IN_LEDGER)
        raise wrong_value("metric", f"the ledger tells of these: {known}")
    if read.quantile is not None:
        raise wrong_value("metric", "name the metric without its quantile")
    if read.name in NOT_IN_LEDGER:
        raise wrong_value("metric", "the ledger tells nothing of it")
    return "ratio" if read.metric.per_request else "mean"


async def learn(
    services: AdminServices, caller: Actor, project_id: str, metric: str, past: Past | None, days: int
) -> LearntFrom:
    """Return what the units of the last days contributed to a metric.

    Raises InvalidRequest: for a metric that the ledger does not tell of. Raises NotFound: for an unknown project.
    """
    kind = check_metric(metric)
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
    async with services.database.transaction() as conn:
        await existing_project(conn, caller.organization_id, project_id)
        chosen: Past = past or ("unit" if await has_units(conn, project_id, since) else "request")
        rows = await load_past(conn, project_id, since, chosen)
    return LearntFrom(await asyncio.to_thread(past_units, rows, metric), chosen, kind)
