"""While the database is away, engines run on and none is stopped; when it is back, lost engines are started again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path

from gateway.agent.lease import LEASE_S
from gateway.db.migrate import migrate
from gateway.db.pool import Database
from tests.faults.processes import Postgres
from tests.gateway.agent.site import Host
from tests.installation.waiting import until


async def test_engines_run_on_while_the_database_is_away(open_folder: Path) -> None:
    postgres = await asyncio.to_thread(Postgres, open_folder / "away")
    folder = Path(tempfile.mkdtemp(prefix="lk-"))
    try:
        await migrate(postgres.dsn)
        async with await Database.connect(postgres.dsn) as database:
            host = Host(folder, postgres.dsn, database)
            try:
                await _watch(host, postgres)
            finally:
                host.close()
    finally:
        await asyncio.to_thread(postgres.stop)
        shutil.rmtree(folder)


async def _watch(host: Host, postgres: Postgres) -> None:
    await host.pool(host.model(), num_replicas=2)
    agent = host.agent()
    before = await host.ready(2)
    pids = host.pids()
    away = postgres.stopped()
    await asyncio.to_thread(away.__enter__)
    try:
        os.kill(pids[0], signal.SIGKILL)
        await asyncio.sleep(LEASE_S + 1)  # longer than the lease lasts
        agent.check()
        assert host.pids() == pids[1:], "nothing is stopped, and nothing started that no row would know of"
    finally:
        await asyncio.to_thread(away.__exit__, None, None, None)

    async def whole() -> bool:
        try:
            rows = await host.replicas("ready")
        except Exception:  # the pool's connections are broken for a moment
            return False
        return sorted(each.generation for each in rows) == [1, 2]

    await until(whole, host.log)
    assert {each.id for each in await host.ready(2)} == {each.id for each in before}
