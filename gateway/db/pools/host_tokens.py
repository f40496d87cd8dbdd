"""Tokens by which hosts join: each is good for one host, for a time. The database keeps their SHA-256 alone."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from asyncpg import Record

    from gateway.db.pool import Connection


class HostToken(msgspec.Struct, frozen=True):
    """A permission to join as a host."""

    id: str
    organization_id: str
    name: str | None
    """The name that the host gets; None: the host's own name."""
    labels: dict[str, str]
    created_at: datetime.datetime
    expires_at: datetime.datetime
    host_id: str | None
    """The host that has used it."""
    is_expired: bool


_LABELS = msgspec.json.Decoder(dict[str, str])
_fields = itemgetter(*HostToken.__struct_fields__)


def digest_of(token: str) -> bytes:
    """Return the digest that the database keeps of a token."""
    return hashlib.sha256(token.encode()).digest()


_CREATE = """
    INSERT INTO host_tokens (id, digest, organization_id, name, labels, expires_at)
    VALUES ($1, $2, $3, $4, $5::jsonb, clock_timestamp() + $6::interval)
    RETURNING *, false AS is_expired
"""


async def create_token(
    conn: Connection,
    token_id: str,
    digest: bytes,
    organization_id: str,
    *,
    name: str | None,
    labels: Mapping[str, str],
    lasts: datetime.timedelta,
) -> HostToken:
    """Store a token that expires after `lasts`, by the digest of its text, which only the caller knows; return it.

    name: the name that the host gets; None: the host names itself.
    """
    row = await conn.fetchrow(
        _CREATE, token_id, digest, organization_id, name, msgspec.json.encode(labels).decode(), lasts
    )
    assert row is not None
    return _token_of(row)


_LOCK = "SELECT *, expires_at <= clock_timestamp() AS is_expired FROM host_tokens WHERE digest = $1 FOR UPDATE"


async def lock_token(conn: Connection, digest: bytes) -> HostToken | None:
    """Return a token and keep others from using it until the transaction ends."""
    row = await conn.fetchrow(_LOCK, digest)
    return _token_of(row) if row else None


_LOCK_HOSTS = "LOCK TABLE hosts IN SHARE ROW EXCLUSIVE MODE"
_IS_TAKEN = "SELECT EXISTS (SELECT FROM hosts WHERE name = $1 AND removed_at IS NULL)"
_JOIN = """
    INSERT INTO hosts (id, name, lease_until, public_keys, labels)
    VALUES ($1, $2, '-infinity', ARRAY[$3::text], $4::jsonb)
"""
_USE = "UPDATE host_tokens SET host_id = $2 WHERE id = $1"


async def join_host(conn: Connection, token: HostToken, host_id: str, name: str, public_key: str) -> bool:
    """Enter the host that a locked token is used for; return False where another host has the name."""
    await conn.execute(_LOCK_HOSTS)
    if await conn.fetchval(_IS_TAKEN, name):
        return False
    await conn.execute(_JOIN, host_id, name, public_key, msgspec.json.encode(token.labels).decode())
    await conn.execute(_USE, token.id, host_id)
    return True


def _token_of(row: Record) -> HostToken:
    return msgspec.structs.replace(HostToken(*_fields(row)), labels=_LABELS.decode(row["labels"]))


_FORGET = "DELETE FROM host_tokens WHERE expires_at < clock_timestamp() - $1::interval"


async def forget_tokens(conn: Connection, retention: datetime.timedelta) -> None:
    """Delete tokens that expired longer than `retention` ago."""
    await conn.execute(_FORGET, retention)
