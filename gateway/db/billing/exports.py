"""The queries with which exports read the ledger: rows and sums of one period, and the names that go with them.

An export reads all of these in one snapshot of the database.

Rows come in a total order through a cursor of the server, a batch at a time. Text is ordered by its bytes
(COLLATE "C"), so that the order is the same in every database.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import asyncpg

    from gateway.db.pool import Connection

ROWS_PER_BATCH = 250
"""The number of rows that are read at once: few, since a gateway that exports serves requests in between."""


class Scope(msgspec.Struct, frozen=True):
    """The rows of an export: those that one month bills and, with start and end, those created between the two.

    A row that came late was created before the month in which it is billed.
    """

    organization_id: str
    project_id: str | None
    """The project; None: all projects."""
    month: datetime.date
    """The first day of the month."""
    start: datetime.datetime | None
    """The first instant; None: any."""
    end: datetime.datetime | None
    """The instant after the last; None: any."""
    currency: str


class LedgerRow(msgspec.Struct, frozen=True):
    """One row of the ledger. Times are in ms, money in nanos of the currency, months as 2026-10."""

    created_at: datetime.datetime
    request_id: str
    attempt: int
    revision: int
    """0, or above 0 for the difference to a better count that came later, whose numbers may be negative."""
    kind: str
    """usage or adjustment."""
    period: str
    """The month that bills the row."""
    corrects_period: str | None
    """The month of created_at, where it was closed before the row came."""
    corrects_request_id: str | None
    """The request that an adjustment corrects."""
    reason: str | None
    """The reason of an adjustment, in words."""
    project_id: str
    api_key_id: str
    endpoint: str
    model: str
    adapter_id: str | None
    adapter_version: int | None
    adapter_digest: str | None
    adapter_class: str
    """The price class of the adapter."""
    service_tier: str
    stream: bool
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    discarded_tokens: int
    """Tokens that were computed after the end of the text, and are not billed."""
    finish_reason: str
    queue_ms: float
    """The time that the prompt waited in the engine."""
    prefill_ms: float
    """The time from the start of the computation to the first token."""
    decode_ms: float
    """The time from the first token to the end."""
    ttft_ms: float | None
    """The time to the first token, as the gateway saw it."""
    latency_ms: float | None
    """The time to the end, as the gateway saw it."""
    adapter_load_bytes: int
    """Bytes of the adapter if the attempt had to load it, else 0."""
    finished_at: datetime.datetime
    currency: str
    price_version: int | None
    input_cost_nanos: int
    cached_cost_nanos: int
    output_cost_nanos: int
    cost_nanos: int
    """The cost after the discount."""
    list_cost_nanos: int
    """The cost before the discount."""


LEDGER_ORDER = ("created_at", "request_id", "attempt", "revision")

_LEDGER_ROWS = """
    SELECT l.*, $6::text AS currency, to_char(l.period, 'YYYY-MM') AS month,
           to_char(l.corrects_period, 'YYYY-MM') AS corrects_month
    FROM ledger l
    WHERE l.organization_id = $1 AND l.period = $3
        AND ($4::timestamptz IS NULL OR l.created_at >= $4) AND ($5::timestamptz IS NULL OR l.created_at < $5)
        AND ($2::text IS NULL OR l.project_id = $2)
    ORDER BY l.created_at, l.request_id COLLATE "C", l.attempt, l.revision
"""


_IN_ORDER = "SET LOCAL enable_sort = off"
"""A setting of the planner: rows are read from the days' indexes one by one, rather than sorted for the whole month."""

_AS_TEXT = {"period": "month", "corrects_period": "corrects_month"}
_row_values = itemgetter(*(_AS_TEXT.get(name, name) for name in LedgerRow.__struct_fields__))


