"""Exports over HTTP: one ZIP file with the rows and their manifest, made while it is sent.

A failure after the first bytes, or a passed deadline, ends the connection. The archive then lacks its end, so that no
client takes it for a whole one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from litestar import Controller, Request, get
from litestar.params import FromPath
from litestar.response import Stream

from gateway.admin.access import needs
from gateway.admin.billing.downloads import DEADLINE_S
from gateway.admin.paging import wrong_value
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.organization import projects
from gateway.domain.errors import InvalidRequest, NotFound
from gateway.domain.tenancy.permissions import no_such_project
from gateway.exports.archive import MEDIA_TYPE, zip_chunks
from gateway.exports.produce import open_export
from gateway.exports.request import FORMATS_OF, ExportRequest, NoSuchPeriod, WrongExport, make_request
from gateway.http.shape import shape

REQUIRED = ("kind", "period")
QUERY = (*REQUIRED, "format")
ZIP = shape(
    media=(MEDIA_TYPE,),
    query={
        "kind": {"enum": list(FORMATS_OF)},
        "format": {"enum": sorted({each for formats in FORMATS_OF.values() for each in formats}), "default": "csv"},
    },
    needed=REQUIRED,
)


class ExportController(Controller):
    """The endpoint for downloads of an organization's exports."""

    path = "/exports"

    @get(opt=needs("billing.read", query=QUERY) | ZIP)
    async def export(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Stream:
        """Download the organization's usage, costs or invoices of a day or month."""
        return await _download(services, _export_request(request, caller.organization_id, None))


class ProjectExportController(Controller):
    """The endpoint for downloads of a project's exports."""

    path = "/projects/{project_id:str}/exports"

    @get(opt=needs("billing.read", query=QUERY) | ZIP)
    async def export_project(
        self, request: Request[Any, Any, Any], project_id: FromPath[str], services: Services, caller: Caller
    ) -> Stream:
        """Download a project's usage, costs or invoice of a day or month."""
        async with services.database.acquire() as conn:
            if await projects.get_project(conn, caller.organization_id, project_id) is None:
                raise no_such_project(project_id)
        return await _download(services, _export_request(request, caller.organization_id, project_id))


def _export_request(request: Request[Any, Any, Any], organization_id: str, project_id: str | None) -> ExportRequest:
    """Read the parameters of an export.

    project_id: the project whose rows are exported; None: all projects of the organization.

    Raises InvalidRequest: when a parameter is missing or wrong; the error names the parameter.
    """
    params = request.query_params
    for name in REQUIRED:
        if name not in params:
            raise InvalidRequest(
                f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter"
            )
    try:
        return make_request(organization_id, params["kind"], params.get("format", "csv"), params["period"], project_id)
    except WrongExport as error:
        raise wrong_value(error.field, error.reason) from None


async def _download(services: AdminServices, wanted: ExportRequest) -> Stream:
    body = _body(services, wanted)
    # An error before the first bytes still has a reply of its own.
    first = await anext(body)
    name = f"{wanted.file_name}.zip"
    headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return Stream(_prepended(first, body), media_type=MEDIA_TYPE, headers=headers)


async def _body(services: AdminServices, wanted: ExportRequest) -> AsyncIterator[bytes]:
    with services.downloads.reserve_place(wanted.project_id or wanted.organization_id):
        async with open_export(services.database, wanted, deadline_s=DEADLINE_S) as export:
            try:
                await export.check_period()
            except NoSuchPeriod as error:
                raise NotFound(f"{error.reason[0].upper()}{error.reason[1:]}.", param="period") from None
            async for chunk in zip_chunks(export):
                if chunk:
                    yield chunk


async def _prepended(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
