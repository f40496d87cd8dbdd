"""Imports: how content comes in, from the first byte until it is a version of an adapter or refused.

    receiving (an upload) | fetching (from a source) -> uploaded -> done | rejected (reason) | failed (reason)

The gateway that works on an import leaves signs of life; an import without any has failed. A change is refused once the
import has ended, so that of a cancellation and a success only the first one counts.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gateway.db.ids import new_id
from gateway.db.organization.audit import Author

if TYPE_CHECKING:
    import asyncpg

    from gateway.db.pool import Connection

ImportState = Literal["receiving", "fetching", "uploaded", "done", "rejected", "failed"]
AT_WORK: tuple[ImportState, ...] = ("receiving", "fetching", "uploaded")

MAX_FETCHED = 2
"""The most imports of one project that are fetched at a time, roughly: slow sources must not hold up others."""

MAX_CLAIMS = 3
"""The most times that the fetch of an import may be begun: if all the gateways died, the content may be the reason."""


class ImportRow(msgspec.Struct, frozen=True, kw_only=True):
    """An import of content into an adapter."""

    id: str
    project_id: str
    name: str
    """The adapter's name; empty for an upload in one piece until its bytes have come."""
    base_digest: str | None
    """The digest of the base model that the adapter is for; None where none was named, until the content is
    inspected."""
    source: str
    """'upload', 'folder' or the address that the content is fetched from."""
    state: ImportState
    reason: str | None
    """The reason why the import was rejected or failed."""
    size_bytes: int | None
    """The size in bytes that the client announced; None where it announced none."""
    received_bytes: int
    promote: bool
    """True if the version becomes current once it is ready."""
    author: Author
    """The author of the import in the audit log."""
    adapter_id: str | None
    """The adapter of which the content became a version, once the import is done."""
    version: int | None
    """The number of the version that the content became, once the import is done."""
    sha256: str | None
    """The SHA-256 of the content that the client announced; None where it announced none."""
    created_at: datetime.datetime
    updated_at: datetime.datetime


_INSERT = """
    INSERT INTO adapter_imports (id, project_id, name, source, state, size_bytes, promote, author, sha256, base_digest)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    RETURNING id, project_id, name, base_digest, source, state, reason, size_bytes, received_bytes, promote, author,
              adapter_id, version, sha256, created_at, updated_at
"""


async def create_import(
    conn: Connection,
    project_id: str,
    *,
    name: str,
    source: str,
    state: ImportState,
    promote: bool,
    author: Author,
    size_bytes: int | None = None,
    sha256: str | None = None,
    base_digest: str | None = None,
) -> ImportRow:
    """Begin an import.

    name: checked by the caller.
    state: 'receiving', 'fetching', or 'uploaded' if the content is there.
    base_digest: the digest of the base model that the content is announced for, if any was named.
    promote: whether the version becomes the adapter's current one once it is ready. size_bytes, sha256: the size and
    hash that the client announced; None: none.
    """
    encoded_author = msgspec.json.encode(author).decode()
    row = await conn.fetchrow(
        _INSERT,
        new_id("imp"),
        project_id,
        name,
        source,
        state,
        size_bytes,
        promote,
        encoded_author,
        sha256,
        base_digest,
    )
    assert row is not None
    return _import(row)


_FIND = """
    SELECT id, project_id, name, base_digest, source, state, reason, size_bytes, received_bytes, promote, author,
           adapter_id, version, sha256, created_at, updated_at
    FROM adapter_imports WHERE project_id = $1 AND id = $2
"""


async def find_import(conn: Connection, project_id: str, import_id: str) -> ImportRow | None:
    """Return an import of a project; None where there is none."""
    row = await conn.fetchrow(_FIND, project_id, import_id)
    return _import(row) if row else None


_LIST = """
    SELECT id, project_id, name, base_digest, source, state, reason, size_bytes, received_bytes, promote, author,
           adapter_id, version, sha256, created_at, updated_at
    FROM adapter_imports
    WHERE project_id = $1 AND ($2::text IS NULL OR (created_at, id) <
                               (SELECT created_at, id FROM adapter_imports WHERE project_id = $1 AND id = $2))
    ORDER BY created_at DESC, id DESC LIMIT $3
"""


async def list_imports(conn: Connection, project_id: str, *, after: str | None, limit: int) -> list[ImportRow]:
    """Return imports, newest first, those that follow the import with id `after` in that order."""
    return [_import(row) for row in await conn.fetch(_LIST, project_id, after, limit)]


_COUNT = """
    SELECT count(*) FROM adapter_imports WHERE project_id = $1 AND state IN ('receiving', 'fetching', 'uploaded')
"""


async def num_at_work(conn: Connection, project_id: str) -> int:
    """Return the number of a project's imports that have not ended."""
    return int(await conn.fetchval(_COUNT, project_id))


_CLAIM = """
    UPDATE adapter_imports SET num_claims = num_claims + 1, received_bytes = 0, updated_at = now()
    WHERE id = (SELECT id FROM adapter_imports waiting
                WHERE state = 'fetching' AND num_claims < $1 AND coalesce(wait_until <= now(), true)
                  AND (num_claims = 0 OR updated_at < now() - interval '20 seconds')
                  AND (SELECT count(*) FROM adapter_imports fetched
                       WHERE fetched.project_id = waiting.project_id AND fetched.state = 'fetching'
                         AND fetched.num_claims > 0 AND fetched.updated_at >= now() - interval '20 seconds') < $2
                ORDER BY created_at LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id, project_id, name, base_digest, source, state, reason, size_bytes, received_bytes, promote, author,
              adapter_id, version, sha256, created_at, updated_at
"""


