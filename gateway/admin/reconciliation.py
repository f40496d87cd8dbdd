"""Whether the ledger has all that engines counted, and what was lost with gateways that are gone."""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar import get

from gateway.admin.access import needs
from gateway.admin.services import Services
from gateway.metering.reconcile import EngineBalance


class LostJournalOut(msgspec.Struct, frozen=True):
    """open_requests: without a row in the ledger. heard_at: Unix time, seconds."""

    id: str
    open_requests: int
    heard_at: int


class ReconciliationOut(msgspec.Struct, frozen=True):
    """engines: those that this gateway is connected to."""

    engines: list[EngineBalance]
    lost_journals: list[LostJournalOut]
    object: Literal["organization.reconciliation"] = "organization.reconciliation"


@get("/reconciliation", opt=needs("organization.read"))
async def reconciliation(services: Services) -> ReconciliationOut:
    found = await services.reconcile()
    lost = [LostJournalOut(each.id, each.open_requests, int(each.heard_at.timestamp())) for each in found.lost_journals]
    return ReconciliationOut(found.engines, lost)
