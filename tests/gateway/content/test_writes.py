"""A failed write is counted and logged, whatever the reason; where there is no room, its smaller version is written."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs

from gateway.content.idempotency import Execution, Idempotency, Reply
from gateway.content.writes import Writes
from gateway.db.content.idempotency import Slot
from gateway.db.pool import Database
from gateway.domain.errors import Conflict
from gateway.support.cipher import Cipher
from tests.gateway.limits.fleet import make_key


@pytest.fixture
def lost() -> Counter:
    return Counter("lost", "x", ["kind"], registry=CollectorRegistry())


def num_lost(lost: Counter) -> float:
    return sum(sample.value for metric in lost.collect() for sample in metric.samples if sample.name == "lost_total")


async def test_an_unexpected_error_of_a_write_is_counted_and_logged(lost: Counter) -> None:
    async def broken() -> None:
        raise ValueError("not of the database")

    with capture_logs() as logs:
        await Writes(lost).begin("chat", 1, broken)
    assert [(line["event"], line["kind"]) for line in logs] == [("content_not_kept", "chat")]
    assert "not of the database" in logs[0]["error"]
    assert num_lost(lost) == 1


async def test_a_write_that_is_cut_off_between_two_tries_is_counted(lost: Counter) -> None:
    tried = asyncio.Event()

    async def fail() -> None:
        asyncio.get_running_loop().call_soon(tried.set)
        raise OSError

    task = Writes(lost).begin("chat", 1, fail)
    await tried.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert num_lost(lost) == 1


async def test_where_there_is_no_room_the_small_version_is_written(lost: Counter) -> None:
    written: list[str] = []

    async def whole() -> None:
        written.append("whole")

    async def small() -> None:
        written.append("small")

    writes = Writes(lost, max_bytes=10)
    await writes.begin("reply", 10, whole, small=small)
    await writes.begin("reply", 11, whole, small=small)
    await writes.begin("reply", 11, whole)
    assert written == ["whole", "small"]
    assert num_lost(lost) == 2


async def test_a_reply_without_room_is_recorded_as_ended_without_its_content(
    database: Database, dsn: str, cipher: Cipher, lost: Counter
) -> None:
    idempotency = Idempotency(database, cipher, Writes(lost, max_bytes=1))
    slot = Slot((await make_key(dsn, "acme")).project_id, b"k" * 32)
    execution = await idempotency.begin(slot, b"f", "req_first")
    assert isinstance(execution, Execution)
    await execution.finish(Reply(200, (), b"what was answered"))
    with pytest.raises(Conflict) as refused:
        await idempotency.begin(slot, b"f", "req_second")
    assert refused.value.code == "idempotency_reply_not_kept"
    assert num_lost(lost) == 1