async def claim_fetch(conn: Connection) -> ImportRow | None:
    """Claim the oldest import that waits to be fetched, or whose gateway has been silent for 20 s.

    An import of a project of which `MAX_FETCHED` are being fetched is not claimed. The caller fetches the import from
    the start and calls `touch_import` every few seconds.
    """
    row = await conn.fetchrow(_CLAIM, MAX_CLAIMS, MAX_FETCHED)
    return _import(row) if row else None


_TOUCH = """
    UPDATE adapter_imports SET updated_at = now(), received_bytes = coalesce($2, received_bytes),
                               size_bytes = coalesce($3, size_bytes)
    WHERE id = $1 AND state IN ('receiving', 'fetching', 'uploaded')
"""


async def touch_import(
    conn: Connection, import_id: str, *, received_bytes: int | None = None, size_bytes: int | None = None
) -> bool:
    """Record that an import is still worked on, and its bytes received by now.

    Return False where the import is over.
    """
    return await conn.execute(_TOUCH, import_id, received_bytes, size_bytes) != "UPDATE 0"


_UPLOADED = """
    UPDATE adapter_imports
    SET state = 'uploaded', name = coalesce($2, name), promote = coalesce($3, promote),
        base_digest = coalesce($4, base_digest), updated_at = now()
    WHERE id = $1 AND state IN ('receiving', 'fetching')
    RETURNING id, project_id, name, base_digest, source, state, reason, size_bytes, received_bytes, promote, author,
              adapter_id, version, sha256, created_at, updated_at
"""


async def set_uploaded(
    conn: Connection,
    import_id: str,
    *,
    name: str | None = None,
    promote: bool | None = None,
    base_digest: str | None = None,
) -> ImportRow | None:
    """Record that all bytes of an import are here, so that its inspection may begin.

    Return None if the import is over or already recorded.

    name, promote, base_digest: given where they came with the bytes; the caller checks the name.
    """
    row = await conn.fetchrow(_UPLOADED, import_id, name, promote, base_digest)
    return _import(row) if row else None


_FINISH = """
    UPDATE adapter_imports SET state = 'done', adapter_id = $2, version = $3, updated_at = now()
    WHERE id = $1 AND state = 'uploaded'
"""


async def finish_import(conn: Connection, import_id: str, adapter_id: str, version: int) -> bool:
    """Finish an import in the transaction that makes the version.

    Return False where the import is over: no version may then be made.
    """
    return await conn.execute(_FINISH, import_id, adapter_id, version) != "UPDATE 0"


_FAIL = """
    UPDATE adapter_imports SET state = $2, reason = $3, updated_at = now()
    WHERE id = $1 AND state IN ('receiving', 'fetching', 'uploaded')
"""


async def end_import(conn: Connection, import_id: str, state: Literal["rejected", "failed"], reason: str) -> bool:
    """End an import as rejected (its content is refused) or failed (no content came of it).

    Return False if it was over before.
    """
    return await conn.execute(_FAIL, import_id, state, reason) != "UPDATE 0"


_DROP = "DELETE FROM adapter_imports WHERE id = $1 AND state = 'receiving'"


async def drop_import(conn: Connection, import_id: str) -> None:
    """Delete an import of which not all bytes have arrived; nothing remains of it."""
    await conn.execute(_DROP, import_id)


_EXPIRE = """
    UPDATE adapter_imports
    SET state = 'failed', updated_at = now(),
        reason = CASE WHEN state = 'receiving' AND size_bytes IS NOT NULL THEN 'expired' ELSE 'interrupted' END
    WHERE (state = 'uploaded' AND updated_at < now() - interval '60 seconds')
       OR (state = 'receiving' AND size_bytes IS NULL AND updated_at < now() - interval '60 seconds')
       OR (state = 'fetching' AND num_claims >= $1 AND updated_at < now() - interval '60 seconds')
       OR (state = 'receiving' AND updated_at < now() - interval '24 hours')
"""
_FORGET = """
    DELETE FROM adapter_imports
    WHERE state IN ('done', 'rejected', 'failed') AND updated_at < now() - interval '30 days'
"""


async def expire_imports(conn: Connection) -> None:
    """Fail the imports that nobody works on any more, and delete imports that ended a month ago."""
    await conn.execute(_EXPIRE, MAX_CLAIMS)
    await conn.execute(_FORGET)


_RECEIVING = "SELECT id FROM adapter_imports WHERE id = ANY ($1) AND state IN ('receiving', 'uploaded')"


async def still_receiving(conn: Connection, import_ids: list[str]) -> set[str]:
    """Return the ids, among the given ones, of imports whose received bytes are still needed."""
    return {row["id"] for row in await conn.fetch(_RECEIVING, import_ids)}


def _import(row: asyncpg.Record) -> ImportRow:
    fields: dict[str, Any] = dict(row)
    author = msgspec.json.decode(fields.pop("author"), type=Author)
    return ImportRow(author=author, **fields)
