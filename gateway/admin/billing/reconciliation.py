"""Reconciliation: a comparison of the ledger with the engines' counts, and the journals of gateways that are gone.

A lost journal is listed until an operator writes it off.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Controller, Request, get, post
from litestar.params import FromPath

from gateway.admin.access import needs, read_body
from gateway.admin.billing.credits import Reason
from gateway.admin.common import audit_author, check_name
from gateway.admin.services import Caller, Services
from gateway.db.ledger.journals import LostJournal, write_off_journal
from gateway.db.organization import audit
from gateway.domain.errors import NotFound
from gateway.metering.reconcile import EngineBalance


class LostJournalOut(msgspec.Struct, frozen=True):
    """The journal of a gateway that was not heard of for a while."""

    id: str
    open_requests: int
    """Requests of the journal that are not in the ledger."""
    heard_at: int
    """Unix seconds at which the gateway was last heard of."""
    folder: str | None
    """The machine and the folder that the journal is in, as MACHINE:PATH; null where the gateway did not tell."""


class ReconciliationOut(msgspec.Struct, frozen=True):
    """Tokens that the engines computed beside tokens that the ledger has."""

    engines: list[EngineBalance]
    """The engines to which the gateway that answers is connected."""
    lost_journals: list[LostJournalOut]
    object: Literal["organization.reconciliation"] = "organization.reconciliation"


class WriteOff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reason why a lost journal is written off."""

    reason: Reason


class WrittenOff(msgspec.Struct, frozen=True):
    """A lost journal whose usage is no longer waited for."""

    id: str
    open_requests: int
    """Requests that stay unbilled, unless the journal is found after all."""
    heard_at: int
    """Unix seconds at which the gateway was last heard of."""
    reason: str
    object: Literal["organization.reconciliation.written_off"] = "organization.reconciliation.written_off"


class ReconciliationController(Controller):
    """Endpoints for the comparison of engines with the ledger, and for lost journals."""

    path = "/reconciliation"

    @get(opt=needs("organization.read"))
    async def reconciliation(self, services: Services) -> ReconciliationOut:
        """Compare the tokens that engines computed with the tokens in the ledger."""
        found = await services.reconcile()
        return ReconciliationOut(found.engines, [_wire(each) for each in found.lost_journals])

    @post("/lost_journals/{journal_id:str}/write_off", status_code=200, opt=needs("billing.write", body=WriteOff))
    async def write_off(
        self, journal_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> WrittenOff:
        """Stop waiting for a lost journal.

        The journal's requests no longer count as unbilled, and it no longer holds up the closing of a month.
        """
        wanted = await read_body(request, WriteOff)
        check_name(wanted.reason, "reason")
        async with services.database.transaction() as conn:
            lost = await write_off_journal(conn, journal_id)
            if lost is None:
                raise NotFound(f"There is no lost journal with the id '{journal_id}'.", param="journal_id")
            shown = _wire(lost)
            after = WrittenOff(shown.id, shown.open_requests, shown.heard_at, wanted.reason)
            await audit.record(conn, audit_author(caller), "journal.written_off", lost.id, before=shown, after=after)
        return after


def _wire(lost: LostJournal) -> LostJournalOut:
    return LostJournalOut(lost.id, lost.open_requests, int(lost.heard_at.timestamp()), lost.folder)
