"""A batch starts to run and moves between gateways without losing a line, however late a gateway is and whenever the
database dies."""

from __future__ import annotations

import asyncio
import json

from gateway.db.batches.work import (
    CHECKED,
    RUN,
    LeasedBatch,
    LineResult,
    NewLine,
    add_lines,
    begin_anew,
    begin_batch,
    claim_lines,
    drop_lines,
    lease_batches,
    lock_batch,
    store_results,
)
from gateway.db.pool import Database
from tests.gateway.batches.jobs import chat_line, file_of
from tests.gateway.batches.test_dispatcher import DONE, Runner, World
from tests.gateway.batches.test_dispatcher import world as world
from tests.installation.waiting import until

LINES = [NewLine(number, 0, 1, "tiny") for number in range(1, 5)]
GATE = 7
HALT_LEASES = f"""
    CREATE FUNCTION halt() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_advisory_xact_lock({GATE}); RETURN NEW; END $$;
    CREATE TRIGGER halt BEFORE UPDATE OF fence ON batches FOR EACH ROW EXECUTE FUNCTION halt();
"""
"""The key of a lock during which leasing of several batches halts after the first, as on a busy machine."""
MAKE_POOLS = """
    WITH made AS (
        INSERT INTO pools (id, organization_id, name, num_replicas, wanted_revision)
        SELECT 'pool_' || n.name, p.organization_id, n.name, 1, 1
        FROM projects p, unnest($2::text[]) n (name) WHERE p.id = $1
        RETURNING id)
    INSERT INTO pool_revisions (pool_id, revision, model) SELECT id, 1, 'demo' FROM made
"""
EXPIRE = "UPDATE batches SET leased_until = '-infinity'"
NUM_HALTED = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted"


async def lease_up_to_two(database: Database, gateway: str) -> list[LeasedBatch]:
    async with database.transaction() as conn:
        return await lease_batches(conn, gateway, 2, CHECKED + RUN)


async def test_lines_begun_while_their_batch_changes_hands_are_begun_anew(world: World, database: Database) -> None:
    for _ in range(2):
        await world.create(file_of([chat_line("a")]))
    old = await lease_up_to_two(database, "old")
    async with database.transaction() as conn:
        for batch in old:
            await lock_batch(conn, batch)
            await add_lines(conn, batch, LINES)
            assert await begin_batch(conn, batch, len(LINES))
    async with database.acquire() as conn:
        await conn.execute(HALT_LEASES)
        await conn.execute(EXPIRE)
    async with database.acquire() as gate, database.acquire() as conn:
        await gate.execute("SELECT pg_advisory_lock($1)", GATE)
        taking = asyncio.create_task(lease_up_to_two(database, "new"))

        async def halts() -> bool:
            return bool(await conn.fetchval(NUM_HALTED, GATE))

        await until(halts, "no lease was taken")
        begun = []
        for batch in old:  # its gateway does not know yet that the lease is over
            free = "SELECT id FROM batches WHERE id = $1 FOR UPDATE SKIP LOCKED"
            async with database.transaction() as late:
                if await late.fetchval(free, batch.id):
                    assert await lock_batch(late, batch) == "in_progress"
                    begun += await claim_lines(late, batch, len(LINES))
        assert len(begun) == len(LINES), "one of the two is not taken yet"
        await gate.execute("SELECT pg_advisory_unlock($1)", GATE)
        for batch in await taking:
            async with database.transaction() as other:
                assert await lock_batch(other, batch) == "in_progress"
                await begin_anew(other, batch)
                assert len(await claim_lines(other, batch, len(LINES))) == len(LINES)


async def test_lines_without_a_result_are_counted_by_the_pool_that_they_name(world: World, database: Database) -> None:
    await world.create(file_of([chat_line("a")]))
    models = ["tiny", "tiny:adapter", "tiny", "my-route", "gone:adapter", "large"]
    lines = [NewLine(number, 0, 1, model) for number, model in enumerate(models, 1)]
    (batch,) = await lease_up_to_two(database, "gateway")
    async with database.transaction() as conn:
        await conn.execute(MAKE_POOLS, batch.project_id, ["tiny", "large"])
        await lock_batch(conn, batch)
        await add_lines(conn, batch, lines)
        assert await begin_batch(conn, batch, len(lines))
        claimed = await claim_lines(conn, batch, len(lines))

    async def end(*numbers: int) -> dict[str, int]:
        """Store results of lines twice, as a gateway does that does not know if the first write succeeded; return the
        lines left."""
        results = [
            LineResult(
                number=line.number,
                attempt=line.attempt,
                is_completed=True,
                reason="",
                content_key="",
                sealed_result=b"",
                input_tokens=1,
                cached_tokens=0,
                output_tokens=1,
            )
            for line in claimed
            if line.number in numbers
        ]
        async with database.acquire() as conn:
            for _ in range(2):
                await store_results(conn, batch, results)
            left = await conn.fetchval("SELECT open_lines FROM batches WHERE id = $1", batch.id)
        return json.loads(left)  # type: ignore[no-any-return]

    assert await end() == {"tiny": 3, "large": 1, "": 2}
    assert await end(1, 4, 6) == {"tiny": 2, "": 1}
    assert await end(2, 3, 5) == {}


