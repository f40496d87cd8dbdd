"""Makes a database of the schema that numbered migrations built before their numbering began anew."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gateway.backup.manifest import DATABASE, FORMAT_VERSION, MANIFEST, BackupManifest, hash_file
from gateway.db.organization.audit import Author, record
from gateway.postgres.dump import database_snapshot, dump

if TYPE_CHECKING:
    from gateway.db.pool import Connection

OLD_SCHEMA = Path(__file__).parent / "old_schema"
OLD_ROWS = Path(__file__).parent / "old_rows.sql"

_CREATE = """
    CREATE TABLE schema_migrations (
        name        text PRIMARY KEY,
        sha256      text NOT NULL,
        applied_at  timestamptz NOT NULL DEFAULT now()
    )
"""


async def build_old_schema(conn: Connection, *, num_migrations: int | None = None) -> None:
    """Apply the old migrations, or the first num_migrations of them, to an empty database."""
    await conn.execute(_CREATE)
    for path in sorted(OLD_SCHEMA.glob("*.sql"))[:num_migrations]:
        content = path.read_bytes()
        async with conn.transaction():
            await conn.execute(content.decode())
            await conn.execute(
                "INSERT INTO schema_migrations (name, sha256) VALUES ($1, $2)",
                path.stem,
                hashlib.sha256(content).hexdigest(),
            )


async def load_old_rows(conn: Connection) -> None:
    """Fill every table of the old schema; the audit log with a chain that verifies."""
    await conn.execute(OLD_ROWS.read_text())
    author = Author(organization_id="org_1", kind="user", id="user_1", email=None, address="", request_id="req_1")
    for number in range(3):
        async with conn.transaction():
            await record(conn, author, "project.created", f"proj_{number}", after={"number": number})


async def take_old_backup(dsn: str, folder: Path) -> None:
    """Back up a database as the code of that time did, with its manifest, and with neither journals nor adapters."""
    folder.mkdir()  # noqa: ASYNC240 - nothing else runs
    async with database_snapshot(dsn) as moment:
        dump(dsn, moment.id, folder / DATABASE)
    manifest = BackupManifest(
        format_version=FORMAT_VERSION,
        version="0.1.0",
        made_at="2026-11-01T00:00:00+00:00",
        contents=moment.contents,
        missing_digests=moment.contents.digests,
        files=(hash_file(folder, DATABASE),),
    )
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
