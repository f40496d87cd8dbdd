"""Price classes of adapters, over HTTP: the operator's choice, which the tenant can read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, get, post
from litestar.params import FromPath
from msgspec import Meta

from gateway.admin.access import needs, read_body
from gateway.admin.common import audit_author
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.billing import prices
from gateway.db.organization import audit
from gateway.domain.billing.book import NO_ADAPTER
from gateway.domain.errors import NotFound

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class SetPriceClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new price class of an adapter."""

    price_class: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]


class PriceClass(msgspec.Struct, frozen=True):
    """The price class of an adapter. Usage is priced by it from now on."""

    adapter: str
    price_class: str
    object: Literal["organization.project.adapter.price_class"] = "organization.project.adapter.price_class"


class PriceClassController(Controller):
    """Endpoints for the price class of an adapter."""

    path = "/projects/{project_id:str}/adapters/{name:str}/price_class"

    @get(opt=needs("billing.read"))
    async def get_price_class(
        self, project_id: FromPath[str], name: FromPath[str], services: Services, caller: Caller
    ) -> PriceClass:
        """Return the price class of an adapter."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            return PriceClass(name, (await _find_adapter(conn, project_id, name)).price_class)

    @post(status_code=200, opt=needs("billing.write", body=SetPriceClass))
    async def set_price_class(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> PriceClass:
        """Set the price class of an adapter."""
        wanted = await read_body(request, SetPriceClass)
        if wanted.price_class == NO_ADAPTER:
            raise wrong_value("price_class", "'none' stands for the base model without an adapter; choose another name")
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            known = await _find_adapter(conn, project_id, name)
            before, after = PriceClass(name, known.price_class), PriceClass(name, wanted.price_class)
            if before != after:
                await prices.set_price_class(conn, known.adapter_id, wanted.price_class)
                event = "adapter.price_class_set"
                await audit.record(
                    conn,
                    audit_author(caller),
                    event,
                    known.adapter_id,
                    project_id=project_id,
                    before=before,
                    after=after,
                )
        return after


async def _find_adapter(conn: Connection, project_id: str, name: str) -> prices.PricedAdapter:
    found = await prices.find_priced_adapter(conn, project_id, name)
    if found is None:
        raise NotFound(f"The project has no adapter named '{name}'.", param="name")
    return found
