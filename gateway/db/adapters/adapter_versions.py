"""Versions of adapters and their states.

    inspected -> probed -> ready -> retired -> deleted, and from the first two also -> rejected (reason) -> deleted

A version's content never changes, and its number is never used again. The schema enforces both rules, and that the
current version is a ready one. Every change is made under the lock of the adapter's row (`lock_adapter`,
`ensure_adapter`).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gateway.db.adapters.adapters import (
    AdapterRow,
    confirm_current,
    ensure_adapter,
    find_adapter,
    next_promotion,
    promote,
)

if TYPE_CHECKING:
    import asyncpg

    from gateway.db.pool import Connection

VersionState = Literal["inspected", "probed", "ready", "rejected", "retired", "deleted"]


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A version of an adapter."""

    adapter_id: str
    name: str
    base_digest: str | None
    """The digest of the base model that the version is for; None where it is not known."""
    version: int
    digest: str
    rank: int
    size_bytes: int
    state: VersionState
    reason: str | None
    """The reason why the version was rejected."""
    source: str
    """The source of the content, such as `upload` or `hf://my-org/my-adapter`."""
    promote: bool
    """True if the version was ordered to become current once it is ready; a later order may have replaced this one."""
    current: bool
    report: dict[str, Any] | None
    """The findings of the inspection, as a JSON object."""
    probe: dict[str, Any] | None
    """The findings of the probe, as a JSON object."""
    created_at: datetime.datetime
    changed_at: datetime.datetime
    """The time of the latest change of the state."""


class Content(msgspec.Struct, frozen=True):
    """The content of a version."""

    digest: str
    rank: int
    size_bytes: int
    report: str | None
    """The report of the inspection, as JSON text."""


class PutVersion(msgspec.Struct, frozen=True):
    """The result of making content a version of an adapter."""

    adapter_id: str
    version: int
    state: VersionState
    is_new: bool
    """True if the version was made now."""
    is_new_adapter: bool
    """True if the adapter was made now."""
    changed: bool
    """True if anything changed: there is a new version, or another one is current or will be."""


_FIND = """
    SELECT v.adapter_id, a.name, a.base_digest, v.version, v.digest, v.rank, v.size_bytes, v.state, v.reason, v.source,
           v.promotion IS NOT NULL AS promote, v.version IS NOT DISTINCT FROM a.current_version AS current,
           v.report, v.probe, v.created_at, v.changed_at
    FROM adapter_versions v JOIN adapters a ON a.id = v.adapter_id
    WHERE a.id = $1 AND a.removed_at IS NULL AND v.version = $2 AND v.state <> 'deleted'
"""


async def find_version(conn: Connection, adapter_id: str, version: int) -> VersionRow | None:
    """Return a version of an adapter, or None for a deleted one."""
    row = await conn.fetchrow(_FIND, adapter_id, version)
    return _version(row) if row else None


_LIST = """
    SELECT v.adapter_id, a.name, a.base_digest, v.version, v.digest, v.rank, v.size_bytes, v.state, v.reason, v.source,
           v.promotion IS NOT NULL AS promote, v.version IS NOT DISTINCT FROM a.current_version AS current,
           NULL AS report, NULL AS probe, v.created_at, v.changed_at
    FROM adapter_versions v JOIN adapters a ON a.id = v.adapter_id
    WHERE a.id = $1 AND v.state <> 'deleted' AND ($2::int IS NULL OR v.version < $2)
    ORDER BY v.version DESC LIMIT $3
"""


async def list_versions(conn: Connection, adapter_id: str, *, before: int | None, limit: int) -> list[VersionRow]:
    """Return versions, newest first, those below the number `before`.

    They come without report and probe, and without deleted ones.
    """
    return [_version(row) for row in await conn.fetch(_LIST, adapter_id, before, limit)]


_SAME = """
    SELECT v.version, v.state, v.state <> 'ready' AND v.promotion IS NOT DISTINCT FROM a.last_promotion AS is_wished
    FROM adapter_versions v JOIN adapters a ON a.id = v.adapter_id
    WHERE a.id = $1 AND v.digest = $2 AND v.state IN ('inspected', 'probed', 'ready')
    ORDER BY v.version IS NOT DISTINCT FROM a.current_version DESC, v.state = 'ready' DESC, v.version DESC LIMIT 1
"""
_INSERT = """
    INSERT INTO adapter_versions (adapter_id, version, digest, rank, size_bytes, report, source, promotion, state,
                                  claimed_at)
    SELECT $1, coalesce(max(version), 0) + 1, $2, $3, $4, $5, $6, $7, $8, CASE WHEN $9 THEN now() END
    FROM adapter_versions WHERE adapter_id = $1
    RETURNING version
"""
_RECORD_PROMOTION = "UPDATE adapter_versions SET promotion = $3 WHERE adapter_id = $1 AND version = $2"


