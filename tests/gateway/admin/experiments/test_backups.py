"""A backup holds experiments whole: each unit's arm, all results, and the secret by which units are hashed."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

from gateway.cli import main
from gateway.content.keys import content_keys
from gateway.db.experiments.experiments import find_experiment, split_of
from gateway.db.pool import Database
from gateway.domain.experiments.assignment import assign
from gateway.experiments.keys import ProjectKeys
from gateway.experiments.results import read_results, read_segments
from gateway.support.cipher import Cipher
from tests.gateway.experiments.books_rows import NOW, UnitRequest, keep_books, make_experiment, send, unit, verified


async def test_a_restored_installation_assigns_and_shows_as_before(dsn: str, empty_dsn: str, tmp_path: Path) -> None:
    here, there, backup = tmp_path / "here", tmp_path / "there", tmp_path / "backup"
    async with await Database.connect(dsn) as database:
        keys = ProjectKeys(database, Cipher(content_keys(None, here / "content.key")))
        async with database.acquire() as conn:
            made = await make_experiment(conn)
            at = NOW - datetime.timedelta(days=3)
            await send(
                conn, made, [UnitRequest(unit(number), arm=number % 2, at=at, tokens=number) for number in range(50)]
            )
        await keep_books(database)
        key = await keys.key(made.project_id)
        async with database.acquire() as conn:
            before = await find_experiment(conn, made.project_id, made.id)
            assert before is not None
            results, segments = await read_results(conn, before), await read_segments(conn, before, "stream")
            await send(conn, made, [UnitRequest(unit(100), at=at)])  # an event that waits
    for argv, data_dir, url in ((["backup"], here, dsn), (["restore"], there, empty_dsn)):
        environ = {"LORIKEET_DATA_DIR": str(data_dir), "DATABASE_URL": url}
        assert await asyncio.to_thread(main, [*argv, str(backup)], environ) == 0
    async with await Database.connect(empty_dsn) as database:
        restored = ProjectKeys(database, Cipher(content_keys(None, there / "content.key")))
        assert await restored.key(made.project_id) == key, "units are known by the same digests"
        async with database.acquire() as conn:
            after = await find_experiment(conn, made.project_id, made.id)
            assert after == before
            assert await read_results(conn, after) == results
            assert await read_segments(conn, after, "stream") == segments != []
        names = [f"user-{number}" for number in range(100)]
        assert [assign(split_of(after), name, b"") for name in names] == [
            assign(split_of(before), name, b"") for name in names
        ]
        await keep_books(database)
        found = await verified(database, made)
        assert (found.num_units, found.num_recounted, found.differences) == (51, 51, ())
