"""All processes of a run share one server, and nothing of it is left however the run ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import asyncpg

from tests.installation.databases import REPOSITORY, Databases, server_dsn
from tests.installation.waiting import wait_until

STARTER = """
import os, subprocess, sys, time
from tests.installation.databases import RUN_VARIABLE, Databases, Keeper, server_dsn
keeper = Keeper()
Databases(server_dsn(keeper.folder), "killed").create()
os.environ[RUN_VARIABLE] = str(keeper.folder)
engine = subprocess.Popen(["sleep", "600"])
print(keeper.folder, engine.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    """Tell whether a process exists and is not a zombie, which its new parent may leave."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def num_tables(dsn: str) -> int:
    conn = await asyncpg.connect(dsn)
    try:
        return int(await conn.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"))
    finally:
        await conn.close()


def test_a_run_that_is_killed_leaves_no_process_and_no_folder() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER], cwd=REPOSITORY, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        name, engine = starter.stdout.readline().decode().split()
        folder = Path(name)
        server = int((folder / "shared/postgres/cluster/postmaster.pid").read_text().splitlines()[0])
        starter.kill()
    wait_until(lambda: not folder.exists(), f"{folder} is still there")
    assert not Path(f"/proc/{server}").exists()
    assert not is_running(int(engine))


def test_a_later_caller_gets_the_same_server(run_folder: Path, postgres: str) -> None:
    assert server_dsn(run_folder) == postgres


def test_processes_make_databases_of_one_name_beside_each_other(postgres: str) -> None:
    with (
        Databases(postgres, "one") as these,
        Databases(postgres, "another") as those,
        these.one() as one,
        those.one() as another,
    ):
        assert one != another
        assert asyncio.run(num_tables(one)) == asyncio.run(num_tables(another)) > 0


def test_an_empty_database_has_no_table(empty_dsn: str) -> None:
    assert asyncio.run(num_tables(empty_dsn)) == 0
