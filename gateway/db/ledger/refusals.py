"""Refusals of requests before they ran: written in batches, stored for a week, a bounded number for each project."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

RETENTION = datetime.timedelta(days=7)
MAX_PER_PROJECT = 1000
MAX_REQUEST_IDS = 50
"""The most requests of one counted refusal whose ids are stored, so that they can be found."""


class NewRefusal(msgspec.Struct, frozen=True):
    """Refusals of one kind within one minute, to be added to the list."""

    organization_id: str
    project_id: str
    api_key_id: str
    key_sha256: bytes | None
    """The SHA-256 of a key that was refused itself, by which its project is found where there is one; None: project_id
    and organization_id are given."""
    minute: datetime.datetime
    kind: bytes
    """The digest of the fields that make refusals alike."""
    request_ids: list[str]
    endpoint: str
    model: str
    status: int
    code: str
    type: str
    param: str
    message: str
    limited_by: str | None
    """The limit that refused the requests, as JSON."""
    num: int
    """The number of refusals."""


class RefusalRow(msgspec.Struct, frozen=True):
    """Refusals of one kind within one minute, as the list has them."""

    id: str
    organization_id: str
    project_id: str
    api_key_id: str
    request_ids: list[str]
    endpoint: str
    model: str
    status: int
    code: str
    type: str
    param: str
    message: str
    limited_by: dict[str, Any] | None
    """The limit that refused the requests, as an explained refusal has it."""
    num: int
    created_at: datetime.datetime
    """The time of the first of the alike refusals."""


_WRITE = """
    INSERT INTO refusals AS r (
        organization_id, project_id, api_key_id, minute, kind, request_ids, endpoint, model, status, code, type, param,
        message, limited_by, num)
    SELECT coalesce(k.organization_id, n.organization_id), coalesce(k.project_id, n.project_id),
           coalesce(k.id, n.api_key_id), n.minute, n.kind, $16, n.endpoint, n.model, n.status, n.code, n.type, n.param,
           n.message, n.limited_by, n.num
    FROM (SELECT $1::text AS organization_id, $2::text AS project_id, $3::text AS api_key_id, $4::bytea AS sha256,
                 $5::timestamptz AS minute, $6::bytea AS kind, $7::text AS endpoint, $8::text AS model,
                 $9::integer AS status, $10::text AS code, $11::text AS type, $12::text AS param, $13::text AS message,
                 $14::jsonb AS limited_by, $15::bigint AS num) n
        LEFT JOIN api_keys k ON k.sha256 = n.sha256 AND k.kind = 'project'
    WHERE coalesce(k.project_id, n.project_id) <> ''
    ON CONFLICT (project_id, minute, kind) DO UPDATE SET
        num = r.num + excluded.num, request_ids = (r.request_ids || excluded.request_ids)[1:$17]
    RETURNING project_id
"""
_TRIM = """
    DELETE FROM refusals r USING unnest($1::text[]) AS p (project_id)
    WHERE r.project_id = p.project_id AND r.id <= (
        SELECT o.id FROM refusals o WHERE o.project_id = p.project_id ORDER BY o.id DESC OFFSET $2 LIMIT 1)
"""
_DROP_OLD = """
    DELETE FROM refusals WHERE id IN (
        SELECT id FROM refusals WHERE created_at < clock_timestamp() - $1::interval LIMIT 10000 FOR UPDATE SKIP LOCKED)
"""


async def write_refusals(conn: Connection, refusals: Sequence[NewRefusal]) -> None:
    """Add refusals in the caller's transaction, without those of keys that no project has.

    The newest MAX_PER_PROJECT of each project stay.
    """
    project_ids: set[str] = set()
    # In one order, so that no two gateways wait for each other.
    for each in sorted(refusals, key=lambda each: (each.project_id, each.minute, each.kind)):
        values: list[object] = [each.organization_id, each.project_id, each.api_key_id, each.key_sha256, each.minute]
        values += [each.kind, each.endpoint, each.model, each.status, each.code, each.type, each.param, each.message]
        values += [each.limited_by, each.num, each.request_ids[:MAX_REQUEST_IDS], MAX_REQUEST_IDS]
        project_ids.add(await conn.fetchval(_WRITE, *values))
    await conn.execute(_TRIM, sorted(project_ids - {None}), MAX_PER_PROJECT)


async def drop_old_refusals(conn: Connection) -> None:
    """Delete some of the refusals that are older than RETENTION."""
    await conn.execute(_DROP_OLD, RETENTION)


_PLACE = """
    SELECT id FROM refusals
    WHERE organization_id = $1 AND ($2::text[] IS NULL OR project_id = ANY ($2)) AND public_id = $3
"""


async def place_of(
    conn: Connection, organization_id: str, *, project_ids: Sequence[str] | None, refusal_id: str
) -> int | None:
    """Return the place of a refusal in the list of these projects, before which `list_refusals` continues.

    None if the refusal is in no such list.
    """
    only = None if project_ids is None else list(project_ids)
    place: int | None = await conn.fetchval(_PLACE, organization_id, only, refusal_id)
    return place


_LIST = """
    SELECT public_id AS id, organization_id, project_id, api_key_id, request_ids, endpoint, model, status, code, type,
           param, message, limited_by, num, created_at
    FROM refusals
    WHERE organization_id = $1 AND ($2::text[] IS NULL OR project_id = ANY ($2)) AND refusals.id < $3
      AND created_at > clock_timestamp() - $5::interval
    ORDER BY refusals.id DESC LIMIT $4
"""


async def list_refusals(
    conn: Connection, organization_id: str, *, project_ids: Sequence[str] | None, before: int, limit: int
) -> list[RefusalRow]:
    """Return refusals, newest first, those whose place is below `before`. project_ids None: all of the organization."""
    only = None if project_ids is None else list(project_ids)
    return [_row(row) for row in await conn.fetch(_LIST, organization_id, only, before, limit, RETENTION)]


_FIND = """
    SELECT public_id AS id, organization_id, project_id, api_key_id, request_ids, endpoint, model, status, code, type,
           param, message, limited_by, num, created_at
    FROM refusals
    WHERE organization_id = $1 AND request_ids @> ARRAY[$2::text] AND created_at > clock_timestamp() - $3::interval
    ORDER BY refusals.id DESC LIMIT 1
"""


async def find_refusal(conn: Connection, organization_id: str, request_id: str) -> RefusalRow | None:
    """Return the refusal of a request of an organization; None where there is none."""
    row = await conn.fetchrow(_FIND, organization_id, request_id, RETENTION)
    return None if row is None else _row(row)


def _row(row: Any) -> RefusalRow:
    fields = dict(row)
    limited_by = fields.pop("limited_by")
    return RefusalRow(**fields, limited_by=None if limited_by is None else msgspec.json.decode(limited_by))
