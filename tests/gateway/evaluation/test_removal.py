"""Votes beside the removal of withdrawn votes: neither waits for the other for ever, and no voter sees an error."""

from __future__ import annotations

import asyncio

import pytest

from gateway.db.experiments.feedback.counts import drop_withdrawn
from gateway.db.experiments.feedback.votes import lock_votes
from tests.gateway.evaluation.conftest import Site
from tests.gateway.evaluation.furniture import connected
from tests.patience import PATIENCE_S

_WITHDRAW = "UPDATE feedback SET withdrawn_at = now() WHERE project_id = $1"
_NUM_WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%FROM feedback%'
"""


pytestmark = pytest.mark.usefixtures("no_bookkeeper")


async def withdrawn(site: Site) -> tuple[list[str], list[str]]:
    """Return request ids and vote ids of withdrawn votes, ordered by the vote's id."""
    pairs = []
    for _ in range(2):
        request_id = await site.request()
        pairs.append(((await site.vote(request_id=request_id))["id"], request_id))
    await site.conn.execute(_WITHDRAW, site.key.project_id)
    pairs.sort()
    return [request_id for _, request_id in pairs], [feedback_id for feedback_id, _ in pairs]


async def test_the_removal_leaves_votes_that_somebody_changes(site: Site) -> None:
    _, ids = await withdrawn(site)
    async with connected(site.house.dsn) as voter, voter.transaction():
        assert await lock_votes(voter, site.key.project_id, ids[:1])
        async with asyncio.timeout(PATIENCE_S), site.conn.transaction():
            await drop_withdrawn(site.conn, ids)
        assert list(await lock_votes(voter, site.key.project_id, ids)) == ids[:1]


async def test_a_vote_that_is_removed_while_it_is_cast_again_is_made_anew(site: Site) -> None:
    requests, ids = await withdrawn(site)
    async with connected(site.house.dsn) as keeper, asyncio.timeout(PATIENCE_S):
        async with keeper.transaction():
            assert await lock_votes(keeper, site.key.project_id, ids[1:])
            body = {"data": [{"metric": "thumbs_up", "value": False, "request_id": each} for each in requests]}
            cast = asyncio.create_task(site.client.post("/v1/feedback", json=body))
            while not await site.conn.fetchval(_NUM_WAITING):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
            await drop_withdrawn(keeper, ids[1:])
        reply = await cast
    assert reply.status_code == 200, reply.text
    assert [(each["id"], each["replaced"]) for each in reply.json()["data"]] == [(each, False) for each in ids]
    assert await site.counted() == [("thumbs_up", 0)] * 2
