"""The agent of one host: holds its lease, plans all pools with the other agents, and tends the replicas of the host."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import math
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import structlog

from gateway.agent.commands import Command
from gateway.agent.draining import leave_host, resume_host
from gateway.agent.hardware import Hardware
from gateway.agent.launcher import Launcher
from gateway.agent.lease import Lease
from gateway.agent.models import Models
from gateway.agent.servers.programs import Programs
from gateway.agent.state_files import StateFiles
from gateway.agent.steps import Site, end_text
from gateway.agent.tending import Replicas
from gateway.db.changes import Change, ChangeFeed
from gateway.db.pool import FAILURES, Database
from gateway.db.pools.host_failures import clear_failures
from gateway.db.pools.hosts import announce_key, list_keys, store_nodes
from gateway.db.pools.planning import plan_pools
from gateway.db.pools.replicas import ReplicaRow, forget_stopped
from gateway.db.pools.revisions import prepare_again
from gateway.db.pools.scaling import scale_pools
from gateway.db.pools.scaling_rows import forget_loads
from gateway.db.pools.served import ServedPool, list_served
from gateway.domain.pools.capacity import Node
from gateway.domain.pools.plan import Action
from gateway.settings import Settings
from gateway.support.host import host_keys
from gateway.support.model_folders import on_this_machine

if TYPE_CHECKING:
    from engine.curve import KeyPair
    from gateway.db.pool import Connection

POLL_S = 1.0
"""Seconds between two reads of the rows while no change is announced."""

AWAY_PAUSE_S = 0.5
"""Seconds until another try where the database is away."""
FORGET_EVERY_S = 3600.0
STOPPED_RETENTION = datetime.timedelta(days=1)
"""The time for which rows of stopped replicas stay."""
LEAVE_S = 5.0
"""Seconds beyond LORIKEET_REPLICA_DRAIN_SECONDS that a leaving agent waits for its last replica to stop."""
FAILURES_TO_GIVE_UP = 5
"""The number of a replica's failures in a row after which an agent with `gives_up` ends."""

log = structlog.get_logger(__name__)


class CannotRun(Exception):
    """The error for a host on which no replica can be started, where waiting does not help; the message says why."""


