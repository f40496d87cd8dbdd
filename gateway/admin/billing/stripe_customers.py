"""The customers of Stripe that are billed for projects, over HTTP: meter events of a project name its customer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import Meta

from gateway.admin.access import needs, read_body
from gateway.admin.common import audit_author
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.billing import deliveries
from gateway.db.organization import audit, projects
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import no_such_project

CustomerId = Annotated[str, Meta(pattern=r"^cus_[A-Za-z0-9_]{1,64}\Z")]


class SetStripeCustomer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The customer of Stripe that is to be billed for a project."""

    customer_id: CustomerId


class StripeCustomer(msgspec.Struct, frozen=True):
    """The customer of Stripe that is billed for a project; null where the project has none."""

    project_id: str
    customer_id: str | None
    object: Literal["organization.project.stripe_customer"] = "organization.project.stripe_customer"


class StripeCustomerController(Controller):
    """Endpoints for the customer of Stripe that is billed for a project."""

    path = "/projects/{project_id:str}/stripe_customer"

    @get(opt=needs("billing.read"))
    async def get_stripe_customer(
        self, project_id: FromPath[str], services: Services, caller: Caller
    ) -> StripeCustomer:
        """Return the customer of Stripe that is billed for a project."""
        async with services.database.acquire() as conn:
            if await projects.get_project(conn, caller.organization_id, project_id) is None:
                raise no_such_project(project_id)
            customer_id = await deliveries.stripe_customer(conn, caller.organization_id, project_id)
        return StripeCustomer(project_id, customer_id)

    @post(status_code=200, opt=needs("billing.write", body=SetStripeCustomer))
    async def set_stripe_customer(
        self, request: Request[Any, Any, Any], project_id: FromPath[str], services: Services, caller: Caller
    ) -> StripeCustomer:
        """Set the customer of Stripe that is billed for a project."""
        wanted = await read_body(request, SetStripeCustomer)
        return await _change_customer(services, caller, project_id, wanted.customer_id)

    @delete(status_code=200, opt=needs("billing.write"))
    async def remove_stripe_customer(
        self, project_id: FromPath[str], services: Services, caller: Caller
    ) -> StripeCustomer:
        """Remove the customer of Stripe from a project, so that Stripe bills nobody for it."""
        return await _change_customer(services, caller, project_id, None)


async def _change_customer(
    services: AdminServices, caller: Actor, project_id: str, customer_id: str | None
) -> StripeCustomer:
    async with services.database.transaction() as conn:
        if await projects.lock_project(conn, caller.organization_id, project_id) is None:
            raise no_such_project(project_id)
        before = await deliveries.stripe_customer(conn, caller.organization_id, project_id)
        changed = StripeCustomer(project_id, customer_id)
        if before != customer_id:
            await deliveries.set_stripe_customer(conn, caller.organization_id, project_id, customer_id)
            await audit.record(
                conn,
                audit_author(caller),
                "project.stripe_customer.updated",
                project_id,
                project_id=project_id,
                before=StripeCustomer(project_id, before),
                after=changed,
            )
    return changed
