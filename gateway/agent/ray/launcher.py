"""`Launcher` of an agent whose engines run on the nodes of a Ray cluster. Never imports Ray: its driver does."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence

import msgspec
import structlog

from engine.version import VERSION
from gateway.agent.launcher import Begin, CannotReach, CannotStart, Engine, EngineEnd, LaunchRequest, NoMachineYet
from gateway.agent.ray.bridge import Bridge
from gateway.agent.ray.messages import (
    ClusterState,
    Done,
    Forget,
    Go,
    Look,
    Offer,
    Offered,
    Refused,
    Setup,
    Started,
    Stop,
    Waits,
)
from gateway.domain.pools.capacity import Node
from gateway.settings import Settings
from gateway.support.host import host_id

LOOK_PAUSE_S = 1.0
RETRY_S = 2.0
"""Pause before the cluster is connected to again."""

UNSEEN_S = 3.0
"""Seconds of silence after which an engine that no node reports is started elsewhere.

If only the connection to the engine was lost, it is made again within that time.
"""

LOOK_S = 15.0
START_S = 30.0

log = structlog.get_logger(__name__)


class RayLauncher:
    """`Launcher` of one host, which stands for a cluster. Begins to connect to the cluster at the first `watch`."""

    def __init__(self, settings: Settings) -> None:
        """Make the folders that nodes need.

        Raises OSError: when the data folder cannot be written.
        """
        setup = _setup(settings, f"lorikeet-{host_id(settings.data_dir)}")
        self._bridge = Bridge(setup, settings.log_dir / "ray-driver.log")
        self._engines: dict[str, Engine] = {}
        self._public_keys: list[str] = []
        self._kept: list[str] | None = None
        self._kept_until_s = math.inf
        self._tried: set[str] = set()
        """Replicas whose start has ended since the cluster was last asked for its engines: the answer may still show
        them as starting."""
        self._is_sighted = False
        self._nodes: list[Node] = []
        self._told: set[tuple[str, int]] = set()
        self._ended: Callable[[EngineEnd], None] = lambda ended: None
        self._looking: asyncio.Task[None] | None = None
        self._forgetting: set[asyncio.Task[None]] = set()

    @property
    def unseen_s(self) -> float:
        """Return the silence that counts as an engine's end, as `Launcher.unseen_s`."""
        return UNSEEN_S if self._is_sighted else math.inf

    async def admit(self, public_keys: Sequence[str]) -> None:
        """Send the keys to all nodes, as `Launcher.admit`; nodes with engines get them at the next look."""
        self._public_keys = sorted(public_keys)

    async def start(self, ask: LaunchRequest, begin: Begin) -> Engine | None:
        """Start an engine on a node that Ray finds, as `Launcher.start`."""
        try:
            return await self._start_engine(ask, begin)
        finally:
            self._tried.add(ask.replica_id)
            self._engines = {
                id: each for id, each in self._engines.items() if id != ask.replica_id or each.pid is not None
            }

    async def _start_engine(self, ask: LaunchRequest, begin: Begin) -> Engine | None:
        if self._kept is not None and ask.replica_id not in self._kept:
            self._kept = [*self._kept, ask.replica_id]
        answer = await self._bridge.call(Offer(ask, self._public_keys), START_S)
        if isinstance(answer, Waits):
            raise NoMachineYet(answer.why, is_full=answer.is_full)
        if isinstance(answer, Refused):
            raise CannotStart(answer.why)
        assert isinstance(answer, Offered)
        if answer.spot is None:
            return None
        spec = None
        try:
            spec = await begin(answer.spot)
        finally:
            told = None if spec is None else msgspec.structs.replace(spec, environ={})
            if told is None:
                with contextlib.suppress(CannotReach):
                    await self._bridge.call(Go(ask.replica_id, None), START_S)
        if told is None:
            return None
        started = await self._bridge.call(Go(ask.replica_id, told), START_S)
        if isinstance(started, Refused):
            raise CannotStart(started.why)
        assert isinstance(started, Started)
        if started.engine is not None:
            self._engines = {**self._engines, ask.replica_id: started.engine}
        return started.engine

    async def stop(self, engine: Engine, grace_s: float) -> None:
        """End an engine on its node, as `Launcher.stop`.

        grace_s: seconds after which the process is killed.
        """
        if self._engines.get(engine.replica_id) != engine:
            return
        answer = await self._bridge.call(Stop(engine, grace_s), grace_s + START_S)
        assert isinstance(answer, Done)
        if self._engines.get(engine.replica_id) == engine:
            self._engines = {id: each for id, each in self._engines.items() if id != engine.replica_id}

    def running(self) -> dict[str, Engine]:
        """Return the engines that were seen in the last look at the cluster that succeeded."""
        return dict(self._engines)

    def nodes(self) -> list[Node] | None:
        """Return the nodes of the last look; None while the cluster is away."""
        return self._nodes if self._is_sighted else None

    def watch(self, ended: Callable[[EngineEnd], None]) -> None:
        """Call `ended` for each engine that ends from now on, as `Launcher.watch`."""
        self._ended = ended
        if self._looking is None:
            self._looking = asyncio.create_task(self._keep_looking())

    def release(self, replica_ids: set[str], held_s: float = math.inf) -> None:
        """Free resources at the next look at the cluster, as `Launcher.release`.

        replica_ids: the replicas whose resources stay reserved. held_s: seconds for which the caller still has the
        host.
        """
        self._kept_until_s = asyncio.get_running_loop().time() + held_s
        self._kept = sorted(replica_ids)

    def forget(self, replica_ids: set[str]) -> None:
        """Remove the files of all replicas but those given, on nodes that have engines now.

        replica_ids: the replicas whose files stay.
        """
        task = asyncio.create_task(self._forget(sorted(replica_ids)))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def close(self, *, is_superseded: bool = False) -> None:
        """Stop watching; the engines live on.

        is_superseded: change nothing any more, since another agent has the host.
        """
        if self._kept == [] and not is_superseded:  # nothing is left to run: nodes are given back at once
            with contextlib.suppress(CannotReach):
                await self._look()
        tasks = [each for each in (self._looking, *self._forgetting) if each is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_looking(self) -> None:
        why = ""
        while True:
            try:
                await self._bridge.run(self._look_for_ever)
            except CannotReach as error:
                self._is_sighted = False
                if str(error) != why:
                    why = str(error)
                    log.warning("ray_away", error=why)
            await asyncio.sleep(RETRY_S)

    async def _look_for_ever(self) -> None:
        log.info("ray_connected")
        while True:
            await self._look()
            await asyncio.sleep(LOOK_PAUSE_S)

    async def _look(self) -> None:
        """Read from the cluster which nodes and engines it has now.

        Raises CannotReach: when the cluster does not answer.
        """
        before = self._engines
        self._tried.clear()
        is_held = asyncio.get_running_loop().time() < self._kept_until_s
        picture = await self._bridge.call(Look(self._public_keys, self._kept if is_held else None), LOOK_S)
        assert isinstance(picture, ClusterState)
        engines: dict[str, Engine] = {}
        for engine in picture.engines:
            if engine.pid is None and engine.replica_id in self._tried:
                continue
            engines.setdefault(engine.replica_id, engine)
        for replica_id, engine in self._engines.items():
            if before.get(replica_id) != engine:  # it was started meanwhile, maybe after its node was looked at
                engines.setdefault(replica_id, engine)
        self._engines, self._nodes = engines, picture.nodes
        self._is_sighted = True
        for ended in picture.ended:
            if (ended.replica_id, ended.generation) not in self._told:
                self._told.add((ended.replica_id, ended.generation))
                self._ended(ended)

    async def _forget(self, replica_ids: list[str]) -> None:
        self._told = {each for each in self._told if each[0] in replica_ids}
        with contextlib.suppress(CannotReach):
            await self._bridge.call(Forget(replica_ids), START_S)


async def count_nodes(settings: Settings) -> int:
    """Return the number of nodes of the cluster.

    Raises CannotReach: when the cluster does not answer.
    """

    async def nothing() -> None:
        pass

    bridge = Bridge(_setup(settings, "lorikeet-doctor"), None)
    await bridge.run(nothing)
    return bridge.num_nodes


def _setup(settings: Settings, namespace: str) -> Setup:
    return Setup(
        address=settings.ray_address,
        namespace=namespace,
        data_dir=str(settings.data_dir),
        first_port=settings.engine_ports.start,
        last_port=settings.engine_ports.stop - 1,
        version=VERSION,
    )
