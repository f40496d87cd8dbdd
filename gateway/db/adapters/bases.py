"""Base models that the installation has served, by the digest that `engine.config.model_digest` computes.

An adapter belongs to the digest of one base, and answers under every pool of that digest. If the last pool of a base
changes to another base, the adapters that fit the other base go with the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_REGISTER = """
    INSERT INTO bases AS b (digest, name) VALUES ($1, $2)
    ON CONFLICT (digest) DO UPDATE SET name = excluded.name WHERE b.name <> excluded.name
"""


async def register_base(conn: Connection, digest: str, name: str) -> None:
    """Record a base model under the name that people see; a later name replaces an earlier one."""
    await conn.execute(_REGISTER, digest, name)


_ADOPT = "UPDATE adapters SET base_digest = $1 WHERE base_digest IS NULL"


async def adopt_adapters(conn: Connection, digest: str) -> int:
    """Give this registered base to all adapters that have none; return the number of these adapters.

    A database from before bases were recorded has such adapters, all of the only base that it served. The change of
    each row is announced to the caches of all gateways.
    """
    return int((await conn.execute(_ADOPT, digest)).removeprefix("UPDATE "))


async def settle_base(conn: Connection, digest: str, name: str) -> int:
    """Register the only base that a gateway serves, and give it to adapters without a base; return their number."""
    async with conn.transaction():
        await register_base(conn, digest, name)
        return await adopt_adapters(conn, digest)


class LiveContent(msgspec.Struct, frozen=True):
    """A version of an adapter that answers, or is about to."""

    adapter_id: str
    name: str
    """The name of the tenant, of the adapter, and the version, as in `acme:support@2`."""
    digest: str
    """The digest of the content."""


_LIVE = """
    SELECT a.id, p.name || ':' || a.name || '@' || v.version AS name, v.digest
    FROM adapters a JOIN projects p ON p.id = a.project_id JOIN adapter_versions v ON v.adapter_id = a.id
    WHERE a.base_digest = $1 AND a.removed_at IS NULL AND p.archived_at IS NULL
      AND v.state IN ('inspected', 'probed', 'ready')
    ORDER BY p.name, a.name, v.version
"""


async def live_contents(conn: Connection, base_digest: str) -> list[LiveContent]:
    """Return the versions of all tenants' adapters of a base that answer, or are about to."""
    return [LiveContent(*row) for row in await conn.fetch(_LIVE, base_digest)]


_LOCK_ADAPTERS = "SELECT FROM adapters WHERE base_digest = $1 ORDER BY id FOR NO KEY UPDATE"


async def lock_adapters(conn: Connection, base_digest: str) -> None:
    """Keep all adapters of a base as they are until the transaction ends."""
    await conn.execute(_LOCK_ADAPTERS, base_digest)


_MOVE = "UPDATE adapters SET base_digest = $2 WHERE id = ANY ($1::text[])"


async def move_adapters(conn: Connection, adapter_ids: Sequence[str], base_digest: str) -> None:
    """Move all adapters of a base that no pool serves any more to another base, which a pool serves."""
    await conn.execute(_MOVE, list(adapter_ids), base_digest)


_NAMES = "SELECT digest, name FROM bases"


async def base_names(conn: Connection) -> dict[str, str]:
    """Return the last name of each base model that the installation has ever served, by digest."""
    return {row["digest"]: row["name"] for row in await conn.fetch(_NAMES)}
