"""The work that the agent of one host does on rows, for tests that need pools in some state and no engine."""

from __future__ import annotations

import datetime

from gateway.db.adapters.bases import register_base
from gateway.db.pool import Database
from gateway.db.pools import hosts, replicas, revisions
from gateway.db.pools.served import switch_revision
from gateway.domain.pools.capacity import Node, Placement
from gateway.domain.pools.states import ReplicaState

DIGEST, GIB = "d" * 64, 1 << 30
LEASE = datetime.timedelta(hours=1)


class Agent:
    """An agent of a host with 8 processors and 64 GiB of memory, which writes rows and starts no engine."""

    def __init__(self, database: Database, host_id: str = "host_1", name: str = "gpu-1") -> None:
        self._database = database
        self.host_id, self._name = host_id, name
        self.generation = 0

    async def claim(
        self, num_gpus: int = 0, *programs: str, placement: Placement = "local", force: bool = False
    ) -> None:
        async with self._database.acquire() as conn:
            generation = await hosts.claim_host(
                conn,
                self.host_id,
                self._name,
                lease=LEASE,
                num_processors=8 if placement == "local" else 0,
                memory_bytes=64 * GIB if placement == "local" else 0,
                gpu_bytes=[80 * GIB] * num_gpus,
                force=force or bool(programs),
                programs=programs,
                placement=placement,
            )
        assert generation is not None
        self.generation = generation

    async def tell_nodes(self, *nodes: Node) -> None:
        """Report the machines of a cluster."""
        async with self._database.acquire() as conn:
            await hosts.store_nodes(conn, self.host_id, self.generation, nodes)

    async def die(self) -> None:
        async with self._database.acquire() as conn:
            await hosts.release_host(conn, self.host_id, self.generation)

    async def prepare(
        self,
        pool_id: str,
        revision: int = 1,
        digest: str = DIGEST,
        *,
        num_bytes: int = 2 * GIB,
        folder: str = "/models/x",
    ) -> None:
        """Write that a revision's model is prepared.

        num_bytes: the memory that each replica takes.
        """
        async with self._database.acquire() as conn:
            await register_base(conn, digest, "base")
            await revisions.set_prepared(
                conn, pool_id, revision, folder=folder, base_digest=digest, num_bytes=num_bytes
            )

    async def begin(self, pool_id: str, revision: int = 1, gpu: int | None = None, why: str = "") -> str:
        """Write a replica that is loading; return its id.

        gpu: the index of the accelerator; None: the host's processors. why: the reason in the row.
        """
        async with self._database.acquire() as conn:
            made = await replicas.create_replica(conn, pool_id, revision, host_id=self.host_id, gpu=gpu)
            address = f"ipc:///run/{made.id}.sock"
            assert await replicas.begin_start(conn, made.id, self.generation, address=address, why=why) == 1
        return made.id

    async def move(self, replica_id: str, state: ReplicaState, why: str = "") -> None:
        """Change the state of a replica."""
        async with self._database.acquire() as conn:
            assert await replicas.move_replica(conn, replica_id, self.generation, 1, state, why, retry_after=LEASE)

    async def start(self, pool_id: str, revision: int = 1, gpu: int | None = None) -> str:
        """Start a replica until it is ready, and switch the pool to its revision; return the replica's id.

        gpu: as for `begin`.
        """
        replica_id = await self.begin(pool_id, revision, gpu)
        await self.move(replica_id, "ready")
        async with self._database.acquire() as conn:
            await switch_revision(conn, pool_id, revision)
        return replica_id

    async def ready(self, replica_id: str, address: str = "") -> None:
        """Make a replica that the planner created ready."""
        async with self._database.acquire() as conn:
            where = address or f"ipc:///run/{replica_id}.sock"
            assert await replicas.begin_start(conn, replica_id, self.generation, address=where) == 1
        await self.move(replica_id, "ready")

    async def serve(self, pool_id: str, revision: int = 1) -> None:
        """Make a prepared revision the one that a pool serves, whether or not a replica of it runs."""
        async with self._database.acquire() as conn:
            await switch_revision(conn, pool_id, revision)

    async def stop(self, replica_id: str) -> None:
        await self.move(replica_id, "stopped")
