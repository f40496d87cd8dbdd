"""A project with one batch gets as much as one with twenty: places in a gateway, and the engines' credit."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import httpx
import pytest

from gateway.batches.dispatcher import SLICE_S, _Work, gives_place
from gateway.batches.feed import Asker, Feed, Place
from gateway.db.batches.turns import ChargedWork, Tag, drop_old_turns, share_turns
from gateway.db.batches.work import (
    CHECKED,
    RUN,
    LeasedBatch,
    ProjectBatches,
    QueuedBatch,
    lease_batches,
    queued_batches,
)
from gateway.db.pool import Database
from tests.figures import figure
from tests.gateway.batches.jobs import begin_batch, cancel_and_wait, chat_line, file_of, read_batch
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
                       input_tokens = 24, output_tokens = 20, open_lines = '{"tiny": 6, "": 2}'
    WHERE $1::text IS NULL OR id = $1
"""
"""A statement that puts batches into the state in which four of ten lines have ended, with 16 tokens of work each."""


class FakePool:
    """A fake pool whose credit a test sets."""

    def __init__(self) -> None:
        self.credit = 0

    def take_batch_credit(self) -> bool | None:
        if not self.credit:
            return False
        self.credit -= 1
        return True


def asker(project: str) -> Asker:
    return Asker(project, ends_at_s=86_400.0, num_left={"tiny": 1_000})


MANY_WORK, ONE_WORK = 5.0, 20.0
"""The work of a line of two projects in the simulations below."""


class SimulatedGateway:
    """The feed of a gateway over a pool that gives credit, with batches whose lines end at random."""

    def __init__(self, askers: list[Asker], chance: random.Random) -> None:
        self.now_s = 0.0
        self.num_begun: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self._askers = askers
        self._chance = chance
        self._pool = FakePool()
        self.feed = Feed({"tiny": self._pool}, clock=lambda: self.now_s)
        self._in_flight: list[tuple[Place, Asker]] = []

    def second(self, credit: int, slow: frozenset[str] = frozenset()) -> None:
        """Simulate one second: lines end, and others start. slow: projects whose batches wait for the database."""
        self.now_s += 1.0
        while len(self._in_flight) > 5:
            place, asker = self._in_flight.pop(self._chance.randrange(len(self._in_flight)))
            work = {"many": MANY_WORK, "one": ONE_WORK, "refused": 0.0}[place.project_id]
            self.done[place.project_id] += work  # type: ignore[assignment]
            asker.done("tiny", work)
            self.feed.give(place, work)
        self._chance.shuffle(self._askers)
        for self._pool.credit in (0, credit):  # all have asked before the credit comes
            for asker in self._askers:
                while asker.project_id not in slow and (place := self.feed.take("tiny:adapter", asker)) is not None:
                    self._in_flight.append((place, asker))
                    self.num_begun[asker.project_id] += 1


def test_lines_that_are_refused_take_no_more_turns_than_others() -> None:
    """A refused line makes no work, but uses up credit that another line could have used."""
    chance = random.Random(0)
    gateway = SimulatedGateway([asker("refused"), asker("one")], chance)
    for _ in range(2_000):
        gateway.second(chance.randrange(4))
    assert 0.9 <= gateway.num_begun["refused"] / gateway.num_begun["one"] <= 2.1, gateway.num_begun


def test_twenty_batches_of_short_lines_get_the_work_of_one_batch_of_long_ones() -> None:
    chance = random.Random(0)
    gateway = SimulatedGateway([*(asker("many") for _ in range(20)), asker("one")], chance)
    for _ in range(2_000):
        gateway.second(chance.randrange(4))
    assert 0.98 <= gateway.done["many"] / gateway.done["one"] <= 1.02, gateway.done


def test_a_batch_that_waits_for_the_database_most_of_the_time_gets_as_much_and_holds_nobody_up() -> None:
    chance = random.Random(0)
    gateway = SimulatedGateway([*(asker("many") for _ in range(20)), asker("one")], chance)
    credit = 0
    for second in range(2_000):
        slow = frozenset({"one"} if second % 4 else ())
        gateway.second(each := chance.randrange(4), slow)
        credit += each
    assert 0.98 <= gateway.done["many"] / gateway.done["one"] <= 1.02, gateway.done
    num_lines = gateway.done["many"] / MANY_WORK + gateway.done["one"] / ONE_WORK
    assert num_lines > 0.98 * credit - 10, "no credit was left"


