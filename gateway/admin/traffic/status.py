"""The status of the server: the version, the base model and the health of its backend."""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar import get

from gateway.admin.access import needs
from gateway.admin.services import Services
from gateway.backends.base import Health
from gateway.db.organization.organizations import installation_id


class Status(msgspec.Struct, frozen=True):
    """The version of Lorikeet and what it serves."""

    version: str
    installation: str
    """The identity of the database."""
    model: str
    backend: Health
    object: Literal["organization.status"] = "organization.status"


@get("/status", opt=needs("organization.read"))
async def status(services: Services) -> Status:
    """Return the version of Lorikeet and what it serves."""
    async with services.database.acquire() as conn:
        installation = await installation_id(conn)
    return Status(services.version, installation, services.bases.default.name, services.health())
