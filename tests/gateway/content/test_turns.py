"""Requests with one idempotency key at two gateways take turns; replies are bounded, and PostgreSQL may be away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.content import idempotency as turns
from gateway.content.idempotency import Execution, Idempotency, Reply, Slot
from gateway.content.watches import Silence
from gateway.content.writes import Writes
from gateway.db.content import idempotency as rows
from gateway.db.pool import Database
from gateway.domain.errors import Conflict, LimitReached, Overloaded
from gateway.support.cipher import Cipher
from tests.gateway.conftest import House
from tests.gateway.limits.fleet import Key
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from gateway.db.pool import Connection

REPLY = Reply(200, (("content-type", "application/json"),), b"{}")
REQUEST = b"f" * 32


@pytest.fixture
def slot(tenant: Key) -> Slot:
    return Slot(tenant.project_id, b"k" * 32)


def gateway(database: Database, cipher: Cipher, *, wait_s: float = 10.0, lost_after_s: float = 0.3) -> Idempotency:
    lost = Counter("lost", "x", ["kind"], registry=CollectorRegistry())
    return Idempotency(database, cipher, Writes(lost), wait_s=wait_s, lost_after_s=lost_after_s)


class CallingDatabase(Database):
    """A database that calls `leaving` once, as soon as the next borrowed connection is returned."""

    leaving: Callable[[], Awaitable[object]] | None = None

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        leaving, self.leaving = self.leaving, None
        async with super().acquire() as conn:
            yield conn
        if leaving is not None:
            await leaving()


@pytest.fixture
async def two_gateways(tables: Database, cipher: Cipher) -> AsyncIterator[tuple[Idempotency, Idempotency]]:
    pair = gateway(tables, cipher), gateway(tables, cipher)
    yield pair
    for each in pair:
        await each.stop()


async def begin_execution(where: Idempotency, slot: Slot, request_id: str) -> Execution:
    execution = await where.begin(slot, REQUEST, request_id)
    assert isinstance(execution, Execution)
    return execution


async def test_the_second_request_waits_for_the_first_at_whichever_gateway_it_runs(
    two_gateways: tuple[Idempotency, Idempotency], slot: Slot
) -> None:
    execution = await begin_execution(two_gateways[0], slot, "req_first")
    waiting = [asyncio.create_task(where.begin(slot, REQUEST, "req_other")) for where in two_gateways for _ in range(5)]
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in waiting)
    await execution.finish(REPLY)
    for reply in await asyncio.gather(*waiting):
        assert isinstance(reply, Reply)
        assert (reply.body, reply.request_id) == (b"{}", "req_first")


async def test_after_a_refusal_one_of_the_waiting_requests_runs(
    two_gateways: tuple[Idempotency, Idempotency], slot: Slot
) -> None:
    execution = await begin_execution(two_gateways[0], slot, "req_first")
    waiting = [asyncio.create_task(where.begin(slot, REQUEST, f"req_{n}")) for where in two_gateways for n in range(5)]
    await asyncio.sleep(0.05)
    await execution.free()
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    (winner,) = (task.result() for task in done)
    assert isinstance(winner, Execution)
    await winner.finish(REPLY)
    replies = [task.result() for task in (await asyncio.wait(waiting))[0]]
    assert sum(isinstance(reply, Execution) for reply in replies) == 1


async def set_dead(database: Database, slot: Slot) -> None:
    """Set the last sign of life of a slot to more than a minute ago."""
    async with database.acquire() as conn:
        await conn.execute("UPDATE idempotency_keys SET alive_until = now() WHERE project_id = $1", slot.project_id)


async def is_alive(database: Database, slot: Slot) -> bool | None:
    async with database.acquire() as conn:
        return await rows.is_alive(conn, slot)


async def test_a_request_with_a_sign_of_life_in_time_is_not_lost(tables: Database, cipher: Cipher, slot: Slot) -> None:
    for lost_after_s in (0.4, 2.0, 10.0):  # longer where the machine is too busy to be in time
        here, there = gateway(tables, cipher), gateway(tables, cipher, lost_after_s=lost_after_s)
        execution = await begin_execution(here, slot, "req_first")
        await set_dead(tables, slot)  # nobody could reach the database, and now everybody can
        dead_s = time.monotonic()
        waiting = asyncio.create_task(there.begin(slot, REQUEST, "req_second"))
        await asyncio.wait([waiting], timeout=lost_after_s / 4)
        await here.give_sign_of_life()
        if time.monotonic() - dead_s < lost_after_s:
            break
        await execution.free()
        (second,) = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(second, Execution):
            await second.free()
    done, _ = await asyncio.wait([waiting], timeout=1.5 * lost_after_s)
    assert not done
    await execution.finish(REPLY)
    assert isinstance(await waiting, Reply)


async def test_a_request_that_stays_silent_is_lost_unless_its_reply_comes_after_all(
    tables: Database, two_gateways: tuple[Idempotency, Idempotency], slot: Slot
) -> None:
    execution = await begin_execution(two_gateways[0], slot, "req_first")
    await set_dead(tables, slot)
    for request_id in ("req_second", "req_third"):
        with pytest.raises(Conflict) as refused:
            await two_gateways[1].begin(slot, REQUEST, request_id)
        assert refused.value.code == "idempotency_reply_lost"
    await execution.finish(REPLY)
    assert isinstance(await two_gateways[1].begin(slot, REQUEST, "req_fourth"), Reply)


def test_silence_counts_only_while_the_database_answers() -> None:
    silence = Silence(lost_after_s=10)
    assert not silence.is_gateway_dead(False, 100)
    assert not silence.is_gateway_dead(False, 109)
    assert not silence.is_gateway_dead(None, 114)  # no answer
    assert not silence.is_gateway_dead(False, 130)
    assert not silence.is_gateway_dead(False, 139)
    assert silence.is_gateway_dead(False, 140)
    assert not silence.is_gateway_dead(True, 141)
    assert not silence.is_gateway_dead(False, 142)


async def test_the_end_of_a_freed_request_leaves_its_successor_running(
    house: House, tables: Database, cipher: Cipher, slot: Slot
) -> None:
    async with await CallingDatabase.connect(house.dsn) as database:
        where, is_written, is_over = gateway(database, cipher), asyncio.Event(), asyncio.Event()

        async def late() -> None:
            is_written.set()
            await is_over.wait()

        first = await begin_execution(where, slot, "req_first")
        database.leaving = late
        freeing = asyncio.create_task(first.free())
        await is_written.wait()
        second = await begin_execution(where, slot, "req_second")
        is_over.set()
        await freeing
        assert first.ended.is_set()
        await set_dead(tables, slot)
        await where.give_sign_of_life()
        assert await is_alive(tables, slot)
        await second.finish(REPLY)


async def test_a_claim_whose_connection_breaks_right_afterwards_leaves_the_key_free(
    house: House, cipher: Cipher, slot: Slot
) -> None:
    async def broken() -> None:
        raise ConnectionError

    async with await CallingDatabase.connect(house.dsn) as database:
        where = gateway(database, cipher)
        database.leaving = broken
        with pytest.raises(Overloaded):
            await where.begin(slot, REQUEST, "req_first")
        execution = await begin_execution(where, slot, "req_second")
        await execution.finish(REPLY)


async def test_a_claim_that_is_written_after_it_was_freed_is_freed_again(
    house: House, tables: Database, cipher: Cipher, slot: Slot
) -> None:
    async def broken() -> None:
        raise ConnectionError

    async with await CallingDatabase.connect(house.dsn) as database:
        where = gateway(database, cipher)
        database.leaving = broken
        with pytest.raises(Overloaded):
            await where.begin(slot, REQUEST, "req_first")
        await where.give_sign_of_life()
        async with tables.acquire() as conn:  # as a server does that was frozen
            assert await rows.claim_slot(
                conn, slot, fingerprint=REQUEST, request_id="req_first", alive=turns.ALIVE, lasts=turns.LASTS
            )
        await where.give_sign_of_life()
        assert await is_alive(tables, slot) is None


async def test_the_requests_that_wait_are_bounded_for_each_project(
    two_gateways: tuple[Idempotency, Idempotency], slot: Slot, stranger: Key
) -> None:
    execution = await begin_execution(two_gateways[0], slot, "req_first")
    large = turns.WAITING_BYTES_OF_ONE - turns.WAITER_BYTES
    waiting = asyncio.create_task(two_gateways[1].begin(slot, REQUEST, "req_second", num_bytes=large))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(Conflict) as refused:
            await two_gateways[1].begin(slot, REQUEST, "req_third")
    assert (refused.value.code, refused.value.should_retry) == ("idempotency_in_progress", True)
    theirs = Slot(stranger.project_id, slot.key_sha256)
    other = await begin_execution(two_gateways[0], theirs, "req_theirs")
    also_waiting = asyncio.create_task(two_gateways[1].begin(theirs, REQUEST, "req_also_theirs", num_bytes=large))
    done, _ = await asyncio.wait([also_waiting], timeout=0.1)
    assert not done
    await other.finish(REPLY)
    await execution.finish(REPLY)
    assert all(isinstance(reply, Reply) for reply in await asyncio.gather(waiting, also_waiting))


async def test_a_project_replays_at_a_bounded_pace(two_gateways: tuple[Idempotency, Idempotency], slot: Slot) -> None:
    large = Reply(200, (), bytes(turns.MAX_REPLY_BYTES))
    await (await begin_execution(two_gateways[0], slot, "req_first")).finish(large)
    most = int(turns.REPLAYS_BURST * turns.BYTES_PER_REPLAY / turns.MAX_REPLY_BYTES)
    with pytest.raises(LimitReached, match="stored replies") as refused:
        await asyncio.gather(*(two_gateways[1].begin(slot, REQUEST, f"req_{n}") for n in range(4 * most)))
    assert refused.value.retry_after_s


async def test_the_replies_being_recorded_are_bounded_for_each_project(
    two_gateways: tuple[Idempotency, Idempotency], slot: Slot, stranger: Key
) -> None:
    num_fit = turns.MAX_HELD_BYTES_OF_ONE // turns.MAX_REPLY_BYTES
    slots = [Slot(slot.project_id, bytes([n]) * 32) for n in range(num_fit + 1)]
    mine = [await begin_execution(two_gateways[0], each, f"req_{n}") for n, each in enumerate(slots)]
    assert all(each.hold(turns.MAX_REPLY_BYTES) for each in mine[:-1])
    assert not mine[-1].hold(1)
    theirs = await begin_execution(two_gateways[0], Slot(stranger.project_id, slot.key_sha256), "req_theirs")
    assert theirs.hold(turns.MAX_REPLY_BYTES)
    mine[0].release()
    assert mine[-1].hold(1)


async def test_a_request_waits_for_another_one_only_for_a_bounded_time(
    tables: Database, cipher: Cipher, slot: Slot
) -> None:
    first, impatient = gateway(tables, cipher), gateway(tables, cipher, wait_s=0.1)
    execution = await begin_execution(first, slot, "req_first")
    with pytest.raises(Conflict) as refused:
        await impatient.begin(slot, REQUEST, "req_second")
    assert (refused.value.code, refused.value.should_retry) == ("idempotency_in_progress", True)
    assert refused.value.retry_after_s == 1.0
    await execution.finish(REPLY)
    assert isinstance(await impatient.begin(slot, REQUEST, "req_third"), Reply)
    await impatient.stop()


async def test_a_reply_past_the_bound_is_not_kept_and_a_replay_says_so(
    two_gateways: tuple[Idempotency, Idempotency], slot: Slot
) -> None:
    execution = await begin_execution(two_gateways[0], slot, "req_first")
    assert execution.hold(turns.MAX_REPLY_BYTES)
    assert not execution.hold(1)
    await execution.finish(None)
    with pytest.raises(Conflict, match="too large") as refused:
        await two_gateways[1].begin(slot, REQUEST, "req_second")
    assert (refused.value.code, refused.value.should_retry) == ("idempotency_reply_not_kept", False)


async def test_an_abandoned_request_is_lost_at_once(two_gateways: tuple[Idempotency, Idempotency], slot: Slot) -> None:
    execution = await begin_execution(two_gateways[0], slot, "req_first")
    execution.abandon()
    await execution.ended.wait()
    with pytest.raises(Conflict) as refused:
        await two_gateways[1].begin(slot, REQUEST, "req_second")
    assert refused.value.code == "idempotency_reply_lost"


async def test_signs_of_life_keep_a_long_request_from_being_taken_for_lost(
    tables: Database, two_gateways: tuple[Idempotency, Idempotency], slot: Slot
) -> None:
    execution = await begin_execution(two_gateways[0], slot, "req_first")
    await set_dead(tables, slot)
    await two_gateways[0].give_sign_of_life()
    waiting = asyncio.create_task(two_gateways[1].begin(slot, REQUEST, "req_second"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await execution.finish(REPLY)
    assert isinstance(await waiting, Reply)


async def test_without_postgresql_nothing_with_a_key_runs(house: House, cipher: Cipher) -> None:
    database = await Database.connect(house.dsn)
    await database.close()
    with pytest.raises(Overloaded) as refused:
        await gateway(database, cipher).begin(Slot("proj_x", b"k"), REQUEST, "req_first")
    assert (refused.value.status, refused.value.param) == (503, "Idempotency-Key")
