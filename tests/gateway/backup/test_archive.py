"""An archive follows a real server, is pruned as a whole, and begins anew where the server has lost what comes next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

from gateway.cli import main
from gateway.postgres.archive import (
    ArchiveError,
    base_before,
    bases,
    first_segment,
    is_archive,
    keep_archive,
    prune,
    wal_since,
)
from gateway.postgres.embedded import EmbeddedPostgres
from gateway.postgres.point_in_time import RecoveredPostgres
from tests.installation.databases import execute
from tests.installation.waiting import wait_until

LABEL = "START WAL LOCATION: 0/2000028 (file {})\nCHECKPOINT LOCATION: 0/2000080\n"


def make_base(archive: Path, stamp: str, segment: str) -> Path:
    base = archive / "base" / stamp
    base.mkdir(parents=True)
    (base / "backup_label").write_text(LABEL.format(segment))
    return base


def test_bases_are_chosen_by_their_time_and_pruned_with_their_log(tmp_path: Path) -> None:
    first = make_base(tmp_path, "20260101T000000.000000Z", "000000010000000000000002")
    second = make_base(tmp_path, "20260102T000000.000000Z", "000000020000000000000005")
    (tmp_path / "base/unfinished-7").mkdir()
    (tmp_path / "wal").mkdir()
    for name in ("000000010000000000000002", "00000002.history", "000000020000000000000005", "00000002" + "6" * 16):
        (tmp_path / "wal" / name).write_text("")
    (tmp_path / "wal/000000020000000000000007.partial").write_text("")
    assert is_archive(tmp_path) and [path for _, path in bases(tmp_path)] == [first, second]
    assert base_before(tmp_path, datetime(2026, 1, 1, 12, tzinfo=UTC)) == first
    assert base_before(tmp_path, None) == second
    with pytest.raises(ArchiveError, match="no base backup from before"):
        base_before(tmp_path, datetime(2025, 1, 1, tzinfo=UTC))
    assert len(wal_since(tmp_path, first_segment(first))) == 5
    prune(tmp_path, 1)
    assert [path for _, path in bases(tmp_path)] == [second]
    left = sorted(path.name for path in (tmp_path / "wal").iterdir())
    assert left == [
        "00000002.history",
        "000000020000000000000005",
        "000000020000000000000007.partial",
        "0000000266666666" + "6" * 8,
    ]


@contextmanager
def archived(dsn: str, archive: Path) -> Iterator[list[str]]:
    """Keep an archive until the context is left; give the lines that are reported."""
    stop, lines = threading.Event(), list[str]()

    def keep() -> None:
        keep_archive(dsn, archive, base_every_s=3600, num_bases=2, report=lines.append, stop=stop)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        wait_until(lambda: (archive / "base").is_dir() and bool(bases(archive)), lambda: str(lines))
        yield lines
    finally:
        stop.set()
        thread.join()


@contextmanager
def server(folder: Path) -> Iterator[str]:
    postgres = EmbeddedPostgres(folder, settings={"max_slot_wal_keep_size": "64MB", "min_wal_size": "32MB"})
    try:
        yield postgres.start()
    finally:
        postgres.stop()


def test_an_archive_that_was_away_for_too_long_is_set_aside_and_begun_anew(open_folder: Path) -> None:
    archive = open_folder / "archive"
    with server(open_folder / "archived") as dsn:
        with archived(dsn, archive):
            asyncio.run(execute(dsn, "CREATE TABLE seen (number integer)"))
            asyncio.run(execute(dsn, "INSERT INTO seen VALUES (1)"))
            received = _received(dsn, archive)
            wait_until(received, "the log is not received")
        for _ in range(10):
            asyncio.run(execute(dsn, "INSERT INTO seen VALUES (2)"))
            asyncio.run(execute(dsn, "SELECT pg_switch_wal()"))
        asyncio.run(execute(dsn, "CHECKPOINT"))
        former = bases(archive)
        with archived(dsn, archive) as lines:
            wait_until(lambda: bases(archive) and bases(archive) != former, lambda: str(lines))
            wait_until(_received(dsn, archive), lambda: str(lines))
        (aside,) = archive.glob("until-*")
        assert is_archive(aside) and len(bases(aside)) == 1
    assert _numbers(aside, open_folder / "of-former") == [1]
    assert _numbers(archive, open_folder / "of-next") == [1, *[2] * 10]


def _received(dsn: str, archive: Path) -> Callable[[], bool]:
    """Return a function that tells whether the archive has what the server has written by now."""

    async def ask() -> bool:
        conn = await asyncpg.connect(dsn)
        try:
            written = await conn.fetchval("SELECT pg_current_wal_flush_lsn()")
            slots = "SELECT bool_and(restart_lsn >= $1::pg_lsn) FROM pg_replication_slots WHERE active"
            streams = "SELECT bool_and(flush_lsn >= $1::pg_lsn) FROM pg_stat_replication"
            return bool(await conn.fetchval(streams, written)) or bool(await conn.fetchval(slots, written))
        finally:
            await conn.close()

    return lambda: (archive / "wal").is_dir() and asyncio.run(ask())


def _numbers(archive: Path, data_dir: Path) -> list[int]:
    """Return what an archive brings back, up to its end."""
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
