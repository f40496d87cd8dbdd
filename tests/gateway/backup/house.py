"""An installation with a ledger, keys, adapters and a journal, on the tests' server, and commands run on it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from adapters.store import AdapterStore
from gateway.backup.manifest import MANIFEST, hash_file
from gateway.backup.take import Installation
from gateway.cli import main
from gateway.content.keys import content_keys
from gateway.db.pool import Database
from gateway.domain.tenancy.keys import new_key
from gateway.files.pieces import FolderPieces
from gateway.metering.format import frame
from gateway.support.cipher import Cipher, Place
from tests.gateway.admin_server import write_adapter
from tests.gateway.bases import put_adapter
from tests.gateway.exports.ledger import make_books
from tests.gateway.metering.records import BEGUN, ended_record


class House(msgspec.Struct, frozen=True):
    """An installation on the tests' server."""

    installation: Installation
    installation_id: str
    dsn: str
    digests: list[str]
    key_sha256: bytes
    """The hash of a key that works in the installation."""

    @property
    def environ(self) -> dict[str, str]:
        return {"LORIKEET_DATA_DIR": str(self.installation.data_dir), "DATABASE_URL": self.dsn}


async def furnish_house(data_dir: Path, dsn: str) -> House:
    store, made = AdapterStore(data_dir / "adapters"), new_key()
    digests = sorted(store.add(write_adapter(data_dir / "made" / str(seed), seed=seed)) for seed in range(3))
    async with await Database.connect(dsn) as database:
        books = await make_books(database, num_rows=200)
        async with database.transaction() as conn:
            for number, digest in enumerate(digests):
                await put_adapter(conn, books.acme, f"adapter-{number}", digest=digest, rank=2, size_bytes=9)
            await conn.execute(
                "INSERT INTO api_keys (id, kind, organization_id, project_id, name, public, sha256, scopes)"
                " VALUES ('key_x', 'project', $1, $2, 'x', $3, $4, '{inference}')",
                books.organization_id,
                books.acme,
                made.public,
                made.sha256,
            )
            installation_id = await conn.fetchval("SELECT id FROM installation")
    begun = msgspec.structs.replace(BEGUN, database_id=installation_id)
    write(data_dir / "journal/0/000000000001.journal", frame(begun) + frame(ended_record("req_journaled")))
    write(data_dir / "operator.key", b"sk-lk-operator\n")
    installation = Installation(
        data_dir=data_dir,
        store=AdapterStore(data_dir / "adapters"),
        pieces=FolderPieces(data_dir / "files"),
        journal_dir=data_dir / "journal",
        key_files=(data_dir / "operator.key",),
    )
    return House(installation, installation_id, dsn, digests, made.sha256)


async def seal_a_secret(house: House) -> None:
    """Put an encrypted secret into an installation, under the key of its data folder."""
    cipher = Cipher(content_keys(None, house.installation.data_dir / "content.key"))
    conn = await asyncpg.connect(house.dsn)
    try:
        organization = await conn.fetchval("SELECT id FROM organizations")
        sealed = cipher.seal(b"secret", Place(organization, "webhooks.secret", "webhook_x"))
        await conn.execute(
            "INSERT INTO webhooks (id, organization_id, url, secret, content_key) VALUES ('webhook_x', $1, '', $2, $3)",
            organization,
            sealed.data,
            sealed.key_id,
        )
    finally:
        await conn.close()


def rewrite_manifest(backup: Path) -> None:
    """Rewrite the manifest of a backup to match its present files, as somebody does who hides that files are gone."""
    manifest = json.loads((backup / MANIFEST).read_text())
    paths = [path.relative_to(backup).as_posix() for path in backup.rglob("*") if path.is_file()]
    entries = [hash_file(backup, path) for path in sorted(paths) if path != MANIFEST]
    files: list[dict[str, Any]] = [{"path": e.path, "num_bytes": e.num_bytes, "sha256": e.sha256} for e in entries]
    (backup / MANIFEST).write_text(json.dumps(manifest | {"files": files}))


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


class Lorikeet:
    """A runner of commands in a thread, since a test's event loop may be busy writing usage."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    async def __call__(self, environ: dict[str, str], *argv: str) -> str:
        """Run a command that succeeds; return its standard output."""
        code, out, err = await self.run(environ, argv)
        assert code == 0, err
        return out

    async def refused(self, environ: dict[str, str], *argv: str) -> str:
        """Run a command that fails; return the last line of its standard error."""
        code, _, err = await self.run(environ, argv)
        assert code == 1, err
        return err.splitlines()[-1]

    async def run(self, environ: dict[str, str], argv: tuple[str, ...]) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = await asyncio.to_thread(main, argv, environ)
        return code, *self._capsys.readouterr()
