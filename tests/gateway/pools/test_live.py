"""A running gateway follows the rows of its pools: replicas come, drain, die and go, and no request is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.protocol import SamplingParams
from gateway.assembly.services import Services, running_services
from gateway.backends.pool import PoolRevision
from gateway.db.pool import Database
from gateway.db.pools import pools, replicas, revisions
from gateway.db.pools.served import list_served, switch_revision
from gateway.domain.balancing.replica import Asked
from gateway.domain.errors import ModelNotFound, Overloaded
from gateway.domain.tenancy.principal import Principal
from gateway.pipeline.collected import Collected
from gateway.pipeline.context import RequestContext
from gateway.pipeline.requests import FieldNames, TextRequest
from gateway.pools.first_pool import make_pool
from gateway.settings import Settings
from tests.gateway.live import BASE, FakeEngine, Tenant, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

SLOW = ("--tokens-per-s", "20")


class World:
    """The services of one gateway over one pool, with the pool's engines and rows."""

    def __init__(self, services: Services, database: Database, principal: Principal, folder: Path, run: Path) -> None:
        self.services = services
        self.database = database
        self.principal = principal
        self.folder = folder
        self._run = run
        self.engines: dict[str, FakeEngine] = {}

    async def add(self, *flags: str, revision: int = 1) -> str:
        """Start a replica's engine; return the replica's id, once this gateway is connected to it."""
        address = f"ipc://{self._run}/{len(self.engines)}.sock"
        engine = await asyncio.to_thread(FakeEngine, address, self.folder, *flags)
        async with self.database.acquire() as conn:
            row = await replicas.add_running_replica(conn, await self.pool_id(), revision, address)
        self.engines[row.id] = engine
        await until(lambda: self._is_connected(row.id))
        return row.id

    async def _is_connected(self, replica_id: str) -> bool:
        found = self.find(replica_id)
        return found is not None and found.backend.health().ready

    def find(self, replica_id: str) -> Any:
        revisions = self.services.pools[BASE].revisions
        return next((each for of in revisions if (each := of.find(replica_id))), None)

    async def pool_id(self) -> str:
        async with self.database.acquire() as conn:
            return (await list_served(conn))[0].row.id

    async def target(self) -> str:
        """Return the id of the replica to which the next request would go."""
        serving = self.services.pools[BASE].serving
        asked = Asked(tenant=self.principal.project_id)
        replica = serving.take(asked)
        serving.give(replica, asked)
        return replica.id

    async def drain(self, replica_id: str) -> None:
        async with self.database.acquire() as conn:
            await replicas.drain_replicas(conn, [replica_id], "drained by a test")

    async def ask(self, request_id: str, *, max_tokens: int = 4) -> Collected:
        context = RequestContext(
            principal=self.principal, request_id=request_id, endpoint="/v1/completions", model=BASE
        )
        names = FieldNames(prompt="prompt")
        asked = TextRequest(
            prompt="abc", names=names, sampling=SamplingParams(max_tokens=0), max_tokens=max_tokens, n=1
        )
        run = await self.services.pipeline.complete(context, [asked])
        try:
            (collected,) = await run.collect()
            return collected
        finally:
            run.close()

    async def attempts(self, request_id: str) -> list[tuple[int, str, int]]:
        """Wait for a request's last attempt in the ledger. Return number, finish reason and completion
        tokens of each.
        """

        async def settled() -> list[tuple[int, str, int]] | None:
            async with self.database.acquire() as conn:
                rows = await conn.fetch(
                    "SELECT attempt, finish_reason, completion_tokens FROM usage_attempts WHERE request_id = $1"
                    " ORDER BY attempt",
                    request_id,
                )
            return [tuple(row) for row in rows] if rows and rows[-1]["finish_reason"] in ("stop", "length") else None

        return await until(settled, "the ledger never got the answer")


@pytest.fixture
async def tenant(dsn: str) -> Tenant:
    return await make_tenant(dsn, "acme", "pirate", "1")


@pytest.fixture
async def world(dsn: str, database: Database, tenant: Tenant, tmp_path: Path) -> AsyncIterator[World]:
    folder = make_model_folder(tmp_path / "model")
    settings = Settings(data_dir=tmp_path, model=str(folder), model_name=BASE)
    settings.run_dir.mkdir()
    async with running_services(settings, model_dir=folder, dsn=dsn) as services:
        principal = await services.authenticator.authenticate(f"Bearer {tenant.key}", "127.0.0.1")
        world = World(services, database, principal, folder, settings.run_dir)
        first = (await _rows(world))[0]
        await world.drain(first)  # the engine of the settings, which does not run

        async def is_gone() -> bool:
            return world.find(first) is None

        await until(is_gone)
        try:
            yield world
        finally:
            for engine in world.engines.values():
                engine.kill()