class Agent:
    """The agent of one host, which works from `run` until it is canceled or superseded.

    gives_up: end with CannotRun where no engine can be started, rather than try for ever.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        hardware: Hardware,
        launcher: Launcher,
        command: Command,
        programs: Programs,
        *,
        gives_up: bool = False,
    ) -> None:
        """Prepare to tend the host of settings.data_dir.

        Raises OSError or BadKey: when this host's keys cannot be read, where its engines serve other machines.
        """
        self._database = database
        self._settings = settings
        self._keys = host_keys(settings.data_dir) if settings.has_link else None
        self._lease = Lease(database, settings.data_dir, hardware, programs, placement=settings.placement)
        self._launcher = launcher
        self._wake = asyncio.Event()
        site = Site(database, settings, hardware, launcher, command, self._lease, programs, self._keys)
        self._models = Models(database, settings, hardware, self._lease.host_id, changed=self._wake.set)
        self._replicas = Replicas(site, changed=self._wake.set, last_failure=self._models.last_failure)
        self._marks = StateFiles(settings.data_dir)
        self._told_nodes: list[Node] | None = None
        self._forget_at_s = 0.0
        self._leaves_by_s = math.inf
        """The latest time at which this agent ends; infinite until it begins to leave."""
        self._has_left = False
        self._has_begun = False
        self._gives_up = gives_up

    @property
    def is_leaving(self) -> bool:
        """Tell whether `leave` was called."""
        return math.isfinite(self._leaves_by_s)

    def leave(self) -> None:
        """Begin to leave the host: its replicas take no new requests, and `run` ends once they have finished."""
        self._leaves_by_s = _now_s() + self._settings.replica_drain_seconds + LEAVE_S
        self._wake.set()

    async def run(self) -> None:
        """Tend the host until canceled, or until it has been left.

        Raises Superseded: when another agent has the host.
        Raises CannotRun: when no engine can be started here and the agent was told to give up then.
        """
        self._marks.start()
        try:
            await self._run()
        finally:
            await self._marks.stop()

    async def _run(self) -> None:
        feed = ChangeFeed(self._database)
        feed.subscribe(self._note_change)
        await self._lease.claim()
        await feed.start()
        keeping = asyncio.create_task(self._lease.keep())
        working = asyncio.create_task(self._work_until_left())
        try:
            done, _ = await asyncio.wait([keeping, working], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (keeping, working):
                task.cancel()
            await asyncio.gather(keeping, working, return_exceptions=True)
            await self._models.stop()
            await feed.stop()

    async def end(self, *, stops_engines: bool, forced: asyncio.Event, is_superseded: bool = False) -> None:
        """Release the host.

        stops_engines: end its engines as well, which live on otherwise. forced: once this event is set, engines that
        are still ending are killed. is_superseded: another agent has the host, so nothing of it is touched.
        """
        if stops_engines and not is_superseded:
            await self._replicas.stop_all(forced)
        await self._replicas.leave(is_superseded=is_superseded)
        if not is_superseded:
            await self._lease.release(leaves_engines=not stops_engines)
        self._lease.close()

    def _note_change(self, change: Change | None) -> None:
        if change is None or change.table == "pools":
            self._wake.set()

    async def _work_until_left(self) -> None:
        while not self._has_left and _now_s() < self._leaves_by_s:
            self._wake.clear()
            await self._unless_database_is_away(self._tend_replicas)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()

    async def _unless_database_is_away(self, do: Callable[[], Awaitable[None]]) -> None:
        """Call `do`, which needs the database. If the database cannot be reached, log that and pause a moment.

        do: an action that raises an error of `FAILURES` if the database cannot be reached.
        """
        try:
            await do()
        except FAILURES as error:
            log.warning("database_away", error=str(error) or type(error).__name__)
            await asyncio.sleep(AWAY_PAUSE_S)

    async def _tend_replicas(self) -> None:
        busy = self._replicas.busy
        async with self._database.acquire() as conn:
            if not self._has_begun:
                await prepare_again(conn)  # this agent may have what the one before lacked
                await clear_failures(conn, self._lease.host_id)
                await resume_host(conn, self._lease.host_id, self._settings.data_dir)
                self._has_begun = True
            if self._keys is not None:
                await self._exchange_keys(conn, self._keys)
            await self._publish_nodes(conn)
            pools = await self._pools_on_this_machine(conn)
            if self.is_leaving:
                ids = [row.id for row in self._own_replicas(pools)]
                await leave_host(conn, self._lease.host_id, self._settings.data_dir, ids)
            await self._models.measure(pools)
            fitting = await self._models.fitting(conn, pools)
            for change in await scale_pools(conn, self._lease.host_id, self._lease.generation):
                log.info("pool_scaled", **msgspec.structs.asdict(change))
            for action in await plan_pools(conn, self._lease.host_id, self._lease.generation, fitting):
                log.info("planned", **_fields(action))
            pools = await self._pools_on_this_machine(conn)
            if _now_s() >= self._forget_at_s:
                self._forget_at_s = _now_s() + FORGET_EVERY_S
                await forget_stopped(conn, STOPPED_RETENTION)
                await forget_loads(conn)
                self._replicas.forget(pools)
        self._models.prepare(pools)
        await self._replicas.begin_due(pools, busy)
        own = self._own_replicas(pools)
        self._marks.set_ready(is_ready=not self.is_leaving and all(row.state == "ready" for row in own))
        self._has_left = self.is_leaving and not own
        if self._gives_up:
            self._check(pools)

    def _own_replicas(self, pools: Sequence[ServedPool]) -> list[ReplicaRow]:
        """Return the replicas of this host that have not been stopped."""
        return [row for pool in pools for row in pool.replicas if row.host_id == self._lease.host_id]

    async def _pools_on_this_machine(self, conn: Connection) -> list[ServedPool]:
        return [on_this_machine(each, self._settings) for each in await list_served(conn)]

    async def _exchange_keys(self, conn: Connection, own: KeyPair) -> None:
        """Publish this host's key, and let the holders of all published keys connect to its engines."""
        await announce_key(conn, self._lease.host_id, self._lease.host_name, own.public)
        await self._launcher.admit(await list_keys(conn))

    async def _publish_nodes(self, conn: Connection) -> None:
        nodes = self._launcher.nodes()
        if nodes is not None and nodes != self._told_nodes:
            await store_nodes(conn, self._lease.host_id, self._lease.generation, nodes)
            self._told_nodes = nodes

    # where nothing can be started

    def _check(self, pools: Sequence[ServedPool]) -> None:
        """Check that replicas can become ready here.

        Raises CannotRun: when no replica has ever been ready, and none can become ready.
        """
        replicas = [row for pool in pools for row in pool.replicas]
        if any(row.state == "ready" for row in replicas):
            self._gives_up = False
            return
        for pool in pools:
            wanted = pool.revisions.get(pool.row.wanted_revision)
            if wanted is not None and wanted.state == "failed":
                raise CannotRun(wanted.why)
        for row in replicas:
            ended = self._replicas.endings.get(row.id)
            if row.state != "failed" or ended is None or ended.generation != row.generation:
                continue
            if ended.returncode == os.EX_CONFIG:
                raise CannotRun(end_text(ended))
            if row.num_failures >= FAILURES_TO_GIVE_UP:
                raise CannotRun(
                    f"the engine failed {row.num_failures} times in a row; its last lines:\n{ended.last_lines}"
                )


def _fields(action: Action) -> dict[str, str]:
    values = {name: str(getattr(action, name)) for name in action.__struct_fields__}
    return {"action": type(action).__name__, **values}


def _now_s() -> float:
    return asyncio.get_running_loop().time()
