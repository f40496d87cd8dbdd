"""Lines that were begun but have no result when their batch ends are not billed, whenever their usage arrives."""

from __future__ import annotations

import asyncio
import datetime

from gateway.admin.traffic.requests import request_wire
from gateway.batches.runner import LineReply
from gateway.db.ledger.requests import find_request
from gateway.db.ledger.usage import UsageEvent, write_usage_events
from gateway.db.pool import Database
from gateway.domain.batches.line import BatchLine, request_id_of
from gateway.domain.errors import ModelNotFound
from tests.gateway.batches.jobs import chat_line, file_of
from tests.gateway.batches.test_dispatcher import DONE, Runner, World
from tests.gateway.batches.test_dispatcher import world as world
from tests.installation.waiting import until


async def test_what_a_killed_gateway_did_not_store_is_billed_to_nobody_once_its_batch_is_cancelled(
    world: World, dsn: str
) -> None:
    stuck = asyncio.Event()

    class Killed(Runner):
        """A store of results that takes the first line and no other."""

        async def run(self, *asked: object) -> object:  # type: ignore[override]
            if b"first" not in asked[2]:  # type: ignore[operator]
                await stuck.wait()
            return await super().run(*asked)  # type: ignore[arg-type]

    batch = await world.create(file_of([chat_line("0", "first"), *(chat_line(str(n)) for n in range(1, 4))]))
    lines = [request_id_of(batch.row.id, number) for number in range(1, 5)]
    async with await Database.connect(dsn) as database:

        async def begun() -> dict[int, datetime.datetime]:
            sql = "SELECT number, begun_at FROM batch_lines WHERE batch_id = $1 AND attempt > 0"
            async with database.acquire() as conn:
                return {row["number"]: row["begun_at"] for row in await conn.fetch(sql, batch.row.id)}

        async def write(*events: UsageEvent) -> None:
            async with database.transaction() as conn:
                await write_usage_events(conn, events)

        async with world.dispatching(Killed(lambda body, line: DONE)):  # type: ignore[arg-type]

            async def first_is_stored() -> bool:
                return (await world.status(batch)).row.num_completed == 1 and len(await begun()) == 4

            await until(first_is_stored, "nothing was done", pause_s=0.05)
            times = await begun()
            usages = [world.usage(line, times[number]) for number, line in enumerate(lines, 1)]
            # The ledger has the first two lines, and a second prompt of the second one.
            await write(usages[0], usages[1], world.usage(f"{lines[1]}.1", times[2]))
            async with database.acquire() as conn:  # the lease is over, as when its gateway is dead
                await conn.execute("UPDATE batches SET fence = fence + 1, leased_until = '-infinity'")
            await world.cancel(batch)
        async with world.dispatching(Runner(lambda body, line: DONE)):
            ended = await world.ended(batch)
        # The dead gateway's journal is read, and its engine tells what it has, only after the end.
        await write(usages[1], usages[2], world.usage(lines[3], times[4], attempt=8))
        async with database.acquire() as conn:
            sql = (
                "SELECT request_id, prompt_tokens, completion_tokens, discarded_tokens, cost_nanos FROM usage_attempts"
            )
            rows = {row["request_id"]: tuple(row.values())[1:] for row in await conn.fetch(sql)}
            listed = [await find_request(conn, usages[0].organization_id, line) for line in lines]
    assert [request_wire(row, "usd").status for row in listed if row is not None] == ["completed", *["cancelled"] * 3]
    assert (ended.row.status, ended.row.num_completed, ended.row.num_failed) == ("cancelled", 1, 3)
    assert ended.failures == {"batch_cancelled": 3}
    assert rows.pop(lines[0])[:2] == (usages[0].prompt_tokens, usages[0].completion_tokens)
    made = usages[0].completion_tokens + usages[0].discarded_tokens
    assert rows == dict.fromkeys((lines[1], f"{lines[1]}.1", *lines[2:]), (0, 0, made, 0))


async def test_a_line_that_is_refused_when_it_is_begun_again_is_billed_to_nobody(world: World, dsn: str) -> None:
    """A gateway is killed after it ran some documents of a line; the model is gone when another gateway begins
    the line again."""
    stuck = asyncio.Event()

    class Killed(Runner):
        """A runner whose lines do not end."""

        async def run(self, *asked: object) -> object:  # type: ignore[override]
            await stuck.wait()
            return await super().run(*asked)  # type: ignore[arg-type]

    def answer(body: bytes, line: BatchLine) -> LineReply:
        if b"gone" in body:
            raise ModelNotFound("tiny:adapter")
        return DONE

    batch = await world.create(file_of([chat_line("0", "gone"), chat_line("1", "stays")]))
    gone, stays = (request_id_of(batch.row.id, number) for number in (1, 2))
    async with await Database.connect(dsn) as database:

        async def begun() -> dict[int, datetime.datetime]:
            sql = "SELECT number, begun_at FROM batch_lines WHERE batch_id = $1 AND attempt > 0"
            async with database.acquire() as conn:
                return {row["number"]: row["begun_at"] for row in await conn.fetch(sql, batch.row.id)}

        async def are_begun() -> bool:
            return len(await begun()) == 2

        async with world.dispatching(Killed(lambda body, line: DONE)):  # type: ignore[arg-type]
            await until(are_begun, "nothing was begun", pause_s=0.05)
            times = await begun()
            async with database.acquire() as conn:  # the lease is over, as when its gateway is dead
                await conn.execute("UPDATE batches SET fence = fence + 1, leased_until = '-infinity'")
        usages = [world.usage(each, times[1]) for each in (gone, f"{gone}.1", f"{gone}.2")]
        usages.append(world.usage(stays, times[2], attempt=8))
        async with database.transaction() as conn:
            await write_usage_events(conn, usages[:2])
        async with world.dispatching(Runner(answer)):
            ended = await world.ended(batch)
        async with database.transaction() as conn:  # what the dead gateway's engine tells late
            await write_usage_events(conn, usages[2:])
        async with database.acquire() as conn:
            sql = "SELECT request_id, prompt_tokens + completion_tokens AS billed FROM usage_attempts"
            billed = {row["request_id"]: row["billed"] for row in await conn.fetch(sql)}
    assert (ended.row.status, ended.row.num_completed, ended.row.num_failed) == ("completed", 1, 1)
    assert billed.pop(stays) == usages[3].prompt_tokens + usages[3].completion_tokens
    assert billed == dict.fromkeys((gone, f"{gone}.1", f"{gone}.2"), 0)
