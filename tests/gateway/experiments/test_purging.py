"""Before a project is purged, its experiments' data on units goes little by little; no secret comes back."""

from __future__ import annotations

import pytest

from gateway.content.keeper import drop_content
from gateway.db.pool import Database
from gateway.domain.errors import NotFound
from gateway.experiments.keys import ProjectKeys
from gateway.support.cipher import Cipher, ContentKey
from tests.gateway.experiments.books_rows import UnitRequest, keep_books, make_experiment, send, unit, verified, vote
from tests.gateway.experiments.test_books import LONG_AGO

_ROWS = """
    SELECT (SELECT count(*) FROM experiment_units WHERE experiment_id = $1)
         + (SELECT count(*) FROM experiment_requests WHERE experiment_id = $1)
         + (SELECT count(*) FROM experiment_events WHERE experiment_id = $1)
"""


async def test_units_of_one_project_alone_go_before_it_is_purged(database: Database) -> None:
    async with database.acquire() as conn:
        made, stranger = await make_experiment(conn), await make_experiment(conn, project="globex")
        for each in (made, stranger):
            await send(conn, each, [UnitRequest(unit(n), at=LONG_AGO) for n in range(5)])
        await keep_books(database)
        for each in (made, stranger):
            await send(conn, each, [UnitRequest(unit(1), at=LONG_AGO)])  # waits
        await drop_content(database, made.project_id)
        assert await conn.fetchval(_ROWS, made.id) == 0
        assert await conn.fetchval(_ROWS, stranger.id) == 5 + 6 + 1
    await keep_books(database)
    assert (await verified(database, stranger)).differences == ()


async def test_a_purged_project_gets_no_secret(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await conn.execute("UPDATE projects SET purged_at = now() WHERE id = $1", made.project_id)
    with pytest.raises(NotFound):
        await ProjectKeys(database, Cipher([ContentKey(b"k" * 32)])).key(made.project_id)
    async with database.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM experiment_keys") == 0


async def test_a_vote_that_comes_before_its_unit_counts_once_the_unit_appears(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await vote(conn, made, 7, digest=unit(1), at=LONG_AGO)
        await keep_books(database)  # the vote's event is gone, and nothing is counted
        assert await conn.fetchval("SELECT count(*) FROM feedback_counted") == 0
        await send(conn, made, [UnitRequest(unit(1), at=LONG_AGO)])
        await keep_books(database)
        assert await conn.fetchval("SELECT value FROM feedback_counted") == 7
    found = await verified(database, made)
    assert (found.num_recounted, found.differences) == (1, ())
