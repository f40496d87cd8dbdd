"""A database whose server dies for good, and whose standby takes its address over.

The standby follows in step (`synchronous_standby_names`); otherwise the last commits would be lost with the server,
usage included. Takes root, as `tests.drills.networks` does.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import asyncpg

from gateway.postgres.embedded import SERVER_SETTINGS
from gateway.postgres.placement import home_of
from tests.drills.drill import Drill, Outcome, measure
from tests.drills.ground import Ground
from tests.drills.networks import SUBNETS, laid_cables, wired_ground
from tests.drills.traffic import Traffic
from tests.faults.processes import Postgres
from tests.installation.databases import execute
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

AWAY_S = 5.0
"""Seconds from the death of the server until the standby is promoted: an operator has to notice."""


class Standby:
    """A standby of a running server, in a folder of its own, under the same user."""

    def __init__(self, primary: Postgres, folder: Path) -> None:
        owner = (home_of(folder / "database") / "cluster").stat()
        self._user = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        self._bin = Path(f"/proc/{primary.pid}/exe").readlink().parent
        self._home = folder / "standby"
        self._home.mkdir(mode=0o700)
        os.chown(self._home, owner.st_uid, owner.st_gid)
        self._cluster = self._home / "cluster"
        self._process: subprocess.Popen[bytes] | None = None
        parts = urlsplit(primary.dsn)
        host = unquote(parts.query.removeprefix("host="))
        words = [f"--pgdata={self._cluster}", "--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream"]
        command = [str(self._bin / "pg_basebackup"), *words, f"--host={host}", f"--username={parts.username}"]
        environ = {"PGPASSWORD": unquote(parts.password or "")}
        done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, **self._user)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr

    def start(self, address: str = "") -> None:
        """Start the copy, which is a standby until it is promoted.

        address: the address at which the copy listens over TCP; "": it has its socket alone.
        """
        settings = SERVER_SETTINGS | {"listen_addresses": address, "unix_socket_directories": str(self._home)}
        flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._home.parent / "standby.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self._cluster), *flags],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._user,  # type: ignore[call-overload]
            )

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(PATIENCE_S)
            self._process = None

    def take_over(self, address: str) -> None:
        """Promote the standby to a server of its own at an address, with the data that it has received."""
        self.stop()
        (self._cluster / "standby.signal").unlink()
        self.start(address)


async def _follows(dsn: str) -> bool:
    conn = await asyncpg.connect(dsn)
    try:
        return bool(await conn.fetchval("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"))
    finally:
        await conn.close()


def fail_over(folder: Path, rng: random.Random) -> Outcome:
    address = f"{SUBNETS['database']}.1"
    with laid_cables() as cables, wired_ground(folder, cables) as ground:
        standby = Standby(ground.postgres, folder)
        standby.start()
        try:
            asyncio.run(execute(ground.postgres.dsn, "ALTER SYSTEM SET synchronous_standby_names = '*'"))
            asyncio.run(execute(ground.postgres.dsn, "SELECT pg_reload_conf()"))
            wait_until(lambda: asyncio.run(_follows(ground.postgres.dsn)), "the standby does not follow")

            def fault(ground: Ground, traffic: Traffic, rng: random.Random) -> str:
                before = traffic.outcomes()
                ground.postgres.end()
                time.sleep(AWAY_S)
                standby.take_over(address)
                met = traffic.outcomes() - before
                return ", ".join(f"{count} {name}" for name, count in met.most_common(4)) + " meanwhile"

            return measure(ground, fault, rng)
        finally:
            standby.stop()


DRILLS = (Drill("database failed over", "requests go on, and no usage is lost with the server", fail_over),)
