"""A base model for tests that need adapters and no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.db.adapters import adapter_versions
from gateway.db.adapters.adapters import AdapterRow
from gateway.db.adapters.bases import register_base

if TYPE_CHECKING:
    from gateway.db.pool import Connection

BASE_DIGEST = "ba5e" * 16


async def put_adapter(
    conn: Connection, project_id: str, name: str, *, digest: str, rank: int, size_bytes: int
) -> tuple[AdapterRow, bool]:
    """Make content the current version of an adapter of the tests' base, as `adapter_versions.put_adapter` does."""
    await register_base(conn, BASE_DIGEST, "base")
    return await adapter_versions.put_adapter(
        conn, project_id, name, base_digest=BASE_DIGEST, digest=digest, rank=rank, size_bytes=size_bytes
    )
