"""The steps of one replica: start its engine, try, drain and end it, and update its row.

Each step ends by writing the replica's row, so that rows say how far steps came. A step touches an engine only while
its agent holds the host's lease. Knows nothing of when a step is due.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from engine.config import UnsupportedModel, load_model_config, model_digest
from engine.curve import KeyPair, Peer
from gateway.agent.commands import Command, engine_environ
from gateway.agent.follower import Follower, ProbeFailed
from gateway.agent.hardware import Hardware
from gateway.agent.launcher import (
    CannotReach,
    CannotStart,
    Engine,
    EngineEnd,
    Launcher,
    LaunchPlace,
    LaunchRequest,
    LaunchSpec,
    NoMachineYet,
)
from gateway.agent.servers.commands import server_command, server_environ, socket_path, write_key
from gateway.agent.servers.follower import ServerFollower
from gateway.agent.servers.plan import plan_of_server
from gateway.agent.servers.programs import Programs
from gateway.db.pool import Database
from gateway.db.pools.replicas import ReplicaRow, await_start, begin_start, move_replica, note_software
from gateway.db.pools.revisions import RevisionRow, set_revision_state
from gateway.db.pools.served import ServedPool
from gateway.domain.pools.addresses import address_of_socket
from gateway.domain.pools.capacity import thread_share
from gateway.domain.pools.foreign_settings import parse_foreign_settings
from gateway.domain.pools.settings import engine_config
from gateway.domain.pools.states import ReplicaState
from gateway.settings import Settings
from gateway.support.host import host_keys

FIRST_RETRY_S, MAX_RETRY_S = 0.5, 30.0
NOT_YET_RETRY_S = 1.0
"""Seconds until a replica without a machine is tried again."""

HEALTHY_S = 30.0
"""Seconds of service after which a replica's earlier failures are forgotten."""

GRACE_S = 2.0
"""Seconds for which a draining replica must be idle before it is stopped: gateways learn meanwhile that it drains."""

CONNECT_S = 1.0
"""Seconds that a loaded replica waits before it is ready while others serve, so that gateways can connect to it."""

STOP_S = 15.0
"""Seconds that an engine has to end by itself before it is killed."""

OVERDUE_STOP_S = 2.0
"""Seconds that an engine has to end by itself after the time for its requests is over."""

NO_ANSWER = "it does not answer any more"
POLL_S = 0.1
"""Seconds between two questions whether a replica has nothing to do."""
WHY_CHARS = 400
"""The most characters of the reason in a replica's row."""

Step = Coroutine[None, None, None]

log = structlog.get_logger(__name__)


class Lease(Protocol):
    """The agent's right to change the replicas of its host."""

    @property
    def host_id(self) -> str:
        """The host that the agent has."""

    @property
    def generation(self) -> int:
        """The number of the agent's turn on the host; higher with each agent."""

    @property
    def held_s(self) -> float:
        """Seconds for which no other agent can have the host; 0 or less: another one can."""

    async def confirm(self) -> None:
        """Renew the agent's lease of the host, which shows that no other agent has it.

        Raises Superseded: when another agent has the host.
        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """


class Site(msgspec.Struct, frozen=True):
    """The parts of the agent that all replicas of this host share."""

    database: Database
    settings: Settings
    hardware: Hardware
    """The hardware of this host."""
    launcher: Launcher
    """The launcher, which starts and stops the engines."""
    command: Command
    """The function that returns the command of an engine."""
    lease: Lease
    """The right to change the replicas of this host."""
    programs: Programs
    """The programs of servers of other makers."""
    keys: KeyPair | None = None
    """The keys of this host; None where its engines serve this machine alone."""


class ServedReplica(msgspec.Struct, frozen=True):
    """A replica of this host, with its pool and revision."""

    row: ReplicaRow
    """The replica's row."""
    pool: ServedPool
    revision: RevisionRow