async def ledger_rows(conn: Connection, scope: Scope) -> AsyncIterator[list[LedgerRow]]:
    """Yield batches of ledger rows in LEDGER_ORDER. Call it within a transaction."""
    await conn.execute(_IN_ORDER)
    cursor = await conn.cursor(_LEDGER_ROWS, *msgspec.structs.astuple(scope))
    while records := await cursor.fetch(ROWS_PER_BATCH):
        yield [LedgerRow(*_row_values(record)) for record in records]


class LedgerSums(msgspec.Struct, frozen=True):
    """The sums of the ledger's rows."""

    num_rows: int
    input_tokens: int
    """Prompt tokens without the cached ones."""
    cached_input_tokens: int
    output_tokens: int
    cost_nanos: int


_LEDGER_SUMS = """
    SELECT count(*) AS num_rows,
           coalesce(sum(prompt_tokens - cached_tokens), 0)::bigint AS input_tokens,
           coalesce(sum(cached_tokens), 0)::bigint AS cached_input_tokens,
           coalesce(sum(completion_tokens), 0)::bigint AS output_tokens,
           coalesce(sum(cost_nanos), 0) AS cost_nanos
    FROM ledger
    WHERE organization_id = $1 AND period = $3
        AND ($4::timestamptz IS NULL OR created_at >= $4) AND ($5::timestamptz IS NULL OR created_at < $5)
        AND ($2::text IS NULL OR project_id = $2)
"""


async def ledger_sums(conn: Connection, scope: Scope) -> LedgerSums:
    """Return the sums of the ledger's rows in a scope."""
    row = await conn.fetchrow(_LEDGER_SUMS, *msgspec.structs.astuple(scope)[:-1])
    assert row is not None
    return LedgerSums(**row)


class ExportFacts(msgspec.Struct, frozen=True):
    """The facts that an export states beside its rows."""

    is_closed: bool
    """True if the month is closed: its rows change no more."""
    now: datetime.datetime
    """The instant of the snapshot."""
    installation_id: str
    organization_name: str
    currency: str
    """The currency of all the organization's amounts, which are 0 before prices are set."""


_SETTING = """
    SELECT $2 < open_from(o.id) AS is_closed, now() AS now, (SELECT id FROM installation) AS installation_id,
           coalesce((SELECT n.name FROM period_names n WHERE n.organization_id = o.id AND n.period = $2
                     AND n.object_id = o.id), o.name) AS organization_name,
           coalesce((SELECT n.name FROM period_names n WHERE n.organization_id = o.id AND n.period = $2
                     AND n.object_id = 'currency'),
                    (SELECT v.currency FROM price_versions v WHERE v.organization_id = o.id LIMIT 1), 'usd') AS currency
    FROM organizations o WHERE o.id = $1
"""


async def read_facts(conn: Connection, organization_id: str, month: datetime.date) -> ExportFacts:
    """Return the facts that an export of a month states beside its rows."""
    row = await conn.fetchrow(_SETTING, organization_id, month)
    assert row is not None
    return ExportFacts(**row)


# As they were when the month was closed; afterwards a name may change, the month's files may not.
_PROJECT_NAMES = """
    SELECT p.id, coalesce(n.name, p.archived_name, p.name) AS name
    FROM projects p LEFT JOIN period_names n
        ON n.organization_id = p.organization_id AND n.period = $2 AND n.object_id = p.id
    WHERE p.organization_id = $1
"""
_ADAPTER_NAMES = """
    SELECT a.id, a.name FROM adapters a JOIN projects p ON p.id = a.project_id WHERE p.organization_id = $1
"""


async def project_names(conn: Connection, organization_id: str, month: datetime.date) -> dict[str, str]:
    """Return the names of an organization's projects in a month, by their ids."""
    return _names(await conn.fetch(_PROJECT_NAMES, organization_id, month))


async def adapter_names(conn: Connection, organization_id: str) -> dict[str, str]:
    """Return the names of adapters by id. An adapter's name never changes, and outlives the adapter."""
    return _names(await conn.fetch(_ADAPTER_NAMES, organization_id))


def _names(rows: list[asyncpg.Record]) -> dict[str, str]:
    return {row["id"]: row["name"] for row in rows}