async def _rows(world: World) -> list[str]:
    async with world.database.acquire() as conn:
        return [row.id for row in await replicas.list_all_replicas(conn)]


async def test_a_replica_serves_as_soon_as_its_row_is_there(world: World) -> None:
    with pytest.raises(Overloaded, match="no replica runs"):
        await world.ask("req_0")
    await world.add()
    assert (await world.ask("req_1")).usage.completion_tokens == 4


async def test_a_gateway_that_starts_waits_a_moment_for_its_replicas(world: World, dsn: str, tmp_path: Path) -> None:
    replica_id = await world.add()
    settings = Settings(data_dir=tmp_path, model=str(world.folder), model_name=BASE)
    async with running_services(settings, model_dir=world.folder, dsn=dsn) as another:
        await another.pools.find_replicas(PATIENCE_S)
        assert another.pools[BASE].ready
    world.engines[replica_id].kill()
    async with running_services(settings, model_dir=world.folder, dsn=dsn) as another:
        await another.pools.find_replicas(0.01)
        assert not another.pools[BASE].ready, "a row whose engine is gone keeps nobody waiting"


async def test_a_replica_that_drains_gets_nothing_while_another_is_ready(world: World) -> None:
    first, second = await world.add(), await world.add()
    async with world.database.acquire() as conn:
        await conn.execute("UPDATE replicas SET host_id = NULL, state = 'draining' WHERE id = $1", first)

    async def drains() -> bool:
        found = world.find(first)
        return found is not None and found.is_draining

    await until(drains)
    for number in range(8):
        assert await world.target() == second
        await world.ask(f"req_{number}")
    world.engines[second].kill()

    async def has_only_the_draining_one() -> bool:
        return bool(not world.find(second).backend.health().ready)

    await until(has_only_the_draining_one)
    assert (await world.ask("req_last")).usage.completion_tokens == 4


async def test_a_whole_reply_survives_the_death_of_its_replica_and_is_billed_once(world: World) -> None:
    dying = await world.add(*SLOW)
    asked = asyncio.create_task(world.ask("req_1", max_tokens=30))

    async def has_begun() -> bool:
        found = world.find(dying).backend
        return bool(found.num_in_flight) and any(stream.counts[0] > 2 for stream in found._requests._streams.values())

    await until(has_begun)
    await world.add()
    world.engines[dying].kill()
    assert (await asked).usage.completion_tokens == 30
    attempts = await world.attempts("req_1")
    assert [(number, reason) for number, reason, _ in attempts] == [(0, "superseded"), (1, "length")]
    assert [tokens for *_, tokens in attempts] == [0, 30]


async def test_a_frozen_replica_costs_seconds_and_what_it_tells_later_is_nobodys(world: World) -> None:
    frozen = await world.add(*SLOW)
    asked = asyncio.create_task(world.ask("req_1", max_tokens=30))

    async def has_begun() -> bool:
        return any(stream.counts[0] > 2 for stream in world.find(frozen).backend._requests._streams.values())

    await until(has_begun)
    await world.add()
    with world.engines[frozen].frozen():
        assert (await asked).usage.completion_tokens == 30
    await until(lambda: world._is_connected(frozen))
    attempts = await world.attempts("req_1")
    assert attempts == [(0, "superseded", 0), (1, "length", 30)]
    await world.ask("req_2")
    assert await world.attempts("req_1") == attempts, "the engine has told by now"


async def test_a_pool_moves_to_its_next_revision_without_a_refusal(world: World) -> None:
    await world.add()
    pool_id = await world.pool_id()
    async with world.database.acquire() as conn:
        [served] = await list_served(conn)
        old = served.revisions[1]
        await revisions.add_revision(conn, pool_id, old.model, {"max_num_seqs": "8"})
        assert old.folder is not None and old.base_digest is not None
        await revisions.set_prepared(conn, pool_id, 2, folder=old.folder, base_digest=old.base_digest, num_bytes=None)
        await pools.want_revision(conn, pool_id, 2)
    new = await world.add(revision=2)
    stop = asyncio.Event()

    async def keep_asking() -> int:
        count = 0
        while not stop.is_set():
            assert (await world.ask(f"req_{count}")).usage.completion_tokens == 4
            count += 1
        return count

    asking = asyncio.create_task(keep_asking())
    async with world.database.acquire() as conn:
        assert await switch_revision(conn, pool_id, 2)

    async def has_switched() -> bool:
        return world.services.pools[BASE].serving.find(new) is not None

    await until(has_switched)
    async with world.database.acquire() as conn:
        [served] = await list_served(conn)
        await replicas.drain_replicas(conn, [row.id for row in served.replicas if row.revision == 1], "replaced")

    async def old_is_gone() -> bool:
        return world.services.pools[BASE].others == []

    await until(old_is_gone)
    stop.set()
    assert await asking > 0