class Steps:
    """The steps of all replicas of this host.

    changed: called when rows and engines are to be compared again.
    """

    def __init__(self, site: Site, changed: Callable[[], None]) -> None:
        self.endings: dict[str, EngineEnd] = {}
        """The last end of the engine of each replica, by replica."""
        self._site = site
        self._changed = changed
        self._followers: dict[tuple[str, int], Follower | ServerFollower] = {}
        self._num_failures: dict[str, int] = {}
        self._ready_since_s: dict[str, float] = {}
        self._retry_at_s: dict[str, float] = {}
        site.launcher.watch(self._note_end)

    async def start(self, served: ServedReplica, num_engines: int) -> None:
        """Start the engine of a replica.

        num_engines: the number of engines that shall compute on this host's processors.
        """
        site, row, revision = self._site, served.row, served.revision
        plan = self._server_plan if revision.starts_servers else self._engine_plan
        try:
            spec_of = await asyncio.to_thread(plan, served, num_engines)
        except (OSError, ValueError) as error:
            await self._fail(row, str(error), MAX_RETRY_S)
            return

        asked, public_key = self._launch_request(served), None

        async def begin(place: LaunchPlace) -> LaunchSpec | None:
            nonlocal public_key
            try:
                spec = spec_of(place)
            except OSError as error:
                raise CannotStart(str(error)) from None
            async with site.database.acquire() as conn:
                generation = await begin_start(
                    conn, row.id, site.lease.generation, address=spec.address, public_key=spec.public_key
                )
            if generation is None:
                return None
            assert generation == spec.generation, "only the holder of the lock starts a replica"
            public_key = spec.public_key
            return spec

        try:
            engine = await site.launcher.start(asked, begin)
        except NoMachineYet as waits:
            await self._note_waiting(row, str(waits), is_full=waits.is_full)
        except CannotReach as waits:
            await self._note_waiting(row, str(waits), is_full=False)
        except CannotStart as refusal:
            await self._fail(row, str(refusal), MAX_RETRY_S)
        else:
            if engine is not None:
                self.endings.pop(row.id, None)
                self._follow_engine(engine, revision, public_key)
                log.info("engine_started", replica=row.id, generation=engine.generation, pid=engine.pid)

    def _launch_request(self, served: ServedReplica) -> LaunchRequest:
        """Return the needs of a replica's engine: model, device, memory and labels."""
        row, revision = served.row, served.revision
        config = engine_config(self._site.settings.engine, revision.engine_settings)
        return LaunchRequest(
            row.id,
            row.generation + 1,
            str(revision.folder),
            revision.base_digest or "",
            config.device,
            config.num_threads or 1,
            revision.num_bytes or 0,
            served.pool.row.placement,
            served.pool.row.exclusion,
        )

    async def _note_waiting(self, row: ReplicaRow, why: str, *, is_full: bool) -> None:
        """Record why a replica has no machine yet, and try again later. Waiting is no failure.

        is_full: True if machines are there and have no room; False if it is not known whether they have.
        """
        self._retry_at_s[row.id] = _now_s() + NOT_YET_RETRY_S
        async with self._site.database.acquire() as conn:
            await await_start(conn, row.id, self._site.lease.generation, row.generation, why, is_full=is_full)
        asyncio.get_running_loop().call_later(NOT_YET_RETRY_S, self._changed)

    def _engine_plan(self, served: ServedReplica, num_engines: int) -> Callable[[LaunchPlace], LaunchSpec]:
        """Return the function that returns how an engine of our own is started at the place that was chosen for it.

        num_engines: the number of engines that share the host's processors.

        Raises OSError or ValueError: when the model's folder, the settings or the accelerator cannot be used.
        """
        site, row, revision = self._site, served.row, served.revision
        config = engine_config(site.settings.engine, revision.settings)
        folder, num_threads, gpu = self._place(served, config.num_threads, num_engines)
        unattended_s = site.settings.unattended_minutes * 60
        config = msgspec.structs.replace(
            config, model_dir=str(folder), num_threads=num_threads, unattended_s=unattended_s
        )

        def spec(place: LaunchPlace) -> LaunchSpec:
            placed = msgspec.structs.replace(
                config,
                endpoint=place.endpoint,
                link_dir=place.link_dir,
                device=config.device if place.device is None else place.device,
                num_threads=config.num_threads if place.num_threads is None else place.num_threads,
                adapter_cache_dir=config.adapter_cache_dir if place.cache_dir is None else place.cache_dir,
            )
            environ = engine_environ(os.environ, gpu)
            return LaunchSpec(row.generation + 1, place.address, site.command(placed), environ, place.public_key)

        return spec

    def _server_plan(self, served: ServedReplica, num_engines: int) -> Callable[[LaunchPlace], LaunchSpec]:
        """Return the function that returns how a server of another maker is started, on a socket of this machine.

        num_engines: the number of engines that share the host's processors.

        Raises OSError or ValueError: when the program, the model's folder or the accelerator cannot be used.
        """
        site, row, revision = self._site, served.row, served.revision
        if site.settings.placement != "local":
            raise ValueError(
                f"LORIKEET_PLACEMENT={site.settings.placement} starts engines of Lorikeet alone: servers of other "
                "makers have sockets of their own machine"
            )
        settings = parse_foreign_settings(revision.settings)
        folder, num_threads, gpu = self._place(served, settings.num_threads, num_engines)
        server = plan_of_server(site.settings, site.programs, served.pool.row.name, revision, folder, num_threads, gpu)

        def spec(place: LaunchPlace) -> LaunchSpec:
            generation = row.generation + 1
            socket = socket_path(site.settings.run_dir, row.id, generation)
            environ = server_environ(server, write_key(socket), os.environ)
            return LaunchSpec(generation, address_of_socket(str(socket)), server_command(server, socket), environ)

        return spec

    def _place(self, served: ServedReplica, num_threads: int, num_engines: int) -> tuple[Path, int, str | None]:
        """Return the folder of a replica's model, its threads, and the name by which CUDA knows its accelerator.

        num_threads: the number in the settings. num_engines: the number of engines that share the host's processors.

        Raises OSError or ValueError: when the folder cannot be read or holds another model than it did, the settings do
        not fit, or the accelerator is not there.
        """
        site, row, revision = self._site, served.row, served.revision
        folder = Path(str(revision.folder))
        if model_digest(folder) != revision.base_digest:
            raise ValueError(f"{folder} holds another model than when the revision was prepared")
        if row.gpu is None:
            return folder, thread_share(num_threads, site.hardware.num_processors, num_engines), None
        if row.gpu >= len(site.hardware.gpu_names):
            raise ValueError(f"GPU {row.gpu} is not there: this host has {len(site.hardware.gpu_names)}")
        return folder, num_threads, site.hardware.gpu_names[row.gpu]

    async def probe(self, served: ServedReplica, follower: Follower | ServerFollower) -> None:
        """Try a loaded engine, and let it serve. The adapters that the replicas before it have must work too."""
        row = served.row
        try:
            model = load_model_config(str(served.revision.folder))
            await follower.probe(model.vocab_size, model.task)
            try:
                for key in self._residents(served):
                    await follower.probe_adapter(key)
            except ProbeFailed as failed:
                if not follower.is_connected:
                    raise
                await self._refuse(served, str(failed))
                raise
        except (ProbeFailed, UnsupportedModel) as failed:
            engine = self._site.launcher.running().get(row.id)
            if engine is not None and engine.generation == row.generation:
                await self.kill(row, engine, str(failed))
            return
        if any(other.state == "ready" for other in served.pool.replicas):
            await asyncio.sleep(CONNECT_S)
        await self._note_software(row, follower)
        self._ready_since_s[row.id] = _now_s()
        await self._set_state(row, "ready")
        log.info("replica_ready", replica=row.id, generation=row.generation)

    async def _note_software(self, row: ReplicaRow, follower: Follower | ServerFollower) -> None:
        """Record the version of Lorikeet that an engine of our own has told."""
        welcome = follower.welcome if isinstance(follower, Follower) else None
        if welcome is None or not welcome.software:
            return
        protocol = f"{welcome.version}.{welcome.minor}"
        async with self._site.database.acquire() as conn:
            lease = self._site.lease.generation
            await note_software(conn, row.id, lease, row.generation, welcome.software, protocol)

    def _residents(self, served: ServedReplica) -> list[str]:
        """Return the adapters of other replicas of the pool on this host that have the same base."""
        keys: dict[str, None] = {}
        for other in served.pool.replicas:
            revision = served.pool.revisions.get(other.revision)
            follower = self._followers.get((other.id, other.generation))
            if other.revision == served.revision.revision or revision is None or follower is None:
                continue
            if revision.base_digest == served.revision.base_digest:
                keys.update(dict.fromkeys(follower.resident))
        return sorted(keys)

    async def record_loss(self, served: ServedReplica) -> None:
        """Record that the engine of a replica ended by itself."""
        row = served.row
        ended = self.endings.get(row.id)
        if ended is None or ended.generation != row.generation:
            await self._fail(row, "its process is gone")
            return
        why, can_never_run = end_text(ended), ended.returncode == os.EX_CONFIG
        if can_never_run:
            await self._refuse(served, why)
        await self._fail(row, why, MAX_RETRY_S if can_never_run else 0.0)

    async def _refuse(self, served: ServedReplica, why: str) -> None:
        """Give up a wanted revision at once, without further attempts."""
        pool = served.pool.row
        if pool.revision is not None and pool.revision != served.row.revision:
            async with self._site.database.acquire() as conn:
                await set_revision_state(conn, pool.id, served.row.revision, "failed", why)

    async def drain(self, row: ReplicaRow, engine: Engine | None, revision: RevisionRow) -> None:
        """Stop a replica once it has nothing to do, or its time is over.

        engine: None where no process is seen to live.
        """
        if engine is not None or (self._site.launcher.unseen_s and row.address is not None):
            follower = self.follow(row, revision)
            end_s = _now_s() + self._site.settings.replica_drain_seconds
            idle_since_s = _now_s()
            while _now_s() < end_s and _now_s() - idle_since_s < GRACE_S:
                await asyncio.sleep(POLL_S)
                if follower.is_connected and not follower.is_idle:
                    idle_since_s = _now_s()
            engine = self._site.launcher.running().get(row.id, engine)
            if engine is not None:
                await self.end(engine, STOP_S if _now_s() < end_s else OVERDUE_STOP_S)
        await self._set_state(row, "stopped", row.why)
        log.info("replica_stopped", replica=row.id, why=row.why)

    async def record_silence(self, row: ReplicaRow) -> None:
        """Record that a replica which served does not answer; it is tried again once it answers."""
        await self._set_state(row, "loading", NO_ANSWER)
        log.warning("replica_silent", replica=row.id, generation=row.generation)

    async def kill(self, row: ReplicaRow, engine: Engine, why: str) -> None:
        """Kill an engine that does not serve as it should, and record why the replica failed."""
        await self.end(engine, 0.0)
        await self._fail(row, why)

    async def end(self, engine: Engine, grace_s: float) -> None:
        """End an engine, as long as this agent holds the host's lease.

        grace_s: seconds after which the process is killed.
        """
        await self._site.lease.confirm()
        await self._site.launcher.stop(engine, grace_s)

    async def put_off(self, row: ReplicaRow, why: str) -> None:
        """Record why a replica cannot be started now."""
        await self._fail(row, why, MAX_RETRY_S)

    async def _fail(self, row: ReplicaRow, why: str, least_retry_s: float = 0.0) -> None:
        """Record why a replica does not serve, and when it is tried again.

        least_retry_s: the least seconds until then; the pause grows with each failure.
        """
        served_s = _now_s() - self._ready_since_s.pop(row.id, _now_s())
        count = 1 if served_s >= HEALTHY_S else self._num_failures.get(row.id, row.num_failures) + 1
        self._num_failures[row.id] = count
        retry_s = max(least_retry_s, min(FIRST_RETRY_S * 2 ** min(count - 1, 30), MAX_RETRY_S))
        self._retry_at_s[row.id] = _now_s() + retry_s
        await self._set_state(row, "failed", why, retry_s)
        log.warning("replica_failed", replica=row.id, generation=row.generation, why=why, retry_s=retry_s)
        asyncio.get_running_loop().call_later(retry_s, self._changed)

    def is_due(self, replica_id: str) -> bool:
        """Tell whether a replica that failed is to be tried again, by this host's own clock.

        The database's clock, by which the replica's row names the time to people, may be hours off. A new agent does
        not wait for the end of a pause that another agent began.
        """
        return _now_s() >= self._retry_at_s.get(replica_id, 0.0)

    def forget(self, replica_ids: set[str]) -> None:
        """Forget the state of all replicas but those given. replica_ids: the replicas whose state stays."""
        for remaining in (self.endings, self._num_failures, self._ready_since_s, self._retry_at_s):
            for replica_id in remaining.keys() - replica_ids:
                del remaining[replica_id]

    async def _set_state(self, row: ReplicaRow, state: ReplicaState, why: str = "", retry_s: float = 0.0) -> None:
        async with self._site.database.acquire() as conn:
            await move_replica(
                conn,
                row.id,
                self._site.lease.generation,
                row.generation,
                state,
                why,
                retry_after=datetime.timedelta(seconds=retry_s),
            )

    def follow(self, row: ReplicaRow, revision: RevisionRow) -> Follower | ServerFollower:
        """Return the connection to the engine of a replica, begun where there is none."""
        assert row.address is not None
        return self._follow_engine(Engine(row.id, row.generation, row.address, None), revision, row.public_key)

    def _follow_engine(
        self, engine: Engine, revision: RevisionRow, public_key: str | None
    ) -> Follower | ServerFollower:
        key = engine.replica_id, engine.generation
        if key not in self._followers:
            assert revision.base_digest is not None
            if revision.starts_servers:
                self._followers[key] = ServerFollower(engine.address, revision, self._changed)
            else:
                keys = self._site.keys or host_keys(self._site.settings.data_dir) if public_key else None
                peer = Peer(keys, public_key) if keys is not None and public_key else None
                self._followers[key] = Follower(engine.address, revision.base_digest, self._changed, peer)
        return self._followers[key]

    async def unfollow(self, alive: set[tuple[str, int]], busy: set[str]) -> None:
        """End the connections to engines that are gone.

        alive: the engines that live, by replica and generation.
        busy: replicas that may have been started since.
        """
        remaining = {key for key in self._followers if key in alive or key[0] in busy}
        gone = [self._followers.pop(key) for key in set(self._followers) - remaining]
        await asyncio.gather(*(follower.stop() for follower in gone))

    def _note_end(self, ended: EngineEnd) -> None:
        self.endings[ended.replica_id] = ended
        self._changed()


def end_text(ended: EngineEnd) -> str:
    """Return a sentence on how an engine ended: with its exit code and its last log lines, if there are any."""
    how, code = "its process ended", ended.returncode
    if code is not None:
        how += f" (code {code})" if code >= 0 else f" ({signal.Signals(-code).name})"
    lines = ended.last_lines.splitlines()
    own = [line.removeprefix("engine: ") for line in lines if line.startswith("engine: ")]
    if code == os.EX_CONFIG and own:
        return "\n".join(own)
    return f"{how}: {' | '.join(own or lines)[-WHY_CHARS:]}" if lines else how


def _now_s() -> float:
    return asyncio.get_running_loop().time()
