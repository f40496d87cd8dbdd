"""A backup that is taken under load and restored elsewhere meanwhile, with the commands that operators use."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from tests.drills.drill import Drill, Outcome, measure
from tests.drills.ground import Ground, running_ground
from tests.drills.traffic import Traffic
from tests.installation.databases import execute
from tests.patience import PATIENCE_S

RESTORED = "restored"


def _lorikeet(data_dir: Path, dsn: str, *words: str) -> None:
    environ = os.environ | {"LORIKEET_DATA_DIR": str(data_dir), "DATABASE_URL": dsn}
    command = [sys.executable, "-m", "gateway.cli", *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, f"lorikeet {' '.join(words)}: {done.stdout}{done.stderr}"


async def _requests(dsn: str) -> dict[str, int]:
    conn = await asyncpg.connect(dsn)
    try:
        rows = await conn.fetch(
            "SELECT request_id, sum(completion_tokens)::bigint AS tokens FROM usage_attempts GROUP BY request_id"
        )
    finally:
        await conn.close()
    return {row["request_id"]: row["tokens"] for row in rows}


def backup_and_restore(folder: Path, rng: random.Random) -> Outcome:
    data = folder / "data"
    data.mkdir()

    def fault(ground: Ground, traffic: Traffic, rng: random.Random) -> str:
        dsn, begun_s = ground.postgres.dsn, time.monotonic()
        known = asyncio.run(_requests(dsn))
        _lorikeet(data, dsn, "backup", str(folder / "backup"))
        taken_s = time.monotonic()
        asyncio.run(execute(dsn, f"CREATE DATABASE {RESTORED}"))
        elsewhere = urlunsplit(urlsplit(dsn)._replace(path=f"/{RESTORED}"))
        _lorikeet(folder / "elsewhere", elsewhere, "restore", str(folder / "backup"))
        restored, now = asyncio.run(_requests(elsewhere)), asyncio.run(_requests(dsn))
        assert known.items() <= restored.items() <= now.items(), "a restored ledger is a part of what is known now"
        return (
            f"backup {taken_s - begun_s:.1f} s, restore {time.monotonic() - taken_s:.1f} s, "
            f"{len(restored)} of {len(now)} requests in it, {len(known)} before it"
        )

    with running_ground(data) as ground:
        return measure(ground, fault, rng)


DRILLS = (Drill("backup and restore", "requests go on; what was billed before is in it", backup_and_restore),)
