"""A backup taken while everything is written to comes back whole elsewhere, and nothing less is taken for one."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from adapters.store import AdapterStore
from gateway.cli import main
from gateway.db import adapters, dump
from gateway.db.keys import find_usable_key
from gateway.db.migrate import migrate
from gateway.db.pool import Database
from gateway.metering.folder import JournalFolder
from gateway.tenancy.keys import new_key
from tests.conftest import with_database
from tests.gateway.admin_server import write_adapter
from tests.gateway.exports.ledger import BEFORE, Books, make_books, time, write_usage


class House(msgspec.Struct, frozen=True):
    """An installation on the tests' server. key_sha256: of a key that works in it."""

    data_dir: Path
    dsn: str
    books: Books
    digests: list[str]
    key_sha256: bytes

    @property
    def environ(self) -> dict[str, str]:
        return {"LORIKEET_DATA_DIR": str(self.data_dir), "DATABASE_URL": self.dsn}


@pytest.fixture
async def house(database: Database, dsn: str, tmp_path: Path) -> AsyncIterator[House]:
    data_dir = tmp_path / "house"
    books = await make_books(database, num_rows=200)
    store = AdapterStore(data_dir / "adapters")
    digests = sorted(store.add(write_adapter(tmp_path / "made" / str(seed), seed=seed)) for seed in range(3))
    made = new_key()
    async with database.transaction() as conn:
        for number, digest in enumerate(digests):
            await adapters.put_adapter(conn, books.acme, f"adapter-{number}", digest=digest, rank=2, size_bytes=1000)
        await conn.execute(
            "INSERT INTO api_keys (id, kind, organization_id, project_id, name, public, sha256, scopes)"
            " VALUES ('key_x', 'project', $1, $2, 'x', $3, $4, '{inference}')",
            books.organization_id,
            books.acme,
            made.public,
            made.sha256,
        )
    journal = JournalFolder.try_claim(data_dir / "journal" / "0")
    assert journal is not None
    segment = journal.new_segment()
    segment.append(b"what the ledger does not have yet")
    (data_dir / "operator.key").write_text("sk-lk-operator\n")
    yield House(data_dir, dsn, books, digests, made.sha256)
    segment.close()
    journal.release()


@pytest.fixture
def elsewhere(postgres: str, database_numbers: Iterator[int], tmp_path: Path) -> Iterator[dict[str, str]]:
    """The settings of an installation that is empty so far."""
    name = f"restored_{next(database_numbers)}"
    asyncio.run(_execute(postgres, f"CREATE DATABASE {name}"))
    yield {"LORIKEET_DATA_DIR": str(tmp_path / "elsewhere"), "DATABASE_URL": with_database(postgres, name)}
    asyncio.run(_execute(postgres, f"DROP DATABASE {name} WITH (FORCE)"))


async def _execute(dsn: str, sql: str) -> None:
    conn = await asyncpg.connect(dsn)
    await conn.execute(sql)
    await conn.close()


