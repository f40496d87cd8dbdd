"""An archive follows a real server, is pruned as a whole, and begins anew where the server has lost what comes next."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

from gateway.backup.files import copy_keys
from gateway.cli import main
from gateway.postgres.archive import (
    ArchiveError,
    base_backups,
    base_before,
    first_segment,
    is_archive,
    keep_archive,
    prune_archive,
    wal_since,
)
from gateway.postgres.point_in_time import EMBEDDED, RecoveredPostgres
from tests.gateway.backup.archives import archiving, is_all_received, running_server
from tests.installation.databases import execute
from tests.installation.waiting import wait_until

LABEL = "START WAL LOCATION: 0/{}000028 (file {})\nCHECKPOINT LOCATION: 0/{}000080\n"


def make_base(archive: Path, stamp: str, segment: str) -> Path:
    base = archive / "base" / stamp
    base.mkdir(parents=True)
    (base / "backup_label").write_text(LABEL.format(segment[-1], segment, segment[-1]))
    return base


def test_base_backups_are_chosen_by_time_and_pruned_with_their_log(tmp_path: Path) -> None:
    first = make_base(tmp_path, "20260101T000000.000000Z", "000000010000000000000002")
    second = make_base(tmp_path, "20260102T000000.000000Z", "000000020000000000000005")
    (tmp_path / "base/unfinished-7").mkdir()
    (tmp_path / "wal").mkdir()
    for name in ("000000010000000000000002", "00000002.history", "000000020000000000000005", "00000002" + "6" * 16):
        (tmp_path / "wal" / name).write_text("1\t0/4000000\tno recovery target specified\n")
    (tmp_path / "wal/000000020000000000000007.partial").write_text("")
    assert is_archive(tmp_path) and [path for _, path in base_backups(tmp_path)] == [first, second]
    assert base_before(tmp_path, datetime(2026, 1, 1, 12, tzinfo=UTC)) == first
    assert base_before(tmp_path, None) == second
    with pytest.raises(ArchiveError, match="no base backup from before"):
        base_before(tmp_path, datetime(2025, 1, 1, tzinfo=UTC))
    assert len(wal_since(tmp_path, first_segment(first))) == 5
    prune_archive(tmp_path, 1)
    assert [path for _, path in base_backups(tmp_path)] == [second]
    left = sorted(path.name for path in (tmp_path / "wal").iterdir())
    assert left == [
        "00000002.history",
        "000000020000000000000005",
        "000000020000000000000007.partial",
        "0000000266666666" + "6" * 8,
    ]


def test_a_base_backup_of_an_abandoned_timeline_is_not_chosen(tmp_path: Path) -> None:
    early = make_base(tmp_path, "20260101T000000.000000Z", "000000010000000000000002")
    long = make_base(tmp_path, "20260102T000000.000000Z", "000000010000000000000003")
    given_up = make_base(tmp_path, "20260103T000000.000000Z", "000000010000000000000005")
    (tmp_path / "wal").mkdir()
    assert base_before(tmp_path, datetime(2026, 1, 4, tzinfo=UTC)) == given_up, "the only timeline"
    (tmp_path / "wal/00000002.history").write_text("1\t0/4000000\tbefore 2026-01-02 00:00:00+00\n")
    manifest = '{"WAL-Ranges": [{"Timeline": 1, "Start-LSN": "0/3000028", "End-LSN": "0/4000100"}]}'
    (long / "backup_manifest").write_text(manifest)
    assert base_before(tmp_path, datetime(2026, 1, 4, tzinfo=UTC)) == early, "the others ended after the fork"
    latest = make_base(tmp_path, "20260105T000000.000000Z", "000000020000000000000004")
    assert base_before(tmp_path, None) == latest
    assert base_before(tmp_path, datetime(2026, 1, 4, tzinfo=UTC)) == early


def test_the_log_is_received_again_after_a_long_outage(open_folder: Path) -> None:
    archive, home = open_folder / "outage-archive", open_folder / "outage"
    with ExitStack() as stack:
        with running_server(home) as dsn:
            lines = stack.enter_context(archiving(dsn, archive))
            wait_until(is_all_received(dsn, archive), lambda: str(lines))
        wait_until(lambda: any("pg_receivewal failed" in line for line in lines), lambda: str(lines))
        with running_server(home) as dsn:
            asyncio.run(execute(dsn, "CREATE TABLE seen AS SELECT 7 AS number"))
            wait_until(is_all_received(dsn, archive), lambda: str(lines))
            stack.close()
    assert not list(archive.glob("until-*"))
    assert _numbers(archive, open_folder / "after-outage") == [7]


@pytest.mark.parametrize("num_segments", [0, 4])
def test_a_server_restored_to_the_past_is_archived_on_its_new_timeline(open_folder: Path, num_segments: int) -> None:
    """Restore a server to a point in the last segment of the archived log, and to a point several segments earlier."""
    folder = open_folder / f"back-{num_segments}"
    folder.mkdir(mode=0o711)
    archive, restored = folder / "archive", folder / "restored"
    with running_server(folder / "archived") as dsn, archiving(dsn, archive) as lines:
        asyncio.run(execute(dsn, "CREATE TABLE seen AS SELECT 1 AS number"))
        at = datetime.now(UTC)
        for number in range(2, 3 + num_segments):
            asyncio.run(execute(dsn, f"INSERT INTO seen VALUES ({number})"))
            if num_segments:
                asyncio.run(execute(dsn, "SELECT pg_switch_wal()"))
        wait_until(is_all_received(dsn, archive), lambda: str(lines))
    former = base_backups(archive)
    recovered = RecoveredPostgres(restored)
    try:
        dsn = recovered.start(archive, at, EMBEDDED)
        asyncio.run(recovered.take_password())
    finally:
        recovered.stop()
    with running_server(restored) as dsn, archiving(dsn, archive) as lines:
        wait_until(lambda: base_backups(archive)[-1:] not in ([], former[-1:]), lambda: str(lines))
        asyncio.run(execute(dsn, "INSERT INTO seen VALUES (100)"))
        wait_until(is_all_received(dsn, archive), lambda: str(lines))
    assert first_segment(base_before(archive, None)).startswith("00000002")
    assert _numbers(archive, folder / "again") == [1, 100]
    aside = list(archive.glob("until-*"))
    assert len(aside) == (1 if num_segments else 0), lines
    for path in aside:
        assert _numbers(path, folder / "of-former") == list(range(1, 3 + num_segments))


def test_a_second_archive_of_a_database_is_refused_and_the_first_goes_on(open_folder: Path) -> None:
    archive, second = open_folder / "first-archive", open_folder / "second-archive"
    with running_server(open_folder / "twice") as dsn, archiving(dsn, archive) as lines:
        with pytest.raises(ArchiveError, match="another `lorikeet archive` receives this database's log"):
            keep_archive(dsn, second, base_every_s=3600, num_bases=2, report=lines.append, stop=threading.Event())
        assert not (second / "base").exists()
        asyncio.run(execute(dsn, "CREATE TABLE seen AS SELECT 1 AS number"))
        wait_until(is_all_received(dsn, archive), lambda: str(lines))


def test_a_rotated_key_is_copied_at_once(open_folder: Path) -> None:
    archive, key = open_folder / "keys-archive", open_folder / "content.key"
    key.write_text("first\n")
    copied = archive / "keys/content.key"
    with (
        running_server(open_folder / "keys") as dsn,
        archiving(dsn, archive, lambda: copy_keys([key], archive)) as lines,
    ):
        assert copied.read_text() == "first\n"
        key.write_text("second\n")
        wait_until(lambda: copied.read_text() == "second\n", lambda: str(lines))
    written = copied.stat().st_mtime_ns
    copy_keys([key], archive)
    assert copied.stat().st_mtime_ns == written, "what is the same is not written again"


def test_an_archive_that_was_away_for_too_long_is_set_aside_and_begun_anew(open_folder: Path) -> None:
    archive = open_folder / "archive"
    with running_server(open_folder / "archived") as dsn:
        with archiving(dsn, archive):
            asyncio.run(execute(dsn, "CREATE TABLE seen (number integer)"))
            asyncio.run(execute(dsn, "INSERT INTO seen VALUES (1)"))
            wait_until(is_all_received(dsn, archive), "the log is not received")
        for _ in range(10):
            asyncio.run(execute(dsn, "INSERT INTO seen VALUES (2)"))
            asyncio.run(execute(dsn, "SELECT pg_switch_wal()"))
        asyncio.run(execute(dsn, "CHECKPOINT"))
        former = base_backups(archive)
        with archiving(dsn, archive) as lines:
            wait_until(lambda: base_backups(archive) and base_backups(archive) != former, lambda: str(lines))
            wait_until(is_all_received(dsn, archive), lambda: str(lines))
        (aside,) = archive.glob("until-*")
        assert is_archive(aside) and len(base_backups(aside)) == 1
    assert _numbers(aside, open_folder / "of-former") == [1]
    assert _numbers(archive, open_folder / "of-next") == [1, *[2] * 10]


def _numbers(archive: Path, data_dir: Path) -> list[int]:
    """Return the rows (numbers) of the database that an archive restores up to its end."""
    recovered = RecoveredPostgres(data_dir)
    try:
        dsn = recovered.start(archive, None, "postgresql://lorikeet@/postgres")

        async def read() -> list[int]:
            conn = await asyncpg.connect(dsn)
            try:
                return [row["number"] for row in await conn.fetch("SELECT number FROM seen ORDER BY number")]
            finally:
                await conn.close()

        return asyncio.run(read())
    finally:
        recovered.stop()


def test_an_archive_is_not_restored_over_a_database_of_ones_own(
    dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_base(tmp_path, "20260101T000000.000000Z", "000000010000000000000002")
    (tmp_path / "wal").mkdir()
    environ = {"LORIKEET_DATA_DIR": str(tmp_path / "data"), "DATABASE_URL": dsn}
    assert main(["restore", str(tmp_path)], environ) == 1
    assert "with PostgreSQL's own tools, then run `lorikeet journal replay`" in capsys.readouterr().err
    assert main(["journal", "replay", "--cancel-work", "--json"], environ) == 0
    assert '"num_attempts": 0' in capsys.readouterr().out
