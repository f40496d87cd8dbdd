"""What the agent of one host does to rows, for tests that need pools in some state and no engine."""

from __future__ import annotations

import datetime

from gateway.db.adapters.bases import register_base
from gateway.db.pool import Database
from gateway.db.pools import hosts, replicas, revisions
from gateway.db.pools.served import switch_revision

DIGEST, GIB = "d" * 64, 1 << 30


class Agent:
    """What the agent of one host would do, as far as rows show it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._generation = 0

    async def claim(self, num_gpus: int = 0) -> None:
        async with self._database.acquire() as conn:
            generation = await hosts.claim_host(
                conn,
                "host_1",
                "gpu-1",
                lease=datetime.timedelta(minutes=5),
                num_processors=8,
                memory_bytes=64 * GIB,
                gpu_bytes=[80 * GIB] * num_gpus,
            )
            assert generation is not None
            self._generation = generation

    async def die(self) -> None:
        async with self._database.acquire() as conn:
            await hosts.release_host(conn, "host_1", self._generation)

    async def prepare(self, pool_id: str, revision: int = 1, digest: str = DIGEST) -> None:
        async with self._database.acquire() as conn:
            await register_base(conn, digest, "base")
            await revisions.set_prepared(
                conn, pool_id, revision, folder="/models/x", base_digest=digest, num_bytes=2 * GIB
            )

    async def start(self, pool_id: str, revision: int = 1, gpu: int | None = None) -> str:
        """Start a replica that becomes ready; return its id."""
        async with self._database.acquire() as conn:
            made = await replicas.create_replica(conn, pool_id, revision, host_id="host_1", gpu=gpu)
            address = f"ipc:///run/{made.id}.sock"
            generation = await replicas.begin_start(conn, made.id, self._generation, address=address)
            assert generation == 1
            assert await replicas.move_replica(conn, made.id, self._generation, 1, "ready")
            await switch_revision(conn, pool_id, revision)
        return made.id

    async def stop(self, replica_id: str) -> None:
        async with self._database.acquire() as conn:
            assert await replicas.move_replica(conn, replica_id, self._generation, 1, "stopped")
