"""A pool without replicas: its requests wait in the gateway for the first one, and only served requests are billed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from engine.protocol import SamplingParams
from gateway.assembly.services import Services, running_services
from gateway.db.pool import Database
from gateway.db.pools import pools, replicas
from gateway.db.pools.scaling_rows import set_scaling
from gateway.db.pools.served import list_served
from gateway.domain.errors import LimitReached, NoReplicaYet, Overloaded
from gateway.domain.limits.limit import Limit
from gateway.domain.pools.scaling import Bounds, Load
from gateway.domain.tenancy.principal import Principal
from gateway.pipeline.collected import Collected
from gateway.pipeline.context import RequestContext
from gateway.pipeline.requests import FieldNames, TextRequest
from gateway.pipeline.run import Run
from gateway.settings import Settings
from tests.gateway.limits.fleet import put_limit
from tests.gateway.live import BASE, FakeEngine, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.installation.waiting import until

NUM_REQUESTS = 100


class ColdPool:
    """The services of one gateway, over a pool without replicas until one is requested."""

    def __init__(self, services: Services, database: Database, principal: Principal, folder: Path, dsn: str) -> None:
        self.services, self.database, self.principal = services, database, principal
        self.dsn = dsn
        self.folder = folder
        self.engines: list[FakeEngine] = []

    @property
    def room_size(self) -> int:
        """The number of waiting requests."""
        return self.services.pools[BASE].serving.room.num_waiting

    async def admit(self, request_id: str) -> Run:
        context = RequestContext(
            principal=self.principal, request_id=request_id, endpoint="/v1/completions", model=BASE
        )
        names = FieldNames(prompt="prompt")
        asked = TextRequest(prompt="abc", names=names, sampling=SamplingParams(max_tokens=0), max_tokens=4, n=1)
        return await self.services.pipeline.complete(context, [asked])

    async def ask(self, request_id: str) -> Collected:
        run = await self.admit(request_id)
        try:
            (collected,) = await run.collect()
            return collected
        finally:
            run.close()

    async def begin(self, count: int, first: int = 0) -> list[asyncio.Task[Collected]]:
        """Start requests, and return their tasks once all of them wait."""
        before = self.room_size
        tasks = [asyncio.create_task(self.ask(f"req_{first + number}")) for number in range(count)]

        async def all_wait() -> bool:
            return self.room_size == before + count

        await until(all_wait, "they never waited")
        return tasks

    async def start_replica(self) -> None:
        address = f"ipc://{self.services.settings.run_dir}/first.sock"
        self.engines.append(await asyncio.to_thread(FakeEngine, address, self.folder))
        async with self.database.acquire() as conn:
            [pool] = await list_served(conn)
            await replicas.add_running_replica(conn, pool.row.id, 1, address)

    async def reported_loads(self) -> list[Load]:
        """Return the loads that this gateway has reported to the agents."""
        async with self.database.acquire() as conn:
            rows = await conn.fetch("SELECT load::text AS load FROM pool_loads")
        return [msgspec.json.decode(row["load"], type=Load) for row in rows]

    async def billed(self) -> list[str]:
        async with self.database.acquire() as conn:
            rows = await conn.fetch("SELECT request_id FROM usage_attempts")
        return sorted(row["request_id"] for row in rows)


@pytest.fixture
async def cold(dsn: str, database: Database, tmp_path: Path) -> AsyncIterator[ColdPool]:
    tenant = await make_tenant(dsn, "acme", "pirate", "1")
    folder = make_model_folder(tmp_path / "model")
    settings = Settings(data_dir=tmp_path, model=str(folder), model_name=BASE, cold_start_seconds=20.0)
    settings.run_dir.mkdir()
    async with running_services(settings, model_dir=folder, dsn=dsn) as services:
        principal = await services.authenticator.authenticate(f"Bearer {tenant.key}", "127.0.0.1")
        made = ColdPool(services, database, principal, folder, dsn)
        async with database.acquire() as conn:
            [pool] = await list_served(conn)
        async with database.transaction() as conn:
            await replicas.drain_replicas(conn, [each.id for each in pool.replicas], "drained by a test")
            await set_scaling(conn, pool.row.id, Bounds(0, 3))
            await pools.scale_pool(conn, pool.row.id, 0)

        async def is_cold() -> bool:
            return services.pools[BASE].serving.is_cold

        await until(is_cold)
        try:
            yield made
        finally:
            for engine in made.engines:
                engine.kill()


async def test_all_that_wait_are_served_by_the_first_replica_and_billed_once(cold: ColdPool) -> None:
    assert cold.services.pools.ready, "the gateway serves, since requests wait in it"
    tasks = await cold.begin(NUM_REQUESTS)

    async def is_told() -> bool:
        return [each.num_held for each in await cold.reported_loads()] == [NUM_REQUESTS]

    await until(is_told, "agents never heard of them")
    await cold.start_replica()
    for each in await asyncio.gather(*tasks):
        assert each.usage.completion_tokens == 4

    async def is_billed() -> bool:
        return await cold.billed() == sorted(f"req_{number}" for number in range(NUM_REQUESTS))

    await until(is_billed, "not all were billed, or one twice")


async def test_a_client_that_leaves_frees_its_place_and_its_reservation_and_is_not_billed(cold: ColdPool) -> None:
    owner = cold.principal
    limit = Limit("", owner.organization_id, owner.project_id, None, None, "concurrency", "none", 2, True, ())
    await put_limit(cold.dsn, limit)

    async def is_limited() -> bool:
        with ExitStack() as stack:
            try:
                for number in range(3):
                    stack.callback((await cold.admit(f"req_limit_{number}")).close)
            except LimitReached:
                return True
        return False

    await until(is_limited, "the gateway never heard of the limit")
    leaving, staying = await cold.begin(2)
    with pytest.raises(LimitReached):
        await cold.ask("req_refused")
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert cold.room_size == 1
    [another] = await cold.begin(1, first=2)
    await cold.start_replica()
    await staying
    assert (await another).usage.completion_tokens == 4

    async def is_billed() -> bool:
        return await cold.billed() == ["req_1", "req_2"]

    await until(is_billed)


async def test_requests_that_wait_are_refused_at_once_when_the_gateway_stops(cold: ColdPool) -> None:
    tasks = await cold.begin(3)
    cold.services.pools.rooms.leave()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(error, Overloaded) and error.retry_after_s


async def test_requests_that_wait_for_a_pool_that_is_removed_are_refused_at_once(cold: ColdPool) -> None:
    tasks = await cold.begin(2)
    async with cold.database.acquire() as conn:
        [pool] = await list_served(conn)
        await pools.remove_pool(conn, pool.row.id)
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(error, Overloaded) and not isinstance(error, NoReplicaYet)


async def test_the_load_of_a_pool_is_told_as_long_as_a_replica_is_wanted_though_none_starts(cold: ColdPool) -> None:
    async with cold.database.acquire() as conn:
        [pool] = await list_served(conn)
        await pools.scale_pool(conn, pool.row.id, 1)

    async def is_told() -> bool:
        return [each.num_held for each in await cold.reported_loads()] == [0]

    await until(is_told, "a replica stays wanted for ever")