class Lorikeet:
    """Runs the command in a thread, since a test's event loop may be busy writing usage."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    async def __call__(self, environ: dict[str, str], *argv: str) -> str:
        """Standard output of a command that succeeds."""
        code, out, err = await self._run(environ, argv)
        assert code == 0, err
        return out

    async def refused(self, environ: dict[str, str], *argv: str) -> str:
        """The one line that says why."""
        code, _, err = await self._run(environ, argv)
        assert code == 1, err
        return err.splitlines()[-1]

    async def _run(self, environ: dict[str, str], argv: tuple[str, ...]) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = await asyncio.to_thread(main, argv, environ)
        return code, *self._capsys.readouterr()


@pytest.fixture
def lorikeet(capsys: pytest.CaptureFixture[str]) -> Lorikeet:
    return Lorikeet(capsys)


async def test_a_backup_under_load_is_restored_whole_elsewhere(
    house: House, elsewhere: dict[str, str], lorikeet: Lorikeet, tmp_path: Path
) -> None:
    backup = str(tmp_path / "backup")
    writing = asyncio.create_task(_write_usage_forever(house.books))
    try:
        taken = json.loads(await lorikeet(house.environ, "backup", backup, "--json"))
    finally:
        writing.cancel()
    assert taken["contents"]["digests"] == house.digests and taken["missing_digests"] == []
    assert "is whole" in await lorikeet({}, "backup", "--verify", backup)
    assert json.loads(await lorikeet(elsewhere, "restore", backup, "--json"))["contents"] == taken["contents"]
    data_dir = Path(elsewhere["LORIKEET_DATA_DIR"])
    found = await dump.contents(elsewhere["DATABASE_URL"])
    assert msgspec.convert(taken["contents"], dump.Contents) == found and found.num_ledger_rows >= 300
    store = AdapterStore(data_dir / "adapters")
    assert store.digests() == house.digests
    for digest in house.digests:
        store.verify(digest)
    (segment,) = (data_dir / "journal/0").glob("*.journal")
    assert segment.read_bytes() == b"what the ledger does not have yet"
    assert (data_dir / "operator.key").read_text() == "sk-lk-operator\n"
    async with await Database.connect(elsewhere["DATABASE_URL"]) as database, database.transaction() as conn:
        assert await find_usable_key(conn, house.key_sha256) is not None
        with pytest.raises(asyncpg.RaiseError, match="append-only"):
            await conn.execute("DELETE FROM ledger")
    assert await migrate(elsewhere["DATABASE_URL"]) == []


async def _write_usage_forever(books: Books) -> None:
    for number in itertools.count():
        async with books.database.transaction() as conn:
            await write_usage(conn, books, f"req_load_{number}_", time(10, 5), time(10, 6), 5)


async def test_a_restored_ledger_is_a_ledger_again(
    house: House, elsewhere: dict[str, str], lorikeet: Lorikeet, tmp_path: Path
) -> None:
    """It takes usage, closes months, exports the same bytes, and is backed up and restored in its turn."""
    await lorikeet(house.environ, "backup", str(tmp_path / "first"))
    await lorikeet(elsewhere, "restore", str(tmp_path / "first"))
    exported = [
        await lorikeet(environ, "export", "costs", "--period", BEFORE, "--format", "focus", "--json", "--out", out)
        for environ, out in ((house.environ, str(tmp_path / "a")), (elsewhere, str(tmp_path / "b")))
    ]
    assert exported[0] == exported[1] and json.loads(exported[0])["state"] == "closed"
    async with await Database.connect(elsewhere["DATABASE_URL"]) as database, database.transaction() as conn:
        await write_usage(conn, house.books, "req_after_", time(10, 20), time(10, 21), 10)
    await lorikeet(elsewhere, "backup", str(tmp_path / "second"))
    again = json.loads(await lorikeet(elsewhere, "restore", str(tmp_path / "second"), "--force", "--json"))
    assert again["contents"]["num_ledger_rows"] == 332


async def test_half_a_backup_is_refused(
    house: House, lorikeet: Lorikeet, elsewhere: dict[str, str], tmp_path: Path
) -> None:
    backup = tmp_path / "backup"
    await lorikeet(house.environ, "backup", str(backup))
    files = [path for path in _files(backup) if path.name != "manifest.json"]
    assert {path.relative_to(backup).parts[0] for path in files} == {"adapters", "database.dump", "journal", "keys"}
    for number, damage in enumerate((_truncate, _flip_a_bit, _remove)):
        for path in files:
            damaged = tmp_path / f"damaged-{number}-{path.name}"
            shutil.copytree(backup, damaged)
            damage(damaged / path.relative_to(backup))
            why = await lorikeet.refused({}, "backup", "--verify", str(damaged))
            assert path.name in why and ("damaged" in why or "missing" in why)
            shutil.rmtree(damaged)
    (backup / "another").write_text("")
    assert "another is not of this backup" in await lorikeet.refused({}, "backup", "--verify", str(backup))
    (backup / "another").unlink()
    (backup / "manifest.json").unlink()
    assert "it has no manifest.json" in await lorikeet.refused(elsewhere, "restore", str(backup))
    assert await dump.is_empty(elsewhere["DATABASE_URL"]), "nothing was touched"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _remove(path: Path) -> None:
    path.unlink()


async def test_a_backup_that_is_cut_off_has_no_manifest(house: House, tmp_path: Path) -> None:
    from gateway.backup.take import Installation, take_backup

    installation = Installation(
        data_dir=house.data_dir,
        store_dir=house.data_dir / "adapters",
        journal_dir=house.data_dir / "journal",
        key_files=(house.data_dir / "operator.key",),
    )
    steps: list[str] = []
    await take_backup(installation, house.dsn, tmp_path / "whole", version="1", say=steps.append)
    assert len(steps) == 4
    for step in steps:

        def die(line: str, at: str = step) -> None:
            if line == at:
                raise KeyboardInterrupt

        folder = tmp_path / f"until {step}"
        with pytest.raises(KeyboardInterrupt):
            await take_backup(installation, house.dsn, folder, version="1", say=die)
        assert not (folder / "manifest.json").exists()


async def test_what_is_there_is_not_overwritten_unless_forced(
    house: House, elsewhere: dict[str, str], lorikeet: Lorikeet, tmp_path: Path
) -> None:
    backup = str(tmp_path / "backup")
    await lorikeet(house.environ, "backup", backup)
    assert "is not empty" in await lorikeet.refused(house.environ, "backup", backup)
    assert "exists; --force" in await lorikeet.refused(house.environ, "restore", backup)
    full = elsewhere | {"DATABASE_URL": house.dsn}
    assert "the database is not empty; --force" in await lorikeet.refused(full, "restore", backup)
    assert "stop them first" in await lorikeet.refused(full, "restore", backup, "--force")
    await lorikeet(elsewhere, "restore", backup)
    (Path(elsewhere["LORIKEET_DATA_DIR"]) / "journal/0/000000000009.journal").write_text("of the database that goes")
    await lorikeet(elsewhere, "restore", backup, "--force")
    assert [path.name for path in _files(Path(elsewhere["LORIKEET_DATA_DIR"]) / "journal")] == ["000000000001.journal"]


async def test_no_server_starts_over_what_is_half_restored(
    house: House, elsewhere: dict[str, str], lorikeet: Lorikeet, tmp_path: Path
) -> None:
    from gateway.serve.lock import DataFolderUnusable, refuse_half_restored

    backup = tmp_path / "backup"
    await lorikeet(house.environ, "backup", str(backup))
    # A database that does not take it: something of the same name stands in the way, where force is not given.
    await _execute(elsewhere["DATABASE_URL"], "CREATE TYPE limits AS (x integer)")
    assert "pg_restore failed" in await lorikeet.refused(elsewhere, "restore", str(backup))
    data_dir = Path(elsewhere["LORIKEET_DATA_DIR"])
    with pytest.raises(DataFolderUnusable, match="half restored"):
        refuse_half_restored(data_dir)
    await lorikeet(elsewhere, "restore", str(backup), "--force")
    refuse_half_restored(data_dir)


async def test_an_embedded_database_is_restored_into_a_new_data_folder(
    house: House, lorikeet: Lorikeet, open_folder: Path, tmp_path: Path
) -> None:
    backup = str(tmp_path / "backup")
    await lorikeet(house.environ, "backup", backup)
    environ = {"LORIKEET_DATA_DIR": str(open_folder / "new house")}
    taken: dict[str, Any] = json.loads(await lorikeet(environ, "restore", backup, "--json"))
    assert taken["contents"]["num_ledger_rows"] == 322
    assert "exists; --force" in await lorikeet.refused(environ, "restore", backup)
