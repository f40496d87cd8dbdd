"""The open requests of journals, the counts of engines that the ledger took, and the journals that were lost."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.protocol import protocol_text
from gateway.db.pool import replan

if TYPE_CHECKING:
    from gateway.db.pool import Connection

LOST_AFTER = datetime.timedelta(seconds=60)
"""The time without a report after which a journal counts as lost until the next report: its gateway reports every few
seconds."""

LIVING_FOR = datetime.timedelta(seconds=30)

FORGET_ENGINE_AFTER = datetime.timedelta(days=30)
KEEP_ENGINE_EVERY = datetime.timedelta(days=1)


class LostJournal(msgspec.Struct, frozen=True):
    """A journal whose gateway does not report any more."""

    id: str
    open_requests: int
    """The number of requests that were sent to an engine and have no row in the ledger."""
    heard_at: datetime.datetime
    """The time of the gateway's last report."""
    folder: str | None
    """The machine and the folder that the journal is in, as MACHINE:PATH; None where the gateway did not tell."""


_REPORT = """
    INSERT INTO journals AS j (id, open_requests, version, folder, protocol, started_at)
    VALUES ($1, $2, $3, $4, $5, CASE WHEN $3::text IS NOT NULL THEN clock_timestamp() END)
    ON CONFLICT (id) DO UPDATE SET
        open_requests = excluded.open_requests, heard_at = clock_timestamp(),
        version = coalesce(j.version, excluded.version), folder = coalesce(excluded.folder, j.folder),
        protocol = coalesce(j.protocol, excluded.protocol),
        started_at = coalesce(j.started_at, excluded.started_at)
"""


async def report_journal(
    conn: Connection, journal_id: str, open_requests: int, *, version: str | None = None, folder: str | None = None
) -> None:
    """Report a living gateway's own journal.

    version: the version of the gateway, which counts as started when its journal was first reported. folder: the path
    of the journal's folder, with the host's name.
    """
    protocol = None if version is None else protocol_text()
    await conn.execute(_REPORT, journal_id, open_requests, version, folder, protocol)


class LivingGateway(msgspec.Struct, frozen=True):
    """A gateway that reports."""

    id: str
    version: str | None
    """The gateway's version; None where it does not tell."""
    started_at: datetime.datetime | None
    """The time of the gateway's first report; None if the gateway does not tell its version."""
    heard_at: datetime.datetime
    """The time of the gateway's last report."""
    open_requests: int


_LIVING = """
    SELECT id, version, started_at, heard_at, open_requests FROM journals
    WHERE heard_at > clock_timestamp() - $1::interval ORDER BY started_at, id
"""


async def living_gateways(conn: Connection) -> list[LivingGateway]:
    """Return all gateways of the installation that were heard of lately, the oldest first."""
    return [LivingGateway(**row) for row in await conn.fetch(_LIVING, LIVING_FOR)]


_SETTLE = """
    UPDATE journals j SET open_requests = greatest(0, j.open_requests - settled.num)
    FROM unnest($1::text[], $2::bigint[]) AS settled (id, num) WHERE j.id = settled.id
"""


async def settle_journals(conn: Connection, counts: Mapping[str, int]) -> None:
    """Lower the numbers of open requests of other journals, by journal: their requests have their rows now."""
    await conn.execute(_SETTLE, list(counts), list(counts.values()))


_FORGET = "DELETE FROM journals WHERE id = ANY($1::text[])"


async def forget_journals(conn: Connection, journal_ids: Collection[str]) -> None:
    """Delete the rows of journals that were replayed, or ended with nothing open."""
    await conn.execute(_FORGET, list(journal_ids))


_LOST = """
    SELECT id, open_requests, heard_at, folder FROM journals
    WHERE open_requests > 0 AND heard_at < clock_timestamp() - $1::interval ORDER BY heard_at, id
"""


async def lost_journals(conn: Connection) -> list[LostJournal]:
    """Return the journals whose gateways have not reported for LOST_AFTER, with the numbers of their requests.

    Nobody can bill these requests unless the journal's folder turns up.
    """
    return [LostJournal(**row) for row in await conn.fetch(_LOST, LOST_AFTER)]


