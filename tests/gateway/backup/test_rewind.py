"""A restored archive gets this version's schema and bills the journals; a failed restore keeps the old database."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import msgspec
import pytest

from gateway.cli import main
from gateway.db.migrate import migrate
from gateway.db.schema_files import schema_names
from gateway.metering.format import frame
from gateway.postgres.embedded import EmbeddedPostgres
from gateway.serve.lock import RESTORE_MARKER
from tests.gateway.backup.archives import archiving, is_all_received, running_server
from tests.gateway.backup.house import furnish_house, write
from tests.gateway.metering.records import ended_record
from tests.installation.databases import execute
from tests.installation.waiting import wait_until

UNDO = """
    ALTER TABLE hosts DROP COLUMN nodes, DROP COLUMN protocol;
    ALTER TABLE replicas DROP COLUMN full_since, DROP COLUMN version, DROP COLUMN protocol;
    ALTER TABLE webhooks DROP COLUMN former_secret, DROP COLUMN former_content_key, DROP COLUMN former_until;
    ALTER TABLE journals DROP COLUMN protocol;
    ALTER TABLE ledger DROP COLUMN trace_id CASCADE;
    ALTER TABLE logins DROP COLUMN by_passkey;
    DROP TABLE passkeys, passkey_challenges, batch_turns;
    ALTER TABLE batches DROP COLUMN open_lines, DROP COLUMN waits_code, DROP COLUMN waits_message;
    ALTER TABLE rollup_queue DROP COLUMN num_refused;
    ALTER TABLE traffic_rollups DROP COLUMN num_refused CASCADE;
    DELETE FROM schema_migrations WHERE name >= '0067' AND name <> 'functions';
