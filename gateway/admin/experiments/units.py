"""The route that makes experiments forget a unit. Units are never shown."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.params import FromPath

from gateway.admin.access import needs, read_body
from gateway.admin.common import audit_author
from gateway.admin.experiments import wire
from gateway.admin.organization.projects import existing_project
from gateway.admin.services import Caller, Services
from gateway.db.organization import audit
from gateway.domain.experiments.assignment import unit_digest
from gateway.experiments.books import forget_unit_in_transaction


@post(
    "/projects/{project_id:str}/experiment_units/forget",
    status_code=200,
    opt=needs("experiments.write", body=wire.ForgetUnit),
)
async def forget_experiment_unit(
    project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
) -> wire.ForgottenUnit:
    """Remove all that the project's experiments know of a unit, and correct their sums.

    The audit log keeps that it was done, and not which unit it was.
    """
    wanted = await read_body(request, wire.ForgetUnit)
    async with services.database.acquire() as conn:
        await existing_project(conn, caller.organization_id, project_id)
    digest = unit_digest(await services.unit_keys.key(project_id), wanted.unit)
    async with services.database.transaction() as conn:
        await existing_project(conn, caller.organization_id, project_id, lock=True)
        num = await forget_unit_in_transaction(conn, project_id, digest)
        shown = wire.ForgottenUnit(num)
        await audit.record(conn, audit_author(caller), "unit.forgotten", project_id, project_id=project_id, after=shown)
    return shown
