"""A loaded installation is restored to a random moment, and its journals bring back what came after.

The archive is made by `lorikeet archive` meanwhile, and restored by the commands that operators use. The ledger of the
restored database has to be that of the running one, row for row, once the journals are billed.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from gateway.postgres.archive import base_backups
from gateway.postgres.embedded import EmbeddedPostgres
from tests.deploy.commands import lorikeet
from tests.drills.ground import Ground, running_ground
from tests.installation.databases import REPOSITORY
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S
from tests.seeds import seeds

NUM_RESTORES, FULL_RESTORES = 1, 20
NUM_ANSWERS, FULL_ANSWERS = 60, 1500
"""The answers between the first and the last moment that may be chosen."""

LOAD_SHARE = 0.8
"""The share of the engines' capacity that the load takes."""

NOT_THERE = {"adapters"}
"""The name of the check that fails as expected: the fake engines' adapters have rows, but no files."""

_LEDGER = """
    SELECT request_id, attempt, revision, prompt_tokens, completion_tokens, finish_reason, cost_nanos FROM ledger
    ORDER BY request_id, attempt, revision
"""
_ENGINES = """
    SELECT engine_id, sum(prompt_tokens)::bigint AS prompt, sum(completion_tokens)::bigint AS completion
    FROM engine_usage GROUP BY engine_id ORDER BY engine_id
"""


class Books(msgspec.Struct, frozen=True):
    """The rows of a database that a restore has to bring back."""

    ledger: list[tuple[Any, ...]]
    engines: list[tuple[Any, ...]]


def test_any_moment_is_restored_under_load(open_folder: Path, pytestconfig: pytest.Config) -> None:
    full = bool(pytestconfig.getoption("full"))
    folder = open_folder / "moments"
    folder.mkdir()
    with running_ground(folder) as ground, _archived(ground, folder / "archive") as archive:
        first, last = _load(ground, FULL_ANSWERS if full else NUM_ANSWERS)
        live = asyncio.run(_books(ground.postgres.dsn))
        for seed in seeds(NUM_RESTORES, FULL_RESTORES, full=full):
            at = first + random.Random(seed).random() * (last - first)
            _check_drill(ground, archive, at, live)
        _really_restored(ground, archive, open_folder / "new machine", first + (last - first) / 2, live)


def _load(ground: Ground, num_answers: int) -> tuple[datetime.datetime, datetime.datetime]:
    """Send requests until `num_answers` are answered and billed. Return the times of the first and the last of them."""
    asyncio.run(ground.warm_up())
    with ground.traffic(LOAD_SHARE) as traffic:
        traffic.more_answers(5)
        first = _now()
        traffic.more_answers(num_answers)
        last = _now()
        traffic.more_answers(5)
    ground.check()
    return first, last


def _check_drill(ground: Ground, archive: Path, at: datetime.datetime, live: Books) -> None:
    words = ("drill", "restore", str(archive), "--at", at.isoformat(), "--in", str(ground.folder), "--json")
    done = lorikeet(_environ(ground), *words)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert {finding["check"] for finding in found["findings"] if not finding["is_good"]} == NOT_THERE, found
    assert found["num_billed_again"] > 0 and found["difference_tokens"] == 0
    assert datetime.datetime.fromisoformat(found["restored_to"]) <= at
    assert found["num_ledger_rows"] == len(live.ledger)
    assert found["num_ledger_tokens"] == sum(row[3] + row[4] for row in live.ledger)


def _really_restored(ground: Ground, archive: Path, data_dir: Path, at: datetime.datetime, live: Books) -> None:
    """Restore on a fresh machine that has only the archive and the journals, and compare with the running database."""
    for gateway in ground.gateways:
        gateway.terminate()
    shutil.copytree(ground.folder / "journal", data_dir / "journal")
    environ = {"LORIKEET_DATA_DIR": str(data_dir)}
    done = lorikeet(environ, "restore", str(archive), "--at", at.isoformat(), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["num_billed_again"] > 0 and found["difference_tokens"] == 0 and found["refused"] == []
    assert (data_dir / "content.key").read_text() == (ground.folder / "content.key").read_text()
    again = lorikeet(environ, "restore", str(archive), "--at", at.isoformat())
    assert again.returncode == 1 and "holds a database; --force sets it aside" in again.stderr
    server = EmbeddedPostgres(data_dir)
    try:
        assert asyncio.run(_books(server.start())) == live
    finally:
        server.stop()


@contextmanager
def _archived(ground: Ground, archive: Path) -> Iterator[Path]:
    """Run `lorikeet archive`, once it has taken its first base backup."""
    command = [sys.executable, "-m", "gateway.cli", "archive", str(archive)]
    with subprocess.Popen(
        command, env=os.environ | _environ(ground), cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_until(
                lambda: process.poll() is not None or ((archive / "base").is_dir() and bool(base_backups(archive))),
                lambda: "no base backup came",
                patience_s=PATIENCE_S,
            )
            assert process.poll() is None, process.stderr and process.stderr.read()
            yield archive
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


def _environ(ground: Ground) -> dict[str, str]:
    return {"LORIKEET_DATA_DIR": str(ground.folder), "DATABASE_URL": ground.postgres.dsn}


async def _books(dsn: str) -> Books:
    conn = await asyncpg.connect(dsn)
    try:
        ledger, engines = await conn.fetch(_LEDGER), await conn.fetch(_ENGINES)
        return Books([tuple(row) for row in ledger], [tuple(row) for row in engines])
    finally:
        await conn.close()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
