"""A project's invoice over HTTP: JSON, or a page to print. Tenants see their own invoices."""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request, get
from litestar.params import FromPath
from litestar.response import Response

from gateway.admin.access import needs
from gateway.admin.billing.periods import existing_period, month_of
from gateway.admin.organization.projects import existing_project
from gateway.admin.paging import wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.billing import invoices
from gateway.domain.billing.invoice import Invoice
from gateway.domain.billing.invoice_page import CONTENT_SECURITY_POLICY, invoice_page
from gateway.http.shape import shape

FORMATS = ("json", "html")
SHAPE = shape(reply=Invoice, media=("text/html",), query={"format": {"enum": list(FORMATS), "default": "json"}})


class InvoiceController(Controller):
    """The endpoint for the invoices of a project."""

    path = "/projects/{project_id:str}/invoices"

    @get("/{period:str}", opt=needs("billing.read", query=("format",)) | SHAPE)
    async def get_invoice(
        self,
        project_id: FromPath[str],
        period: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> Response[bytes]:
        """Return the invoice of a project for a month, or a draft before it is issued."""
        start, form = month_of(period), request.query_params.get("format", "json")
        if form not in FORMATS:
            raise wrong_value("format", "expected json or html")
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            await existing_period(conn, caller.organization_id, start)
            if form == "json":
                document = await invoices.find_document(conn, caller.organization_id, project_id, start)
                return Response(document, media_type="application/json")
            invoice = await invoices.find_invoice(conn, caller.organization_id, project_id, start)
        return Response(
            invoice_page(invoice).encode(),
            media_type="text/html",
            headers={"content-security-policy": CONTENT_SECURITY_POLICY},
        )