async def test_open_lines_that_an_older_gateway_did_not_count_are_counted_with_the_next_lease(
    world: World, database: Database
) -> None:
    await world.create(file_of([chat_line("a")]))
    (batch,) = await lease_up_to_two(database, "old")
    async with database.transaction() as conn:
        await conn.execute(MAKE_POOLS, batch.project_id, ["tiny"])
        await lock_batch(conn, batch)
        await add_lines(conn, batch, [*LINES, NewLine(5, 0, 1, "my-route")])
        assert await begin_batch(conn, batch, 5)
        await claim_lines(conn, batch, 2)

    async def taken() -> dict[str, int]:
        """Have a gateway lease the batch; return the open lines that it counts, and check that they are stored."""
        async with database.acquire() as conn:
            await conn.execute(EXPIRE)
        (found,) = await lease_up_to_two(database, "new")
        async with database.transaction() as conn:
            assert await lock_batch(conn, found) == "in_progress"
            found = await begin_anew(conn, found)
            stored = await conn.fetchval("SELECT open_lines FROM batches WHERE id = $1", found.id)
        assert found.open_lines == json.loads(stored)
        return found.open_lines

    async with database.acquire() as conn:
        await conn.execute("UPDATE batches SET open_lines = '{}'")  # as it stays where an old gateway began it
    assert await taken() == {"tiny": 4, "": 1}
    async with database.acquire() as conn:  # a result that an old gateway stored
        await conn.execute("UPDATE batch_lines SET state = 'completed' WHERE number = 1")
        await conn.execute("UPDATE batches SET num_completed = 1")
    assert await taken() == {"tiny": 3, "": 1}


async def test_a_batch_some_of_whose_lines_the_database_lost_does_not_begin(world: World, database: Database) -> None:
    await world.create(file_of([chat_line("a")]))
    (batch,) = await lease_up_to_two(database, "gateway")
    async with database.transaction() as conn:
        await lock_batch(conn, batch)
        await add_lines(conn, batch, LINES[2:])  # a database that died lost the first ones
        assert not await begin_batch(conn, batch, len(LINES))
        assert await lock_batch(conn, batch) == "validating"
        await drop_lines(conn, batch)
        await add_lines(conn, batch, LINES)
        assert await begin_batch(conn, batch, len(LINES))


async def test_lines_that_are_lost_while_a_file_is_checked_run_all_the_same(world: World, database: Database) -> None:
    """The rows of the first lines vanish once, as from a database that dies before its disk has them."""
    async with database.acquire() as conn:
        await conn.execute("""
            CREATE TABLE losses (number integer);
            CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF NEW.number = 1 AND NOT EXISTS (SELECT FROM losses) THEN
                    INSERT INTO losses VALUES (1); RETURN NULL;
                END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER lose BEFORE INSERT ON batch_lines FOR EACH ROW EXECUTE FUNCTION lose();
        """)
    batch = await world.create(file_of(chat_line(str(n)) for n in range(300)))
    async with world.dispatching(Runner(lambda body, line: DONE)):
        ended = await world.ended(batch)
    assert (ended.row.num_completed, ended.row.num_failed) == (300, 0)


async def test_a_line_whose_run_raises_a_cancellation_is_begun_again(world: World) -> None:
    class Cancelling(Runner):
        """A runner whose first run raises CancelledError, as when a task that it awaits is cancelled."""

        has_cancelled = False

        async def run(self, *asked: object) -> object:  # type: ignore[override]
            if not self.has_cancelled:
                self.has_cancelled = True
                raise asyncio.CancelledError
            return await super().run(*asked)  # type: ignore[arg-type]

    batch = await world.create(file_of(chat_line(str(n)) for n in range(4)))
    async with world.dispatching(Cancelling(lambda body, line: DONE)):  # type: ignore[arg-type]
        ended = await world.ended(batch)
    assert (ended.row.num_completed, ended.row.num_failed) == (4, 0)
