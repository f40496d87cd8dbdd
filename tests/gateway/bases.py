"""A base model for tests that need adapters and no engine: the model of `make_model_folder`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.inspection import BaseShape
from engine.config import model_digest
from gateway.db.adapters import adapter_versions
from gateway.db.adapters.adapters import AdapterRow
from gateway.db.adapters.bases import register_base
from gateway.domain.routing.bases import Base, Bases
from tests.gateway.model_folder import make_model_folder

if TYPE_CHECKING:
    from gateway.db.pool import Connection


def _digest() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return model_digest(make_model_folder(Path(folder)))


BASE_DIGEST = _digest()

_FIRST = "SELECT digest FROM bases ORDER BY created_at LIMIT 1"


def bases(name: str = "tiny", shape: BaseShape | None = None) -> Bases:
    """Return the tests' base as the only one that a gateway serves.

    shape: the shape of the base model; None: one layer without linears.
    """
    return Bases([Base(name, BASE_DIGEST, shape or BaseShape({}, 1))])


async def put_adapter(
    conn: Connection,
    project_id: str,
    name: str,
    *,
    digest: str,
    rank: int,
    size_bytes: int,
    base_digest: str | None = None,
) -> tuple[AdapterRow, bool]:
    """Make content the current version of an adapter, as `adapter_versions.put_adapter` does.

    base_digest: the base that the adapter is for; None: the first base in the database, or the tests' base if the
    database has none. rank, size_bytes: the rank and the size in bytes in the version's row.
    """
    base_digest = base_digest or await conn.fetchval(_FIRST)
    if base_digest is None:
        base_digest = BASE_DIGEST
        await register_base(conn, base_digest, "tiny")
    return await adapter_versions.put_adapter(
        conn, project_id, name, base_digest=base_digest, digest=digest, rank=rank, size_bytes=size_bytes
    )
