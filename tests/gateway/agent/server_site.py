"""A host whose agent starts servers of another maker, a pool of them, and a gateway's connection to one."""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import asyncpg

from engine.config import model_digest
from engine.protocol import GenerateRequest, SamplingParams
from gateway.backends.engine.model import EngineModel
from gateway.backends.foreign.driver import ReplicaName
from gateway.backends.generation import Generation
from gateway.backends.pool import ManagedBackend
from gateway.db.adapters.bases import register_base
from gateway.db.organization.organizations import ensure_organization
from gateway.db.pools import pools, revisions
from gateway.db.pools.replicas import ReplicaRow
from gateway.domain.pools.drivers import Driver
from gateway.pools.foreign import ForeignServers
from tests.gateway.agent.site import Host
from tests.gateway.backends.foreign.backends import until
from tests.gateway.backends.scripted import ListSink


class Site:
    """A host, and a pool of servers that its agent starts."""

    def __init__(
        self,
        host: Host,
        folder: Path,
        model: str,
        driver: Driver,
        settings: Mapping[str, str],
        num_bytes: int = 1 << 20,
    ) -> None:
        """Set up a pool of servers that the host starts.

        folder: the folder of the servers' model, and of the files by which tests steer fake servers and read what they
        report. model: the model as an operator names it for the pool.
        """
        self.host = host
        self.folder = folder
        self.settings = dict(settings)
        self._model = model
        self._driver: Driver = driver
        self._num_bytes = num_bytes

    def fault(self, name: str) -> None:
        """Set the fault that fake servers have from now on; "" for none."""
        (self.folder / "fault").write_text(name)

    @property
    def command(self) -> list[str]:
        """The last command with which a server was started."""
        return (self.folder / "command").read_text().split("\n")

    async def pool(self, base: Path, *adapters: str, num_replicas: int = 1) -> pools.PoolRow:
        """Create a pool with a prepared model, whose servers are started with adapters of the store."""
        async with self.host.database.transaction() as conn:
            organization = await ensure_organization(conn, "default")
            pool = await pools.create_pool(conn, organization.id, "tiny", num_replicas=num_replicas)
            assert pool is not None
            await self._add(conn, pool, base, adapters)
        return pool

    async def unprepared_pool(self) -> pools.PoolRow:
        """Create a pool whose model, and whose servers' adapters, the agent has to prepare."""
        async with self.host.database.transaction() as conn:
            organization = await ensure_organization(conn, "default")
            pool = await pools.create_pool(conn, organization.id, "tiny", num_replicas=1)
            assert pool is not None
            await revisions.add_revision(
                conn, pool.id, self._model, self.settings, driver=self._driver, starts_servers=True
            )
        return pool

    async def revision(self, pool: pools.PoolRow, base: Path, *adapters: str) -> None:
        """Request another revision of the pool."""
        async with self.host.database.transaction() as conn:
            await pools.want_revision(conn, pool.id, await self._add(conn, pool, base, adapters))

    async def _add(
        self,
        conn: asyncpg.pool.PoolConnectionProxy[asyncpg.Record],
        pool: pools.PoolRow,
        base: Path,
        adapters: Sequence[str],
    ) -> int:
        digest = model_digest(base)
        made = await revisions.add_revision(
            conn, pool.id, self._model, self.settings, driver=self._driver, starts_servers=True
        )
        await register_base(conn, digest, "tiny")
        await revisions.set_prepared(
            conn,
            pool.id,
            made.revision,
            folder=str(base),
            base_digest=digest,
            num_bytes=self._num_bytes,
            adapters=adapters,
        )
        return made.revision

    def pids(self) -> list[int]:
        """Return the process ids of running servers."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if str(self.folder).encode() in command and state != "Z":
                    found.append(int(entry.name))
        return sorted(found)

    def close(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def connected_backend(
    site: Site, replica: ReplicaRow, base: Path
) -> AsyncIterator[tuple[ManagedBackend, ListSink]]:
    """Give the backend of a replica, made as in a gateway."""

    async def no_key(pool_id: str) -> str:
        raise AssertionError("the pool has no key: the server of each start has its own")

    async def no_own_key(project_id: str, pool_id: str) -> None:
        """Have no project bring a key."""

    def no_address(allows_private: bool) -> object:
        return no_key

    sink = ListSink()
    servers = ForeignServers(sink, no_key, no_address, ssl.create_default_context, no_own_key)  # type: ignore[arg-type]
    async with site.host.database.acquire() as database:
        (revision, *_) = await revisions.list_revisions(database, replica.pool_id)
    assert replica.address is not None
    backend = servers.connect(replica.address, revision, EngineModel.load(base), ReplicaName("tiny", replica.id))
    backend.start()
    try:
        await until(lambda: backend.health().ready)
        yield backend, sink
    finally:
        await backend.stop()


def token_request(prompt: list[int], adapter: str = "", max_tokens: int = 4, request_id: str = "req_1") -> Generation:
    """Return a request for a completion of token ids. adapter: the key of the adapter's content, "" for the base."""
    sampling = SamplingParams(max_tokens, temperature=0.0)
    return Generation(GenerateRequest(request_id, prompt, sampling, "tenant", adapter=adapter, meter=b"tag"))
