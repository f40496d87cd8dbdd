"""The status of the server: the version, the base model and the health of its backend."""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar import get

from gateway.admin.access import needs
from gateway.admin.services import Caller, Services
from gateway.backends.base import Health
from gateway.db.organization.organizations import installation_id


class Status(msgspec.Struct, frozen=True):
    """The version of the server, the base model, and the health of a replica."""

    version: str
    installation: str
    """The identity of the database."""
    model: str
    """The base model of the oldest pool that the organization may use; "" where there is none."""
    backend: Health
    """The health of a replica of that pool."""
    object: Literal["organization.status"] = "organization.status"


@get("/status", opt=needs("organization.read"))
async def status(services: Services, caller: Caller) -> Status:
    """Return the version of Lorikeet and what it serves."""
    async with services.database.acquire() as conn:
        installation = await installation_id(conn)
    default = services.bases.default_for("", caller.organization_id)
    return Status(services.version, installation, default.name if default else "", services.health())