"""
"""Statements that turn this schema back into the one before migration 0067."""

JOURNAL = "journal/0/000000000001.journal"


class OldInstallation(msgspec.Struct, frozen=True):
    """An installation whose archive ends before an upgrade, and whose journal has a request that the ledger lacks."""

    data_dir: Path
    archive: Path

    @property
    def environ(self) -> dict[str, str]:
        return {"LORIKEET_DATA_DIR": str(self.data_dir)}


@pytest.fixture(scope="module")
def old_installation(open_folder: Path) -> Iterator[OldInstallation]:
    folder = open_folder / "rewind"
    folder.mkdir(mode=0o711)
    old_installation = OldInstallation(folder / "data", folder / "archive")
    with running_server(old_installation.data_dir) as dsn:
        asyncio.run(migrate(dsn))
        asyncio.run(furnish_house(old_installation.data_dir, dsn))
        asyncio.run(execute(dsn, UNDO))
        with archiving(dsn, old_installation.archive) as lines:
            asyncio.run(execute(dsn, "UPDATE installation SET id = id"))
            wait_until(is_all_received(dsn, old_installation.archive), lambda: str(lines))
        asyncio.run(migrate(dsn))
    yield old_installation


def ledger_and_schema(data_dir: Path) -> tuple[int, tuple[str, ...]]:
    async def read(dsn: str) -> tuple[int, tuple[str, ...]]:
        conn = await asyncpg.connect(dsn)
        try:
            rows = await conn.fetch("SELECT name FROM schema_migrations WHERE name <> 'functions' ORDER BY name")
            return await conn.fetchval("SELECT count(*) FROM ledger"), tuple(row["name"] for row in rows)
        finally:
            await conn.close()

    postgres = EmbeddedPostgres(data_dir)
    try:
        return asyncio.run(read(postgres.start()))
    finally:
        postgres.stop()


def test_a_restore_that_cannot_work_leaves_the_database_in_its_place(
    old_installation: OldInstallation, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ledger_and_schema(old_installation.data_dir)
    home = old_installation.data_dir / "postgres"
    assert (
        main(
            ["restore", str(old_installation.archive), "--force", "--at", "2020-01-01T00:00:00Z"],
            old_installation.environ,
        )
        == 1
    )
    assert "no base backup from before" in capsys.readouterr().err
    assert not list(home.glob("cluster.*")) and not (old_installation.data_dir / RESTORE_MARKER).exists()
    assert (
        main(
            ["restore", str(old_installation.archive), "--force", "--at", "2100-01-01T00:00:00"],
            old_installation.environ,
        )
        == 1
    )
    why = capsys.readouterr().err
    assert "database as of 2100-01-01 00:00:00 UTC" in why, "a moment without a zone is in UTC, and that is said"
    ends = re.search(r"ends before 2100-01-01 00:00:00 UTC: its last change is of (\S+ \S+) UTC\. Without --at", why)
    assert ends is not None and "FATAL" not in why, why
    assert abs(datetime.now(UTC) - datetime.fromisoformat(f"{ends[1]}+00:00")) < timedelta(hours=1)
    (failed,) = home.glob("cluster.*")
    assert failed.name.startswith("cluster.failed-") and f"what the restore made of the archive is in {failed}" in why
    assert not (old_installation.data_dir / RESTORE_MARKER).exists(), "the server may start"
    assert not (home / "wal").exists()
    assert ledger_and_schema(old_installation.data_dir) == before
    assert (old_installation.data_dir / JOURNAL).exists()


def test_a_drill_of_an_archive_from_before_an_upgrade_bills_the_journals(
    old_installation: OldInstallation, capsys: pytest.CaptureFixture[str]
) -> None:
    main(
        ["drill", "restore", str(old_installation.archive), "--in", str(old_installation.archive.parent), "--json"],
        old_installation.environ,
    )
    found = json.loads(capsys.readouterr().out)
    of = {finding["check"]: finding for finding in found["findings"]}
    assert of["schema"]["is_good"] and "was brought up to date" in of["schema"]["what"]
    assert of["journals"]["is_good"] and of["ledger"]["is_good"] and found["num_billed_again"] == 1


def test_a_restore_from_before_an_upgrade_gets_the_present_schema_and_bills_the_journals(
    old_installation: OldInstallation, capsys: pytest.CaptureFixture[str]
) -> None:
    num_rows, _ = ledger_and_schema(old_installation.data_dir)
    assert main(["restore", str(old_installation.archive), "--force", "--json"], old_installation.environ) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_billed_again"], found["refused"], found["difference_tokens"]) == (1, [], 0)
    assert ledger_and_schema(old_installation.data_dir) == (num_rows + 1, schema_names())
    untagged = ended_record("req_untagged")
    untagged = msgspec.structs.replace(untagged, record=msgspec.structs.replace(untagged.record, meter=b"?"))
    with (old_installation.data_dir / JOURNAL).open("ab") as file:
        file.write(frame(untagged))
    assert main(["restore", str(old_installation.archive), "--force", "--json"], old_installation.environ) == 1, (
        "somebody has to look"
    )
    found = json.loads(capsys.readouterr().out)
    assert found["num_billed_again"] == 1 and "req_untagged" in found["refused"][0]
    assert not (old_installation.data_dir / RESTORE_MARKER).exists()


OWNER = 60_124
"""The number of a user that no account of the system has."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root restores into the folder of another user")
@pytest.mark.parametrize("is_replaced", [False, True], ids=["new folder", "over another database"])
def test_files_that_root_restores_from_an_archive_belong_to_the_folders_owner(
    is_replaced: bool, old_installation: OldInstallation, open_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gateway that runs as the folder's owner can start the database, and read its password and the journals."""
    data_dir = open_folder / f"house {is_replaced}"
    data_dir.mkdir(mode=0o700)
    write(data_dir / JOURNAL, b"")
    os.chown(data_dir, OWNER, OWNER)
    environ = {"LORIKEET_DATA_DIR": str(data_dir)}
    for _ in range(1 + is_replaced):
        assert main(["restore", str(old_installation.archive), "--force"], environ) == 0, capsys.readouterr().err
    found = {path.relative_to(data_dir): path.stat().st_uid for path in data_dir.rglob("*")}
    assert {Path("postgres/cluster/PG_VERSION"), Path("postgres.password"), Path(JOURNAL)} <= set(found)
    assert {path for path, uid in found.items() if uid != OWNER} == set()
    assert main(["restore", str(old_installation.archive), "--force", "--at", "2020-01-01T00:00:00Z"], environ) == 1
    assert {path for path in data_dir.rglob("*") if path.stat().st_uid != OWNER} == set(), "also where it is refused"
