"""Bills again what journals hold, for a database that was put back to a moment before the ledger took it.

A journal notes what the ledger has, and its notes are wrong once the database is an earlier one. So all ends of
requests that are still on disk are written again, in whatever segment they are; the ledger takes each attempt once.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import msgspec

from gateway.billing.price_cache import PriceCache
from gateway.db.billing.prices import PriceLoader
from gateway.db.ledger.attempts import AttemptTokens, attempt_tokens
from gateway.db.ledger.journals import forget_journals
from gateway.db.limits.leases import PostgresLeases
from gateway.db.limits.limits import LimitLoader
from gateway.db.pool import UNAVAILABLE, Database
from gateway.domain.limits.clock import DatabaseClock
from gateway.limits.limiter import Limiter
from gateway.limits.rules import Rules
from gateway.metering.copier import MAX_BATCH
from gateway.metering.folder import folders_in, segments_in, spent_segments_in
from gateway.metering.format import Begun, Ended, EndedKey, read_frames
from gateway.metering.ledger import Attempt, Entry, Ledger


class JournalUsage(msgspec.Struct, frozen=True):
    """The ends of requests that the journals of one machine hold."""

    ended: list[Ended]
    """The ends of requests, each count once, those of the oldest segment first."""
    num_journals: int
    """The number of journals that belong to this database."""
    num_foreign: int
    """The number of segments that belong to another database."""
    since_ns: int | None
    """The instant of the oldest end in Unix nanoseconds; None: there is none."""


def held_usage(root: Path, database_id: str) -> JournalUsage:
    """Read the ends of requests of all journals under root, also of spent segments.

    root: a folder of journals that nobody writes to, such as a copy.

    Raises OSError: when a folder or a file cannot be read.
    """
    found: dict[EndedKey, Ended] = {}
    journal_ids, num_foreign = set[str](), 0
    for folder in folders_in(root) if root.is_dir() else []:
        for path in sorted([*spent_segments_in(folder), *segments_in(folder)], key=lambda path: path.stem):
            records = read_frames(path.read_bytes()).records
            begun = [record for record in records if isinstance(record, Begun)]
            if any(record.database_id != database_id for record in begun):
                num_foreign += 1
                continue
            journal_ids.update(record.journal_id for record in begun)
            for record in records:
                if isinstance(record, Ended):
                    found.setdefault(record.key, record)
    since_ns = min((ended.finished_at_ns for ended in found.values()), default=None)
    return JournalUsage(list(found.values()), len(journal_ids), num_foreign, since_ns)


class RebilledUsage(msgspec.Struct, frozen=True):
    """The outcome of billing journals' usage again."""

    num_attempts: int
    """The number of attempts in the journals."""
    num_missing: int
    """The number of attempts that the ledger did not have, and has now."""
    refused: list[str]
    """A line for each request whose usage the database refuses."""


async def bill_again(database: Database, held: Sequence[Ended]) -> RebilledUsage:
    """Write usage to a ledger that may lack it. Usage that the ledger has already stays as it is.

    Raises one of `gateway.db.pool.UNAVAILABLE`: when the database cannot be reached; what was written stays, and may be
    written again.
    """
    journal_id = secrets.token_hex(16)
    ledger = Ledger(database, _idle_limiter(database), journal_id)
    left, missing, refused = {ended.key: ended for ended in held}, set[Attempt](), []
    while left:
        batch: dict[Attempt, Ended] = {}
        for ended in islice(left.values(), MAX_BATCH):
            batch.setdefault(ended.attempt, ended)
        for ended in batch.values():
            del left[ended.key]
        try:
            missing |= await ledger.write([Entry.of(ended) for ended in batch.values()], 0)
        except UNAVAILABLE:
            raise
        except Exception:
            for ended in batch.values():  # one at a time, since the ledger refuses some of them
                try:
                    missing |= await ledger.write([Entry.of(ended)], 0)
                except UNAVAILABLE:
                    raise
                except Exception as error:
                    refused.append(f"{ended.record.request_id}: {' '.join(str(error).split())}")
    async with database.acquire() as conn:
        await forget_journals(conn, [journal_id])
    return RebilledUsage(len({ended.attempt for ended in held}), len(missing), refused)


def _idle_limiter(database: Database) -> Limiter:
    """Return a limiter that admits nothing: the ledger's own triggers count the used amounts."""
    rules, clock = Rules(LimitLoader(database)), DatabaseClock(time.monotonic)
    return Limiter(PostgresLeases(database), rules, clock, PriceCache(PriceLoader(database)))


async def difference_tokens(database: Database, held: Sequence[Ended]) -> int:
    """Return the number of tokens by which the ledger differs from the journals.

    A row differs from an engine's own count if it has another number of tokens, and from a gateway's count if it has
    fewer. Records without our tag, which `bill_again` names as refused, count for nothing.

    Raises one of `gateway.db.pool.FAILURES`: when the database fails.
    """
    of_attempts: dict[Attempt, list[Ended]] = {}
    for ended in held:
        of_attempts.setdefault(ended.attempt, []).append(ended)
    created = {}
    for attempt, counts in of_attempts.items():
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            created[attempt] = Entry.of(counts[0]).event.created_at
    difference, attempts = 0, iter(created)
    while part := list(islice(attempts, MAX_BATCH)):
        async with database.transaction() as conn:
            rows = await attempt_tokens(conn, [(*attempt, created[attempt]) for attempt in part])
        for attempt in part:
            difference += _difference(of_attempts[attempt], rows.get(attempt))
    return difference


def _difference(counts: Sequence[Ended], row: AttemptTokens | None) -> int:
    own = [_num_tokens(ended) for ended in counts if ended.engine_id]
    expected = max(own or [_num_tokens(ended) for ended in counts])
    if row is None:
        return max(expected, 1)  # an attempt without a token is missing as well
    if any(ended.superseded for ended in counts) or row.is_superseded:
        return 0  # nobody is billed for it
    return abs(row.num_tokens - expected) if own else max(expected - row.num_tokens, 0)


def _num_tokens(ended: Ended) -> int:
    usage = ended.record.usage
    return usage.prompt_tokens + usage.completion_tokens + usage.discarded_tokens
