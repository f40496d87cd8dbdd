"""A backup taken under load restores completely elsewhere, and an incomplete one is never taken for a backup."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pwd
import resource
import shutil
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from adapters.store import AdapterStore
from engine.protocol import GenerateRequest, SamplingParams
from gateway.backup.restore import restore_marker
from gateway.backup.take import Installation, take_backup
from gateway.cli import main
from gateway.db.migrate import migrate
from gateway.db.organization.keys import find_usable_key
from gateway.db.pool import Database
from gateway.metering.folder import JournalFolder
from gateway.metering.meter import Meter
from gateway.metering.service import Metering
from gateway.observability.metrics import Metrics
from gateway.postgres import dump
from gateway.serve.lock import DataFolderUnusable, refuse_half_restored
from tests.gateway.backup.house import House, Lorikeet, write
from tests.gateway.exports.ledger import BEFORE
from tests.gateway.metering.records import record
from tests.gateway.unlimited import unlimited
from tests.installation.databases import execute
from tests.patience import PATIENCE_S


async def test_a_backup_under_load_is_restored_whole_elsewhere(
    house: House, elsewhere: dict[str, str], lorikeet: Lorikeet, tmp_path: Path
) -> None:
    """The restored installation bills every request recorded before the backup began once, and no unknown request."""
    installation = msgspec.structs.replace(house.installation, journal_dir=tmp_path / "journal")
    before, recorded = await _back_up_under_load(house, installation, tmp_path / "backup")
    taken = json.loads(await lorikeet(elsewhere, "restore", str(tmp_path / "backup"), "--json"))
    assert taken["contents"]["digests"] == house.digests and taken["missing_digests"] == []
    data_dir = Path(elsewhere["LORIKEET_DATA_DIR"])
    async with await Database.connect(elsewhere["DATABASE_URL"]) as database:
        metering = _metering(data_dir / "journal", database, house.installation_id)
        metering.start()
        billed = await _billed(database, before)
        await metering.stop()
        assert {billed[request_id] for request_id in before} == {(1, 4)}, "as often, and as many tokens"
        assert billed.keys() <= recorded and {num_rows for num_rows, _ in billed.values()} == {1}
        async with database.transaction() as conn:
            assert await find_usable_key(conn, house.key_sha256) is not None
            with pytest.raises(asyncpg.RaiseError, match="append-only"):
                await conn.execute("DELETE FROM ledger")
    assert await migrate(elsewhere["DATABASE_URL"]) == []
    store = AdapterStore(data_dir / "adapters")
    assert store.digests() == house.digests
    for digest in house.digests:
        store.verify(digest)
    assert (data_dir / "operator.key").read_text() == "sk-lk-operator\n"
    exported = [
        await lorikeet(environ, "export", "costs", "--period", BEFORE, "--format", "focus", "--json", "--out", out)
        for environ, out in ((house.environ, str(tmp_path / "a")), (elsewhere, str(tmp_path / "b")))
    ]
    assert exported[0] == exported[1] and json.loads(exported[0])["state"] == "closed"


async def _back_up_under_load(house: House, installation: Installation, folder: Path) -> tuple[set[str], set[str]]:
    """Take a backup while requests are recorded; return the requests recorded before it began, and all requests.

    The ledger is locked until the journals are copied: all requests until then are in the journals, and move to the
    ledger while the database is dumped.
    """
    loop, recorded, journals_are_copied = asyncio.get_running_loop(), list[str](), asyncio.Event()

    def report(line: str) -> None:
        if line == "adapters":
            loop.call_soon_threadsafe(journals_are_copied.set)

    def take() -> None:
        asyncio.run(take_backup(installation, house.dsn, folder, version="1", report=report))

    async with asyncio.timeout(PATIENCE_S), await Database.connect(house.dsn) as database:
        metering = _metering(installation.journal_dir, database, house.installation_id)
        metering.start()
        writing = asyncio.create_task(_record_forever(metering.meter, recorded))
        async with database.transaction() as conn:
            await conn.execute("LOCK TABLE ONLY ledger IN SHARE MODE")
            num_recorded = len(recorded)
            while len(recorded) <= num_recorded + 10:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            before = set(recorded)
            taking = asyncio.create_task(asyncio.to_thread(take))
            await journals_are_copied.wait()
        await taking
        writing.cancel()
        await metering.stop()
    return before, set(recorded)


def _metering(journal_dir: Path, database: Database, installation_id: str) -> Metering:
    return Metering(
        journal_dir,
        database,
        unlimited(database),
        Metrics(CollectorRegistry()),
        database_id=installation_id,
        max_journal_bytes=1 << 20,
    )


async def _record_forever(meter: Meter, recorded: list[str]) -> None:
    """Record requests until cancelled, up to 500 per second."""
    for number in itertools.count():
        usage = record(f"req_{number}")
        request = GenerateRequest(
            usage.request_id, [1, 2, 3], SamplingParams(max_tokens=10), tenant="t", meter=usage.meter
        )
        recorded.append(usage.request_id)
        meter.dispatched(request, "engine")
        meter.record(usage, engine_id="", source=None, ttft_ms=None, latency_ms=None)
        await asyncio.sleep(0.002)


async def _billed(database: Database, wanted: set[str]) -> dict[str, tuple[int, int]]:
    """Return (number of rows, completion tokens) by request id, once all wanted requests have rows."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with database.acquire() as conn:
                found = await conn.fetch(
                    "SELECT request_id, count(*), sum(completion_tokens)::bigint FROM ledger WHERE project_id = 'proj'"
                    " AND request_id <> 'req_journaled' GROUP BY 1"
                )
            billed = {request_id: (num_rows, num_tokens) for request_id, num_rows, num_tokens in found}
            if wanted <= billed.keys():
                return billed
            await asyncio.sleep(0.02)