async def test_a_request_whose_revision_is_gone_goes_to_the_next_one(world: World) -> None:
    await world.add()
    pool = world.services.pools[BASE]
    old = pool.serving
    new = PoolRevision(BASE, old.model, list(old), base_digest=old.model.digest)
    pool.serve(new, [old, new])
    for replica in list(old):
        old.remove(replica.id)
    assert old.any_ready() is next(iter(new))
    other_base = PoolRevision(BASE, old.model, list(new), base_digest="e" * 64)
    pool.serve(other_base, [old, other_base])
    assert old.any_ready() is None
    for replica in list(new):  # as it was, for whoever ends the connections
        old.add(replica)


async def test_until_a_gateway_is_connected_to_the_next_revision_the_one_before_serves(world: World) -> None:
    await world.add()
    pool_id = await world.pool_id()
    async with world.database.acquire() as conn:
        [served] = await list_served(conn)
        old = served.revisions[1]
        assert old.folder is not None and old.base_digest is not None
        await revisions.add_revision(conn, pool_id, old.model, {})
        await revisions.set_prepared(conn, pool_id, 2, folder=old.folder, base_digest=old.base_digest, num_bytes=None)
        await pools.want_revision(conn, pool_id, 2)
        late = await replicas.add_running_replica(conn, pool_id, 2, "ipc:///nowhere")
        assert await switch_revision(conn, pool_id, 2)

    async def knows_the_late_one() -> bool:
        return world.find(late.id) is not None

    await until(knows_the_late_one)
    assert (await world.ask("req_1")).usage.completion_tokens == 4


async def test_a_pool_is_there_for_those_whom_it_lists_alone(world: World) -> None:
    await world.add()
    pool_id, owner = await world.pool_id(), world.principal

    async def refused() -> bool:
        try:
            await world.services.resolver.resolve(world.principal, BASE)
        except ModelNotFound:
            return True
        return False

    async def allowed() -> bool:
        return not await refused()

    async with world.database.acquire() as conn:
        await pools.set_access(conn, pool_id, "listed", [])
    await until(refused)
    assert await world.services.resolver.list_routes(world.principal) == []
    for grant in (
        pools.Grant(owner.organization_id, None),
        pools.Grant(owner.organization_id, owner.project_id),
    ):
        async with world.database.acquire() as conn:
            await pools.set_access(conn, pool_id, "listed", [grant])
        await until(allowed)
        async with world.database.acquire() as conn:
            await pools.set_access(conn, pool_id, "listed", [])
        await until(refused)


@pytest.mark.parametrize("name", [None, "tokenizer.json", "chat_template.jinja", "config.json"])
async def test_a_model_that_cannot_be_read_leaves_the_others_alone(
    world: World, tmp_path: Path, name: str | None
) -> None:
    await world.add()
    folder = tmp_path / "broken"
    if name is not None:
        (make_model_folder(folder) / name).write_text("{% if")
    async with world.database.acquire() as conn, conn.transaction():
        assert await make_pool(conn, "broken", model="x", folder=folder, base_digest="e" * 64, address="ipc:///nowhere")
    async with world.database.acquire() as conn, conn.transaction():
        assert await make_pool(
            conn, "good", model="x", folder=world.folder, base_digest="d" * 64, address="ipc:///nowhere"
        )

    async def knows_the_good_one() -> bool:
        return "good" in world.services.pools

    await until(knows_the_good_one)
    assert "broken" not in world.services.pools
    assert (await world.ask("req_1")).usage.completion_tokens == 4


async def test_a_removed_pool_is_gone_at_once_and_what_runs_there_ends(world: World) -> None:
    replica = await world.add(*SLOW)
    asked = asyncio.create_task(world.ask("req_1", max_tokens=20))

    async def runs() -> bool:
        return bool(world.find(replica).backend.num_in_flight == 1)

    await until(runs)
    async with world.database.acquire() as conn:
        await pools.remove_pool(conn, await world.pool_id())

    async def is_gone() -> bool:
        return BASE not in world.services.pools

    await until(is_gone)
    with pytest.raises(ModelNotFound):
        await world.ask("req_2")
    assert (await asked).usage.completion_tokens == 20


async def test_a_gateway_that_ends_waits_for_replicas_that_are_gone_from_the_rows_too(world: World) -> None:
    replica = await world.add(*SLOW)
    asked = asyncio.create_task(world.ask("req_1", max_tokens=20))
    backend = world.find(replica).backend

    async def runs() -> bool:
        return bool(backend.num_in_flight == 1)

    await until(runs)
    await world.drain(replica)

    async def is_gone() -> bool:
        return world.find(replica) is None

    await until(is_gone)
    assert backend in world.services.pools.connected
    assert (await asked).usage.completion_tokens == 20

    async def is_left() -> bool:
        return backend not in world.services.pools.connected

    await until(is_left)
