"""Base models that the installation has served, by the digest that `engine.config.model_digest` computes. An adapter
belongs to the digest of one base, and answers under every pool of that digest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """Give adapters that have no base to this one, which is registered; return how many there were.

    A database from before bases were recorded has such adapters, all of the only base that it served. The change of
    each row is announced to the caches of all gateways.
    """
    return int((await conn.execute(_ADOPT, digest)).removeprefix("UPDATE "))


async def settle_base(conn: Connection, digest: str, name: str) -> int:
    """Register the only base that a gateway serves and let it adopt, in one transaction; return the number adopted."""
    async with conn.transaction():
        await register_base(conn, digest, name)
        return await adopt_adapters(conn, digest)


_NAMES = "SELECT digest, name FROM bases"


async def base_names(conn: Connection) -> dict[str, str]:
    """Return the last name of each base model that the installation has ever served, by digest."""
    return {row["digest"]: row["name"] for row in await conn.fetch(_NAMES)}