async def put_version(
    conn: Connection,
    project_id: str,
    name: str,
    content: Content,
    *,
    base_digest: str,
    source: str,
    promoted: bool,
    claimed: bool,
) -> PutVersion:
    """Make this content a version of the adapter `name`, new or not, in the caller's transaction.

    Content that is a version already, ready or to be probed, gets no second number; promoted, it becomes current (once
    it is ready). claimed: True: the caller itself will probe the version if it is new. base_digest: the base that the
    content was inspected for; it is registered (`bases`).
    Raises OtherBase: when the adapter of this name is for another base.
    """
    adapter, is_new_adapter = await ensure_adapter(conn, project_id, name, base_digest)
    same = await conn.fetchrow(_SAME, adapter.id, content.digest)
    is_current = same is not None and same["version"] == adapter.version
    if same is not None and (not promoted or is_current or same["is_wished"]):
        if promoted and is_current:
            await confirm_current(conn, adapter.id)
        return PutVersion(adapter.id, same["version"], same["state"], False, False, False)
    promotion = await next_promotion(conn, adapter.id) if promoted else None
    if same is None:
        number = await _insert(conn, adapter.id, content, source, promotion, "inspected", claimed)
        return PutVersion(adapter.id, number, "inspected", True, is_new_adapter, True)
    assert promotion is not None
    await record_promotion(conn, adapter.id, same["version"], promotion)
    if same["state"] == "ready":
        await promote(conn, adapter.id, same["version"], promotion)
    return PutVersion(adapter.id, same["version"], same["state"], False, False, True)


async def record_promotion(conn: Connection, adapter_id: str, version: int, promotion: int) -> None:
    """Record the order that a version become current once it is ready, or now.

    promotion: a number of `next_promotion`.
    """
    await conn.execute(_RECORD_PROMOTION, adapter_id, version, promotion)


async def put_adapter(
    conn: Connection, project_id: str, name: str, *, base_digest: str, digest: str, rank: int, size_bytes: int
) -> tuple[AdapterRow, bool]:
    """Make content that needs no probe, such as the demo's, the current version of the adapter `name`, new or not.

    Returns the adapter and whether anything changed: nothing does if the digest is current already.
    Raises OtherBase: when the adapter of this name is for another base.
    """
    async with conn.transaction():
        adapter, _ = await ensure_adapter(conn, project_id, name, base_digest)
        changed = adapter.digest != digest
        if changed:
            promotion = await next_promotion(conn, adapter.id)
            content = Content(digest, rank, size_bytes, None)
            number = await _insert(conn, adapter.id, content, "upload", promotion, "ready", False)
            await promote(conn, adapter.id, number, promotion)
        found = await find_adapter(conn, project_id, name)
        assert found is not None
        return found, changed


async def _insert(
    conn: Connection,
    adapter_id: str,
    content: Content,
    source: str,
    promotion: int | None,
    state: VersionState,
    claimed: bool,
) -> int:
    number: int = await conn.fetchval(
        _INSERT,
        adapter_id,
        content.digest,
        content.rank,
        content.size_bytes,
        content.report,
        source,
        promotion,
        state,
        claimed,
    )
    return number


_MOVE = """
    UPDATE adapter_versions SET state = $4 WHERE adapter_id = $1 AND version = $2 AND state = $3
"""


async def move_version(
    conn: Connection, adapter_id: str, version: int, before: VersionState, after: VersionState
) -> bool:
    """Change a version's state from one to another; return False if it is not in the first state."""
    return await conn.execute(_MOVE, adapter_id, version, before, after) != "UPDATE 0"


def _version(row: asyncpg.Record) -> VersionRow:
    fields: dict[str, Any] = dict(row)
    report, probe = (msgspec.json.decode(text) if (text := fields.pop(name)) else None for name in ("report", "probe"))
    return VersionRow(report=report, probe=probe, **fields)
