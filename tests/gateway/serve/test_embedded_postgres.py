"""The embedded PostgreSQL: data outlives every kind of end, and no other user gets in."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

from gateway.postgres.embedded import MAX_SOCKET_PATH_BYTES, EmbeddedPostgres, EmbeddedPostgresError, running_dsn
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")


async def _fetch(dsn: str, sql: str) -> object:
    connection = await asyncpg.connect(dsn, timeout=PATIENCE_S)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def query(dsn: str, sql: str) -> object:
    return asyncio.run(_fetch(dsn, sql))


def postmaster_pid(data_dir: Path) -> int:
    return int((data_dir / "postgres/cluster/postmaster.pid").read_text().splitlines()[0])


def wait_until_gone(pid: int) -> None:
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), f"process {pid} is still there")


def test_keeps_its_data_over_a_stop_and_a_crash_and_lets_only_the_password_in(open_folder: Path) -> None:
    data_dir = open_folder / "keeps"
    server = EmbeddedPostgres(data_dir)
    try:
        dsn = server.start()
        assert running_dsn(data_dir) == dsn
        query(dsn, "CREATE TABLE kept AS SELECT 1 AS n")
        server.stop()
        assert running_dsn(data_dir) is None

        assert server.start() == dsn, "the address and the password stay"
        query(dsn, "INSERT INTO kept VALUES (2)")
        crashed = postmaster_pid(data_dir)
        os.kill(crashed, signal.SIGKILL)
        wait_until(lambda: not server.alive())

        assert server.start() == dsn
        assert query(dsn, "SELECT sum(n) FROM kept") == 3
        password = (data_dir / "postgres.password").read_text().strip()
        with pytest.raises(asyncpg.InvalidPasswordError):
            query(dsn.replace(quote(password), "wrong"), "SELECT 1")
        assert query(dsn, "SELECT setting FROM pg_settings WHERE name = 'listen_addresses'") == ""
    finally:
        server.stop()
    for path in (data_dir / "postgres.password", data_dir / "log/postgres.log"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for path in (data_dir / "postgres", data_dir / "postgres/socket", data_dir / "postgres/cluster"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_stale_pid_file_that_names_a_live_stranger_does_not_stop_it(open_folder: Path) -> None:
    data_dir = open_folder / "stale"
    server = EmbeddedPostgres(data_dir)
    server.start()
    try:
        lines = (data_dir / "postgres/cluster/postmaster.pid").read_text().splitlines()
        server.stop()
        lines[0] = str(os.getpid())
        (data_dir / "postgres/cluster/postmaster.pid").write_text("\n".join(lines))
        assert query(server.start(), "SELECT 1") == 1
    finally:
        server.stop()


def test_dies_with_its_starter_and_a_failed_start_shows_the_log(open_folder: Path) -> None:
    data_dir = open_folder / "orphan"
    script = (
        "import pathlib, sys, time; from gateway.postgres.embedded import EmbeddedPostgres; "
        "EmbeddedPostgres(pathlib.Path(sys.argv[1])).start(); print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(data_dir)], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None and starter.stdout.readline() == b"up\n"
        pid = postmaster_pid(data_dir)
        starter.kill()
    wait_until_gone(pid)

    configuration = data_dir / "postgres/cluster/postgresql.conf"
    good = configuration.read_text()
    configuration.write_text(good + "no_such_setting = 1\n")
    server = EmbeddedPostgres(data_dir)
    with pytest.raises(EmbeddedPostgresError, match="no_such_setting"):
        server.start()
    assert not server.alive()
    configuration.write_text(good)

    (data_dir / "postgres/cluster/PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedPostgresError, match="made by PostgreSQL 9"):
        server.start()


def test_a_socket_path_that_is_too_long_goes_to_a_private_folder(open_folder: Path) -> None:
    data_dir = open_folder / ("long-" * 20)
    assert len(os.fsencode(data_dir)) > MAX_SOCKET_PATH_BYTES
    server = EmbeddedPostgres(data_dir)
    try:
        dsn = server.start()
        assert query(dsn, "SELECT 1") == 1
        folder = Path(dsn.rpartition("host=")[2])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        server.stop()
    folder.rmdir()


@as_root
def test_a_folder_that_others_cannot_reach_stays_closed_and_the_database_goes_elsewhere(
    tmp_path: Path, open_folder: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    said: list[str] = []
    elsewhere = open_folder / "elsewhere"
    server = EmbeddedPostgres(closed / "data", fallback_root=elsewhere, report=said.append)
    try:
        dsn = server.start()
        query(dsn, "CREATE TABLE kept AS SELECT 7 AS n")
        server.stop()
        assert any(str(elsewhere) in line for line in said)
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700

        closed.chmod(0o711)
        assert query(server.start(), "SELECT n FROM kept") == 7, "where it once is, it is found again"
    finally:
        server.stop()
