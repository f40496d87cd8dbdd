"""A cluster without room for one replica more: an old one makes room once the autoscaler has had its time."""

from __future__ import annotations

from gateway.db.pools.replicas import ReplicaRow
from tests.gateway.agent.ray.nodes import RayHost, needs_ray
from tests.installation.waiting import until

pytestmark = needs_ray

LET_TIME_PASS = "UPDATE replicas SET full_since = full_since - interval '6 minutes' WHERE full_since IS NOT NULL"


async def test_a_new_revision_takes_the_room_of_the_old_one_in_a_full_cluster(host: RayHost) -> None:
    host.variables["LORIKEET_NUM_THREADS"] = "2"  # as many as a node has
    pool = await host.pool(host.model(), num_replicas=2)
    host.agent()
    before = await host.ready(2, revision=1)
    wanted = await host.want(pool, str(host.model("other")))

    async def waits() -> list[ReplicaRow]:
        rows = [row for row in await host.replicas("starting") if row.full_since is not None]
        return rows if len(rows) == 2 else []

    waiting = await until(waits, host.log)
    assert all(row.why.startswith("waits for room on the nodes of the Ray cluster: it needs 2 CPU") for row in waiting)
    assert {row.id for row in await host.replicas("ready")} == {row.id for row in before}, "the old ones serve on"
    async with host.database.acquire() as conn:
        await conn.execute(LET_TIME_PASS)
    after = await host.ready(2, revision=wanted)
    assert {row.id for row in after} == {row.id for row in waiting}
    assert [row.full_since for row in after] == [None, None]