async def test_a_damaged_or_incomplete_backup_is_refused(
    backup: Path, lorikeet: Lorikeet, elsewhere: dict[str, str], tmp_path: Path
) -> None:
    backup = Path(shutil.copytree(backup, tmp_path / "copy"))
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
    assert "another does not belong to this backup" in await lorikeet.refused({}, "backup", "--verify", str(backup))
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
    steps: list[str] = []
    await take_backup(house.installation, house.dsn, tmp_path / "whole", version="1", report=steps.append)
    assert len(steps) == 5
    for step in steps:

        def die(line: str, at: str = step) -> None:
            if line == at:
                raise KeyboardInterrupt

        folder = tmp_path / f"until {step}"
        with pytest.raises(KeyboardInterrupt):
            await take_backup(house.installation, house.dsn, folder, version="1", report=die)
        assert not (folder / "manifest.json").exists()


async def test_a_backup_that_fails_leaves_nothing(house: House, lorikeet: Lorikeet, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        why = await lorikeet.refused(house.environ, "backup", str(tmp_path / "full"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert why.startswith(f"lorikeet: {tmp_path}/full/journal/0/") and why.endswith(": File too large")
    assert not await asyncio.to_thread((tmp_path / "full").exists)


def test_a_folder_is_marked_before_anything_is_restored_to_it(tmp_path: Path) -> None:
    """A restore that is killed midway leaves the mark, so that no server starts in the folder as if it were new."""
    key = tmp_path / "operator.key"
    with (
        restore_marker(tmp_path, [key], tmp_path / "backup"),
        pytest.raises(DataFolderUnusable, match="did not finish"),
    ):
        refuse_half_restored(tmp_path)
    refuse_half_restored(tmp_path)
    key.write_text("sk-lk-operator")
    with pytest.raises(KeyboardInterrupt), restore_marker(tmp_path, [key], tmp_path / "backup") as mark:
        refuse_half_restored(tmp_path)  # the folder is whole as long as nothing is touched
        mark.set()
        raise KeyboardInterrupt
    refuse_half_restored(tmp_path)


async def test_only_a_whole_installation_starts_and_nothing_is_replaced_unless_forced(
    house: House, backup: Path, elsewhere: dict[str, str], lorikeet: Lorikeet
) -> None:
    data_dir, dsn, of_backup = Path(elsewhere["LORIKEET_DATA_DIR"]), elsewhere["DATABASE_URL"], str(backup)
    assert "is not empty" in await lorikeet.refused(house.environ, "backup", of_backup)
    file = backup / "manifest.json"
    assert "is not a folder" in await lorikeet.refused(house.environ, "backup", str(file))
    # A database that does not take it: something of the same name stands in the way, where force is not given.
    await execute(dsn, "CREATE TYPE limits AS (x integer)")
    assert "pg_restore failed" in await lorikeet.refused(elsewhere, "restore", of_backup)
    for verb in ("gateway", "migrate"):
        assert "did not finish" in await lorikeet.refused(elsewhere, verb)
    await lorikeet(elsewhere, "restore", of_backup, "--force")

    (data_dir / "operator.key").write_text("sk-lk-another\n")
    assert "operator.key exists; --force" in await lorikeet.refused(elsewhere, "restore", of_backup)
    shutil.copy(backup / "keys/operator.key", data_dir)
    assert "the database is not empty; --force" in await lorikeet.refused(elsewhere, "restore", of_backup)
    async with await Database.connect(dsn):
        assert "stop them first" in await lorikeet.refused(elsewhere, "restore", of_backup, "--force")
    # The only copy of what was used after the backup, and the journal of a gateway that has lost its database.
    since = data_dir / "journal/7/000000000001.journal"
    write(since, b"since the backup")
    owner = JournalFolder.try_claim(since.parent)
    assert owner is not None
    assert "stop it first" in await lorikeet.refused(elsewhere, "restore", of_backup, "--force")
    refuse_half_restored(data_dir)
    owner.release()
    await lorikeet(elsewhere, "restore", of_backup, "--force")
    assert since.read_bytes() == b"since the backup"
    of_house = (house.installation.journal_dir / "0/000000000001.journal").read_bytes()
    assert (data_dir / "journal/8/000000000001.journal").read_bytes() == of_house


async def test_an_embedded_database_is_restored_into_a_new_data_folder(
    backup: Path, lorikeet: Lorikeet, open_folder: Path
) -> None:
    environ = {"LORIKEET_DATA_DIR": str(open_folder / "new house")}
    taken: dict[str, Any] = json.loads(await lorikeet(environ, "restore", str(backup), "--json"))
    assert taken["contents"]["num_ledger_rows"] >= 322


@pytest.mark.skipif(os.geteuid() != 0, reason="only root restores into the folder of another user")
def test_an_embedded_database_that_root_restores_belongs_to_the_folders_owner(backup: Path, open_folder: Path) -> None:
    owner, data_dir = pwd.getpwnam("nobody").pw_uid, open_folder / "owned house"
    data_dir.mkdir(mode=0o700)
    os.chown(data_dir, owner, owner)
    assert main(["restore", str(backup)], {"LORIKEET_DATA_DIR": str(data_dir)}) == 0
    found = {path.relative_to(data_dir): path.stat().st_uid for path in data_dir.rglob("*")}
    assert {Path("postgres/cluster/PG_VERSION"), Path("postgres.password")} <= set(found)
    assert {path for path, uid in found.items() if uid != owner} == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root restores into the folder of another user")
def test_files_that_root_restores_belong_to_the_folders_owner(backup: Path, elsewhere: dict[str, str]) -> None:
    """A gateway that runs as another user, as the units of systemd do, could not open root's journals and adapters."""
    owner, data_dir = 60_123, Path(elsewhere["LORIKEET_DATA_DIR"])
    data_dir.mkdir(mode=0o700)
    os.chown(data_dir, owner, owner)
    link = data_dir.with_name("link")  # as systemd makes one to a folder of its own
    link.symlink_to(data_dir)
    assert main(["restore", str(backup)], elsewhere | {"LORIKEET_DATA_DIR": str(link)}) == 0
    found = {path.relative_to(data_dir): path.stat().st_uid for path in data_dir.rglob("*")}
    assert {Path("adapters"), Path("journal/0/000000000001.journal"), Path("operator.key")} <= set(found)
    assert {path for path, uid in found.items() if uid != owner} == set()