async def test_a_projects_work_at_all_gateways_counts_for_its_turns(database: Database, dsn: str) -> None:
    """One project has a batch at each of three gateways; another has one batch, at the gateway with the most credit."""
    keys = {name: await make_key(dsn, name) for name in ("many", "one")}
    names = {key.project_id: name for name, key in keys.items()}
    chance = random.Random(0)
    gateways = [SimulatedGateway([asker("many"), *([asker("one")] if not n else [])], chance) for n in range(3)]
    for second in range(600):
        for gateway in gateways:
            gateway.second(chance.randrange(2) if gateway is not gateways[0] else chance.randrange(6))
            if not second % 2:
                charged = gateway.feed.charged()
                sent = [each._replace(project_id=keys[each.project_id].project_id) for each in charged]
                async with database.acquire() as conn:
                    tags = await share_turns(conn, sent)
                gateway.feed.share(charged, [tag._replace(project_id=names[tag.project_id]) for tag in tags])
    done = sum((gateway.done for gateway in gateways), Counter())
    assert 0.95 <= done["many"] / done["one"] <= 1.05, [gateway.done for gateway in gateways]


async def test_a_project_that_asks_again_after_a_pause_begins_at_the_smallest_tag(database: Database, dsn: str) -> None:
    first, second = [(await make_key(dsn, name)).project_id for name in ("a", "b")]
    async with database.acquire() as conn:
        for _ in range(3):
            tags = await share_turns(conn, [ChargedWork("tiny", first, 10.0, True)])
        assert tags == [Tag("tiny", first, 30.0, True)]
        assert await share_turns(conn, [ChargedWork("other", first, 1.0, True)]) == [Tag("other", first, 1.0, True)]
        tags = await share_turns(conn, [ChargedWork("tiny", second, 5.0, True)])
        assert sorted(tag.tag for tag in tags) == [30.0, 35.0]
        await conn.execute("UPDATE batch_turns SET asked_at = '-infinity' WHERE project_id = $1", second)
        await share_turns(conn, [ChargedWork("tiny", first, 100.0, True)])
        tags = await share_turns(conn, [ChargedWork("tiny", second, 2.0, True)])
        assert {tag.project_id: tag.tag for tag in tags} == {first: 130.0, second: 132.0}
        tags = await share_turns(conn, [ChargedWork("tiny", first, -7.0, False)])
        assert {tag.project_id: tag.tag for tag in tags} == {first: 123.0, second: 132.0}
        third = (await make_key(dsn, "c")).project_id
        tags = await share_turns(conn, [ChargedWork("tiny", third, 1.0, True), ChargedWork("tiny", first, 4.0, True)])
        assert {tag.project_id: tag.tag for tag in tags} == {first: 127.0, second: 132.0, third: 128.0}
        await conn.execute("UPDATE batch_turns SET asked_at = now() - interval '1 day'")
        assert await drop_old_turns(conn) == 4


def test_a_project_that_begins_no_more_lines_keeps_nobody_waiting() -> None:
    pool = FakePool()
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
    pool = FakePool()
    feed = Feed({"tiny": pool}, clock=lambda: 0.0)
    pool.credit = 9
    alone = asker("alone")
    assert sum(feed.take("tiny", alone) is not None for _ in range(20)) == 9


def work_on_batch(project: str, began_s: float) -> Any:
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
        open_lines={},
        fence=1,
    )
    return _Work(batch, "running", asyncio.Event(), began_s)


@pytest.mark.parametrize(
    ("standings", "now_s", "expected"),
    [
        ({"a": ProjectBatches(3, 4)}, 99.0, None),  # nobody else waits
        ({"a": ProjectBatches(3, 4), "b": ProjectBatches(0, 1)}, 3.0, "a1"),
        ({"a": ProjectBatches(3, 4), "b": ProjectBatches(2, 1)}, 3.0, None),
        ({"a": ProjectBatches(3, 4), "b": ProjectBatches(2, 1)}, 1.0 + SLICE_S, "a1"),
        ({"a": ProjectBatches(3, 0), "b": ProjectBatches(3, 1)}, 99.0, None),
    ],
)
def test_a_batch_gives_its_place_to_a_project_with_fewer(
    standings: dict[str, ProjectBatches], now_s: float, expected: str | None
) -> None:
    working = [work_on_batch("a", 2), work_on_batch("a", 1), work_on_batch("a", 3)]
    found = gives_place(working, standings, now_s)
    assert (found and found.batch.id) == expected
    working[0].must_rest.set()
    assert gives_place(working, standings, now_s) is None, "one at a time"


