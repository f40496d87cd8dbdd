"""One transaction: usage goes to the ledger, with all other changes that belong to it.

These are leases, the open requests of journals, and the part of each engine's counts that the ledger has. Knows neither
files nor when to try again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.db.experiments.exposures import ExposedRequest, write_exposed
from gateway.db.ledger.journals import add_engine_usage, corrected_in_transaction, report_journal, settle_journals
from gateway.db.ledger.usage import UsageEvent, write_usage_events
from gateway.db.limits.leases import write_leases
from gateway.db.pool import Database
from gateway.domain.experiments.segment_values import Origin
from gateway.domain.limits.holdings import Row
from gateway.limits.limiter import Limiter
from gateway.metering.event import usage_event
from gateway.metering.format import Ended
from gateway.metering.tag import MeterTag, decode_tag

if TYPE_CHECKING:
    from gateway.db.pool import Connection

TIMEOUT_S = 10.0

Attempt = tuple[str, int]


class Entry(msgspec.Struct, frozen=True):
    """A record of usage, and the ledger's row for it."""

    ended: Ended
    tag: MeterTag
    event: UsageEvent
    attempt: Attempt

    @classmethod
    def of(cls, ended: Ended) -> Entry:
        """Return the entry of a record.

        Raises msgspec.DecodeError or UnicodeDecodeError: when the record carries no tag of ours.
        """
        tag = decode_tag(ended.record.meter)
        return cls(ended, tag, usage_event(ended, tag), ended.attempt)


class Ledger:
    """Writes the usage of one journal."""

    def __init__(self, database: Database, limiter: Limiter, journal_id: str) -> None:
        self._database = database
        self._limiter = limiter
        self._journal_id = journal_id

    async def write(self, entries: Sequence[Entry], open_requests: int) -> set[Attempt]:
        """Write entries, no attempt twice, and return the attempts that had no row yet.

        open_requests: the number of the journal's requests that have no row once this is done.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails. Either nothing or everything is written then;
        writing the same entries again finds out which.
        """
        rows = [
            Row(entry.event.request_id, is_final=bool(entry.ended.engine_id))
            for entry in entries
            if not entry.ended.superseded
        ]
        async with (
            self._limiter.settling(rows) as leases,
            asyncio.timeout(TIMEOUT_S),
            self._database.transaction() as conn,
        ):
            await write_exposed(conn, [exposed for entry in entries if (exposed := _exposed(entry)) is not None])
            new = await write_usage_events(conn, [entry.event for entry in entries])
            await self._count_for_engines(conn, entries, new)
            await self._settle_journals(conn, entries, new, open_requests)
            await write_leases(conn, leases.gateway_id, leases.amounts)
            return new

    async def _count_for_engines(self, conn: Connection, entries: Sequence[Entry], new: set[Attempt]) -> None:
        """Add the tokens of counts that engines reported themselves to the sums of these engines.

        A count is added only if it made the row of its attempt or corrected it, so that no count is added twice.
        """
        own = [entry for entry in entries if entry.ended.engine_id]
        known_before = [entry.event for entry in own if entry.attempt not in new]
        counted = new
        if known_before:
            attempts = [(event.request_id, event.attempt, event.created_at) for event in known_before]
            counted = new | await corrected_in_transaction(conn, attempts)
        tokens: dict[str, tuple[int, int]] = {}
        for entry in own:
            if entry.attempt in counted:
                usage = entry.ended.record.usage
                prompt, completion = tokens.get(entry.ended.engine_id, (0, 0))
                completion += usage.completion_tokens + usage.discarded_tokens
                tokens[entry.ended.engine_id] = prompt + usage.prompt_tokens, completion
        if tokens:
            await add_engine_usage(conn, self._journal_id, tokens)

    async def _settle_journals(
        self, conn: Connection, entries: Sequence[Entry], new: set[Attempt], open_requests: int
    ) -> None:
        await report_journal(conn, self._journal_id, open_requests)
        of_others = Counter(
            entry.tag.journal_id
            for entry in entries
            if entry.attempt in new and entry.tag.journal_id != self._journal_id
        )
        if of_others:
            await settle_journals(conn, of_others)


def _exposed(entry: Entry) -> ExposedRequest | None:
    """Return the unit of a request with its arm if an experiment analyses the request, else None."""
    tag, event = entry.tag, entry.event
    if not tag.experiment_epoch:
        return None
    assert tag.experiment_id is not None and tag.experiment_arm is not None
    return ExposedRequest(
        event.request_id,
        tag.project_id,
        tag.experiment_id,
        tag.unit_digest,
        tag.experiment_epoch,
        tag.experiment_arm,
        tag.experiment_delivered is not False,
        event.created_at,
        origin=Origin(tag.api_key_id, tag.endpoint, tag.stream, tag.service_tier, tag.journal_id),
    )
