"""A project gets as much for one batch as another for twenty: places in a gateway, and the engines' credit."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest

from gateway.batches.dispatcher import SLICE_S, _Work, gives_place
from gateway.batches.feed import Asker, Feed
from gateway.db.batches.work import LeasedBatch, QueuedBatch, Standing, lease_batches, queued_batches
from gateway.db.pool import Database
from tests.figures import figure
from tests.gateway.batches.jobs import begin, cancelled, chat_line, file_of, shown
from tests.gateway.batches.test_dispatcher import World
from tests.gateway.batches.test_dispatcher import world as world
from tests.gateway.conftest import House
from tests.installation.tenants import make_key
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

LINES, FULL_LINES = 40, 1_000
"""Lines of the one batch; the twenty others have twice as many together."""


BEGUN = """
    UPDATE batches SET status = 'in_progress', in_progress_at = now(), num_total = 10, num_completed = 4,
                       input_tokens = 24, output_tokens = 20
    WHERE $1::text IS NULL OR id = $1
"""
"""Four of ten lines have ended, with 16 tokens of work each."""


class Pool:
    """A pool that gives credit as a test does."""

    def __init__(self) -> None:
        self.credit = 0

    def take_batch_credit(self) -> bool | None:
        if not self.credit:
            return False
        self.credit -= 1
        return True


def asker(project: str) -> Asker:
    return Asker(project, ends_at_s=86_400.0, num_left=1_000)


def test_credit_goes_to_the_project_with_the_fewest_lines_in_flight() -> None:
    chance, pool = random.Random(0), Pool()
    feed = Feed({"tiny": pool}, clock=lambda: 0.0)
    in_flight, done = [], {"many": 0, "one": 0}
    askers = [*(asker("many") for _ in range(20)), asker("one")]
    for _ in range(2_000):
        pool.credit += chance.randrange(4)
        chance.shuffle(askers)
        for each in askers:  # each batch takes as many places as it gets
            while (place := feed.take("tiny:adapter", each)) is not None:
                in_flight.append(place)
        while len(in_flight) > 20:
            place = in_flight.pop(chance.randrange(len(in_flight)))
            done[place.project_id] += 1
            feed.give(place)
    assert sum(done.values()) > 1_000
    assert 0.9 <= done["many"] / done["one"] <= 1.1, done


def test_a_project_that_begins_no_more_lines_keeps_nobody_waiting() -> None:
    pool = Pool()
    feed = Feed({"tiny": pool}, clock=lambda: 0.0)
    busy, rests = asker("busy"), asker("rests")
    pool.credit = 1
    assert feed.take("tiny", busy) is not None
    assert feed.take("tiny", rests) is None
    pool.credit = 1
    assert feed.take("tiny", busy) is None, "it is the turn of the other one"
    feed.leave(rests)
    assert feed.take("tiny", busy) is not None


def test_one_project_alone_gets_all_credit() -> None:
    pool = Pool()
    feed = Feed({"tiny": pool}, clock=lambda: 0.0)
    pool.credit = 9
    alone = asker("alone")
    assert sum(feed.take("tiny", alone) is not None for _ in range(20)) == 9


def work(project: str, began_s: float) -> Any:
    batch = LeasedBatch(
        project_id=project,
        id=f"{project}{began_s}",
        api_key_id="",
        endpoint="",
        input_file_id="",
        output_file_id="",
        error_file_id="",
        keep_seconds=None,
        status="in_progress",
        ending=None,
        expires_at=None,  # type: ignore[arg-type]
        left_seconds=1.0,
        num_total=1,
        num_completed=0,
        num_failed=0,
        fence=1,
    )
    return _Work(batch, None, asyncio.Event(), began_s)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("standings", "now_s", "expected"),
    [
        ({"a": Standing(3, 4)}, 99.0, None),  # nobody else waits
        ({"a": Standing(3, 4), "b": Standing(0, 1)}, 3.0, "a1"),
        ({"a": Standing(3, 4), "b": Standing(2, 1)}, 3.0, None),
        ({"a": Standing(3, 4), "b": Standing(2, 1)}, 1.0 + SLICE_S, "a1"),
        ({"a": Standing(3, 0), "b": Standing(3, 1)}, 99.0, None),
    ],
)
def test_a_batch_gives_its_place_to_a_project_with_fewer(
    standings: dict[str, Standing], now_s: float, expected: str | None
) -> None:
    working = [work("a", 2), work("a", 1), work("a", 3)]
    found = gives_place(working, standings, now_s)
    assert (found and found.batch.id) == expected
    working[0].must_rest.set()
    assert gives_place(working, standings, now_s) is None, "one at a time"


async def test_batches_of_projects_with_the_fewest_at_work_are_leased_first(world: World, database: Database) -> None:
    mine = [await world.create(file_of([chat_line("a")])) for _ in range(4)]
    other = await world.of(await make_key(world.dsn, "other")).create(file_of([chat_line("a")]))
    taken = []
    for _ in range(3):
        async with database.transaction() as conn:
            taken += [batch.id for batch in await lease_batches(conn, "gateway", 1)]
    assert taken[0] == mine[0].row.id and other.row.id in taken[1:2] and taken[2] in {each.row.id for each in mine}


async def test_gateways_count_the_lines_that_wait_for_them_each_its_part(world: World, database: Database) -> None:
    for _ in range(3):
        await world.create(file_of([chat_line("a")]))

    async def lease(gateway: str) -> list[QueuedBatch]:
        """Have a gateway take a batch; return what waits then."""
        async with database.transaction() as conn:
            (taken,) = await lease_batches(conn, gateway, 1)
            await conn.execute(BEGUN, taken.id)
            return await queued_batches(conn)

    assert await lease("first") == [], "the others are being checked"
    async with database.acquire() as conn:
        await conn.execute(BEGUN, None)
        waiting = await queued_batches(conn)
    assert [(each.num_left, each.work_per_line) for each in waiting] == [(6, 16), (6, 16)]
    assert all(86_000 < each.left_seconds <= 86_400 for each in waiting)
    assert [each.num_left for each in await lease("second")] == [3], "two gateways share them"


async def test_one_batch_of_a_tenant_gets_what_twenty_of_another_get(house: House, full: bool) -> None:
    """The twenty are there first, and hold all places of the gateway."""
    num_lines = FULL_LINES if full else LINES
    many, one = await make_key(house.dsn, "many"), await make_key(house.dsn, "one")

    def content(number: int) -> bytes:
        return file_of(chat_line(str(n), max_tokens=20, ignore_eos=True) for n in range(number))

    async with (
        httpx.AsyncClient(base_url=house.url, headers=many.headers, timeout=PATIENCE_S) as theirs,
        httpx.AsyncClient(base_url=house.url, headers=one.headers, timeout=PATIENCE_S) as own,
    ):
        others = [await begin(theirs, content(num_lines // 5)) for _ in range(20)]

        async def num_theirs() -> int:
            batches = (await theirs.get("/v1/batches?limit=100")).json()["data"]
            return sum(batch["request_counts"]["completed"] for batch in batches)

        await until(num_theirs, "nothing of the twenty ran", pause_s=0.05)
        batch = await begin(own, content(num_lines))

        async def num_own() -> int:
            return int((await shown(own, batch))["request_counts"]["completed"])

        await until(num_own, "nothing of the one ran", pause_s=0.05)

        async def counts() -> tuple[float, float]:
            """Return the lines done of the twenty, and of the one at the same time: the mean of before and after."""
            before, theirs, after = await num_own(), await num_theirs(), await num_own()
            return theirs, (before + after) / 2

        before = await counts()

        async def is_done() -> bool:
            return await num_own() >= num_lines * 0.9

        await until(is_done, "the one does not get on", pause_s=0.05)
        after = await counts()
        gained = after[0] - before[0], after[1] - before[1]
        for client, ids in ((theirs, others), (own, [batch])):
            for id in ids:
                await cancelled(client, id)
    if full:
        figure(f"lines of twenty batches and of one in the same time: {gained[0]:.0f} and {gained[1]:.0f}")
        assert 0.9 <= gained[0] / gained[1] <= 1.1, gained