def test_only_batches_whose_lines_run_give_their_places() -> None:
    works = [work_on_batch("a", began_s) for began_s in (1, 2, 3)]
    works[0].stage = "ending"
    found = gives_place(works, {"a": ProjectBatches(2, 0), "b": ProjectBatches(0, 1)}, 3.0)
    assert found is works[1]


def test_a_batch_that_will_be_late_in_any_case_gives_its_place_to_another_of_its_project() -> None:
    works = [work_on_batch("a", began_s) for began_s in (3, 2, 1)]
    lost = {works[0].batch.id, works[1].batch.id}
    standings = {"a": ProjectBatches(3, 1), "b": ProjectBatches(3, 0)}
    assert gives_place(works, standings, 13.0, hopeless=lost) is works[1]
    assert gives_place(works, standings, 11.0, hopeless=lost) is None, "it has just got the place"
    assert gives_place(works, {"a": ProjectBatches(3, 0), "b": ProjectBatches(3, 1)}, 13.0, hopeless=lost) is None
    assert gives_place(works, standings, 13.0) is None


async def test_batches_of_projects_with_the_fewest_at_work_are_leased_first(world: World, database: Database) -> None:
    mine = [await world.create(file_of([chat_line("a")])) for _ in range(4)]
    other = await world.of(await make_key(world.dsn, "other")).create(file_of([chat_line("a")]))
    taken = []
    for _ in range(3):
        async with database.transaction() as conn:
            taken += [batch.id for batch in await lease_batches(conn, "gateway", 1, CHECKED)]
    assert taken[0] == mine[0].row.id and other.row.id in taken[1:2] and taken[2] in {each.row.id for each in mine}


async def test_each_gateway_counts_its_share_of_the_waiting_lines(world: World, database: Database) -> None:
    for _ in range(3):
        await world.create(file_of([chat_line("a")]))

    async def lease(gateway: str) -> list[QueuedBatch]:
        """Have a gateway lease a batch; return the batches that still wait for a gateway."""
        async with database.transaction() as conn:
            (taken,) = await lease_batches(conn, gateway, 1, CHECKED + RUN)
            await conn.execute(BEGUN, taken.id)
            return await queued_batches(conn)

    assert await lease("first") == [], "the others are being checked"
    async with database.acquire() as conn:
        await conn.execute(BEGUN, None)
        waiting = await queued_batches(conn)
    assert [(each.num_left, each.work_per_line) for each in waiting] == [({"tiny": 6, "": 2}, 16)] * 2
    assert all(86_000 < each.left_seconds <= 86_400 for each in waiting)
    assert [each.num_left for each in await lease("second")] == [{"tiny": 3, "": 1}], "two gateways share them"


async def test_one_batch_of_a_tenant_gets_what_twenty_of_another_get(house: House, full: bool) -> None:
    """The twenty batches are created first, and hold all places of the gateway."""
    num_lines = FULL_LINES if full else LINES
    many, one = await make_key(house.dsn, "many"), await make_key(house.dsn, "one")

    def content(number: int) -> bytes:
        return file_of(chat_line(str(n), max_tokens=20, ignore_eos=True) for n in range(number))

    async with (
        httpx.AsyncClient(base_url=house.url, headers=many.headers, timeout=PATIENCE_S) as theirs,
        httpx.AsyncClient(base_url=house.url, headers=one.headers, timeout=PATIENCE_S) as own,
    ):
        others = [await begin_batch(theirs, content(num_lines // 5)) for _ in range(20)]

        async def num_theirs() -> int:
            batches = (await theirs.get("/v1/batches?limit=100")).json()["data"]
            return sum(batch["request_counts"]["completed"] for batch in batches)

        await until(num_theirs, "nothing of the twenty ran", pause_s=0.05)
        batch = await begin_batch(own, content(num_lines))

        async def num_own() -> int:
            return int((await read_batch(own, batch))["request_counts"]["completed"])

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
                await cancel_and_wait(client, id)
    if full:
        figure(f"lines of twenty batches and of one in the same time: {gained[0]:.0f} and {gained[1]:.0f}")
        assert 0.9 <= gained[0] / gained[1] <= 1.1, gained