_WRITE_OFF = """
    DELETE FROM journals WHERE id = $1 AND open_requests > 0 AND heard_at < clock_timestamp() - $2::interval
    RETURNING id, open_requests, heard_at, folder
"""


async def write_off_journal(conn: Connection, journal_id: str) -> LostJournal | None:
    """Stop waiting for a lost journal; return None if no journal with this id is lost.

    If the journal turns up later, it is replayed all the same.
    """
    row = await conn.fetchrow(_WRITE_OFF, journal_id, LOST_AFTER)
    return LostJournal(**row) if row else None


_CORRECTED = """
    SELECT l.request_id, l.attempt
    FROM unnest($1::text[], $2::integer[], $3::timestamptz[]) AS told (request_id, attempt, created_at)
        JOIN ledger l USING (request_id, attempt, created_at)
    WHERE l.created_at BETWEEN $4 AND $5 AND l.revision > 0 AND l.xmin = pg_current_xact_id()::xid
"""


async def corrected_in_transaction(
    conn: Connection, attempts: Sequence[tuple[str, int, datetime.datetime]]
) -> set[tuple[str, int]]:
    """Return the given attempts that got a better count in the caller's transaction.

    attempts: (request_id, attempt, created_at) of each; not empty.
    """
    await replan(conn)
    request_ids, numbers, instants = map(list, zip(*attempts, strict=True))
    rows = await conn.fetch(_CORRECTED, request_ids, numbers, instants, min(instants), max(instants))
    return {(row["request_id"], row["attempt"]) for row in rows}


_ADD = """
    INSERT INTO engine_usage AS known (engine_id, journal_id, prompt_tokens, completion_tokens)
    SELECT engine_id, $1, prompt_tokens, completion_tokens
    FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS new (engine_id, prompt_tokens, completion_tokens)
    ON CONFLICT (engine_id, journal_id) DO UPDATE SET
        prompt_tokens = known.prompt_tokens + excluded.prompt_tokens,
        completion_tokens = known.completion_tokens + excluded.completion_tokens, updated_at = clock_timestamp()
"""


async def add_engine_usage(conn: Connection, journal_id: str, tokens: Mapping[str, tuple[int, int]]) -> None:
    """Add prompt and completion tokens, by engine, that this transaction writes from the engines' own counts."""
    prompts, completions = zip(*tokens.values(), strict=True)
    await conn.execute(_ADD, journal_id, list(tokens), list(prompts), list(completions))


_ENGINE_USAGE = """
    SELECT engine_id, sum(prompt_tokens)::bigint AS prompt_tokens, sum(completion_tokens)::bigint AS completion_tokens
    FROM engine_usage WHERE engine_id = ANY($1::text[]) GROUP BY engine_id
"""


async def engine_usage(conn: Connection, engine_ids: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return the prompt and completion tokens that the ledger has taken from these engines, by engine.

    Engines of which the ledger has taken no tokens are left out.
    """
    rows = await conn.fetch(_ENGINE_USAGE, list(engine_ids))
    return {row["engine_id"]: (row["prompt_tokens"], row["completion_tokens"]) for row in rows}


_KEEP_ENGINES = """
    UPDATE engine_usage SET updated_at = clock_timestamp()
    WHERE engine_id = ANY($1::text[]) AND updated_at < clock_timestamp() - $2::interval
"""
_FORGET_ENGINES = """
    DELETE FROM engine_usage WHERE engine_id IN (
        SELECT engine_id FROM engine_usage GROUP BY engine_id HAVING max(updated_at) < clock_timestamp() - $1::interval)
"""


async def forget_old_engines(conn: Connection, connected: Collection[str]) -> None:
    """Delete the engines that no gateway has been connected to for long.

    connected: the engines of this gateway, however idle.
    """
    await conn.execute(_KEEP_ENGINES, list(connected), KEEP_ENGINE_EVERY)
    await conn.execute(_FORGET_ENGINES, FORGET_ENGINE_AFTER)
