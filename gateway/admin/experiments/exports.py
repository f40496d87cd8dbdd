"""Exports of experiments over HTTP: one ZIP file with the rows or sums and their manifest, made while it is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from litestar import Controller, Request, get
from litestar.params import FromPath
from litestar.response import Stream

from gateway.admin.access import needs
from gateway.admin.billing.downloads import DEADLINE_S
from gateway.admin.experiments.experiments import existing_experiment
from gateway.admin.organization.projects import existing_project
from gateway.admin.paging import wrong_value
from gateway.admin.services import AdminServices, Caller, Services
from gateway.domain.errors import Conflict, InvalidRequest
from gateway.exports.archive import MEDIA_TYPE, zip_chunks
from gateway.exports.experiments.produce import (
    FORMATS,
    KINDS,
    ExperimentExportRequest,
    make_export_request,
    open_experiment_export,
)
from gateway.exports.request import WrongExport
from gateway.http.shape import shape

ZIP = shape(
    media=(MEDIA_TYPE,), query={"kind": {"enum": list(KINDS)}, "format": {"enum": list(FORMATS)}}, needed=("kind",)
)


class ExperimentExportController(Controller):
    """The endpoint for downloads of an experiment's rows or analysis."""

    path = "/projects/{project_id:str}/experiments/{experiment_id:str}/exports"

    @get(opt=needs("experiments.read", query=("kind", "format")) | ZIP)
    async def export_experiment(
        self,
        project_id: FromPath[str],
        experiment_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> Stream:
        """Download an experiment's exposures, outcomes or feedback as rows, or its analysis as JSON.

        Units are known by their digests alone. From `analysis` anybody can compute every published number anew.
        """
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            await existing_experiment(conn, project_id, experiment_id)
        params = request.query_params
        if "kind" not in params:
            raise InvalidRequest("Missing required parameter: 'kind'.", param="kind", code="missing_required_parameter")
        try:
            wanted = make_export_request(project_id, experiment_id, params["kind"], params.get("format"))
        except WrongExport as error:
            raise wrong_value(error.field, error.reason) from None
        body = _body(services, wanted)
        first = await anext(body)  # an error before the first bytes still has a reply of its own
        disposition = f'attachment; filename="{wanted.file_name}.zip"'
        headers = {"content-disposition": disposition, "cache-control": "no-store"}
        return Stream(_prepended(first, body), media_type=MEDIA_TYPE, headers=headers)


async def _body(services: AdminServices, wanted: ExperimentExportRequest) -> AsyncIterator[bytes]:
    with services.downloads.reserve_place(wanted.project_id):
        async with open_experiment_export(services.database, wanted, deadline_s=DEADLINE_S) as export:
            if export is None:
                raise Conflict("The experiment has not started: there is nothing to export yet.")
            async for chunk in zip_chunks(export):
                if chunk:
                    yield chunk


async def _prepended(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
