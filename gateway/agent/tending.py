"""Decides for each replica of this host which step is due, by the state of its row and whether its engine lives.

Each pass compares rows with engines that live, and begins the steps that are due; a step that takes time goes on
beside, one at a time for each replica. Memory holds only what rows and engines show as well, so that another agent can
go on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from gateway.agent.launcher import CannotReach, Engine, EngineEnd
from gateway.agent.servers.adapters import remove_files
from gateway.agent.steps import NO_ANSWER, NOT_YET_RETRY_S, STOP_S, ServedReplica, Site, Step, Steps
from gateway.db.pool import FAILURES
from gateway.db.pools.replicas import ReplicaRow, await_start
from gateway.db.pools.revisions import RevisionRow
from gateway.db.pools.served import ServedPool

SILENT_S = 30.0
"""Seconds without an answer after which a replica is ended, so that another process can serve in its place."""

FELL_SILENT_S = 1.0
"""Seconds without an answer after which the row of a serving replica shows that it does not answer.

A connection that was lost though the engine lives is made again within this time.
"""

CONNECTING_S = 5.0
"""Seconds that the connection to a serving replica may take where an agent adopts the replica."""

LISTENED_TO = ("loading", "ready", "draining")
"""States of replicas whose engines may live though the launcher does not report them."""

log = structlog.get_logger(__name__)


class Replicas:
    """All replicas of this host.

    changed: called when rows and engines are to be compared again.
    last_failure: returns why the last attempt to prepare a revision's model on this host failed; "" if it did not fail.
    """

    def __init__(self, site: Site, changed: Callable[[], None], last_failure: Callable[[RevisionRow], str]) -> None:
        self._site = site
        self._last_failure = last_failure
        self._changed = changed
        self._steps = Steps(site, changed)
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._unreached: dict[str, float] = {}
        """The time of the next step for replicas whose last step could not reach the machine that runs the engine."""
        self._unseen_since_s: dict[tuple[str, int], float] = {}
        """The time at which `Launcher.running` first lacked an engine that should run, by replica and generation."""
        self._fault: BaseException | None = None

    @property
    def endings(self) -> Mapping[str, EngineEnd]:
        """The last end of the engine of each replica, by replica."""
        return self._steps.endings

    @property
    def busy(self) -> set[str]:
        """The replicas for which a step goes on: rows that were read meanwhile may be older than the step's result."""
        return set(self._busy)

    async def begin_due(self, pools: Sequence[ServedPool], busy: set[str]) -> None:
        """Begin the step that is due for each replica.

        busy: the value of `Replicas.busy` before the rows were read.

        Raises Superseded: when a step that was begun before found that another agent has the host.
        Raises the error of a step that was begun before: when our own code is at fault.
        """
        if self._fault is not None:
            raise self._fault
        engines = self._site.launcher.running()
        mine = {
            row.id: ServedReplica(row, pool, pool.revisions[row.revision])
            for pool in pools
            for row in pool.replicas
            if row.host_id == self._site.lease.host_id and row.revision in pool.revisions
        }
        num_engines = self._num_on_processors(pools)
        now_s = _now_s()
        self._note_unseen(mine, engines, now_s)
        put_off = busy | {replica_id for replica_id, due_s in self._unreached.items() if now_s < due_s}
        for replica_id, engine in engines.items():
            if replica_id not in mine and replica_id not in put_off | self.busy and engine.pid is not None:
                self._start_step(replica_id, self._steps.end(engine, STOP_S))
        for replica_id, served in mine.items():
            if replica_id not in put_off | self.busy:
                step = self._next_step(served, engines.get(replica_id), num_engines)
                if step is not None:
                    self._start_step(replica_id, step)
        self._site.launcher.release(set(mine) | self.busy, self._site.lease.held_s)
        alive = {(each.replica_id, each.generation) for each in engines.values()}
        if self._site.launcher.unseen_s:
            alive |= {(each.row.id, each.row.generation) for each in mine.values() if each.row.state in LISTENED_TO}
        await self._steps.unfollow(alive, self.busy)

    def forget(self, pools: Sequence[ServedPool]) -> None:
        """Remove the files and the state of replicas that no longer exist."""
        remaining = {row.id for pool in pools for row in pool.replicas} | self.busy
        self._site.launcher.forget(remaining)
        adapters = {digest for pool in pools for each in pool.revisions.values() for digest in each.adapters}
        remove_files(self._site.settings.data_dir, adapters)
        self._steps.forget(remaining)
        self._unreached = {id: due_s for id, due_s in self._unreached.items() if id in remaining}

    async def leave(self, *, is_superseded: bool = False) -> None:
        """Stop watching all engines, which live on. is_superseded: another agent has the host."""
        for task in self._busy.values():
            task.cancel()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)
        await self._steps.unfollow(set(), set())
        await self._site.launcher.close(is_superseded=is_superseded)

    async def stop_all(self, forced: asyncio.Event) -> None:
        """End all engines of this host, since the agent ends and is to leave nothing behind.

        forced: once this event is set, engines that still end are killed.
        """
        for task in self._busy.values():
            task.cancel()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)
        engines = [each for each in self._site.launcher.running().values() if each.pid is not None]
        stopping = [asyncio.create_task(self._stop_engine(each, STOP_S)) for each in engines]
        force = asyncio.create_task(forced.wait())
        pending: set[asyncio.Task[Any]] = {*stopping}
        while pending and not force.done():
            _, pending = await asyncio.wait({*pending, force}, return_when=asyncio.FIRST_COMPLETED)
            pending.discard(force)
        await asyncio.gather(*(self._stop_engine(each, 0.0) for each in engines if pending), *stopping)
        force.cancel()
        self._site.launcher.release(set())
        try:
            async with self._site.database.acquire() as conn:
                for each in engines:
                    lease = self._site.lease
                    why = "its agent was stopped"
                    await await_start(conn, each.replica_id, lease.generation, each.generation, why)
        except FAILURES as error:
            log.warning("rows_not_told", error=str(error))

    async def _stop_engine(self, engine: Engine, grace_s: float) -> None:
        try:
            await self._site.launcher.stop(engine, grace_s)
        except CannotReach as error:
            log.warning("engine_not_stopped", replica=engine.replica_id, error=str(error))

    # what is due for one replica

    def _next_step(self, served: ServedReplica, engine: Engine | None, num_engines: int) -> Step | None:
        row = served.row
        if engine is not None and engine.pid is None:
            return None  # another agent was about to start it, and may still do so
        if engine is not None and (engine.generation != row.generation or row.state in ("starting", "failed")):
            return self._steps.end(engine, STOP_S)
        match row.state:
            case "starting" | "failed":
                if not self._steps.is_due(row.id):
                    return None
                if not Path(str(served.revision.folder)).is_dir():
                    why = self._last_failure(served.revision)  # "" while it is prepared
                    return self._steps.put_off(row, f"its model is not on this host: {why}") if why else None
                return self._steps.start(served, num_engines)
            case "draining":
                return self._steps.drain(row, engine, served.revision)
            case "loading" | "ready":
                return self._steps.record_loss(served) if self._has_ended(row, engine) else self._watch(served, engine)
        return None

    def _has_ended(self, row: ReplicaRow, engine: Engine | None) -> bool:
        """Tell whether it is known that the engine of a replica, which is not seen to live, has ended.

        engine: the engine that is seen to live; None where none is.
        """
        ended = self.endings.get(row.id)
        is_known = ended is not None and ended.generation == row.generation
        return engine is None and (is_known or not self._site.launcher.unseen_s)

    def _watch(self, served: ServedReplica, engine: Engine | None) -> Step | None:
        """Return the step for a replica whose process lives.

        A replica that is loading is probed once it answers. A replica that does not answer for long is killed. A
        replica that served and is silent for a moment counts as loading until it answers again. An engine that the
        launcher does not see counts as alive as long as it answers.
        """
        row, follower = served.row, self._steps.follow(served.row, served.revision)
        if follower.silent_since_s is None:
            return self._steps.probe(served, follower) if row.state == "loading" else None
        silent_s = _now_s() - follower.silent_since_s
        unseen_s = _now_s() - self._unseen_since_s.get((row.id, row.generation), math.inf)
        if engine is None and min(silent_s, unseen_s) > self._site.launcher.unseen_s:
            return self._steps.record_loss(served)
        if row.state == "loading" and not follower.was_connected and row.why != NO_ANSWER:
            start_s = self._site.settings.replica_start_seconds
            why = f"its engine did not answer within {start_s:g} s of its start (LORIKEET_REPLICA_START_SECONDS)"
            return self._steps.kill(row, engine, why) if engine is not None and silent_s > start_s else None
        if engine is not None and silent_s > SILENT_S:
            return self._steps.kill(row, engine, f"it did not answer for {SILENT_S:g} s")
        if row.state == "ready" and silent_s > (FELL_SILENT_S if follower.was_connected else CONNECTING_S):
            return self._steps.record_silence(row)
        return None

    def _note_unseen(self, mine: Mapping[str, ServedReplica], engines: Mapping[str, Engine], now_s: float) -> None:
        """Record since when each engine is not reported, while engines can be listed at all."""
        unseen = {(id, each.row.generation) for id, each in mine.items() if id not in {*engines, *self.busy}}
        if math.isinf(self._site.launcher.unseen_s):
            unseen = set()
        self._unseen_since_s = {each: self._unseen_since_s.get(each, now_s) for each in unseen}

    def _num_on_processors(self, pools: Sequence[ServedPool]) -> int:
        """Return the number of engines that compute on this host's processors once all due steps are done."""
        if self._site.hardware.gpu_bytes:
            return sum(row.host_id == self._site.lease.host_id and row.gpu is None for p in pools for row in p.replicas)
        mine = [row.host_id == self._site.lease.host_id for pool in pools for row in pool.replicas if row.host_id]
        if not all(mine):
            return sum(mine)
        return sum(pool.row.num_replicas for pool in pools if not pool.is_removed)

    def _start_step(self, replica_id: str, step: Step) -> None:
        task = asyncio.create_task(self._run_step(replica_id, step))
        self._busy[replica_id] = task
        task.add_done_callback(lambda task: self._note_done(replica_id, step, task))

    def _note_done(self, replica_id: str, step: Step, task: asyncio.Task[None]) -> None:
        step.close()
        del self._busy[replica_id]
        if not task.cancelled() and task.exception() is not None:
            self._fault = task.exception()
        due_s = self._unreached.get(replica_id, 0.0)
        if _now_s() < due_s:
            asyncio.get_running_loop().call_at(due_s, self._changed)
        else:
            self._changed()

    async def _run_step(self, replica_id: str, step: Step) -> None:
        """Do a step. If the database goes away meanwhile, rows and engines show later how far the step came.

        If the machine that runs the engine cannot be reached, put off the replica's next step for a while.
        """
        try:
            await step
        except CannotReach as error:
            if replica_id not in self._unreached:
                log.warning("replica_waits", replica=replica_id, error=str(error))
            self._unreached[replica_id] = _now_s() + NOT_YET_RETRY_S
            return
        except FAILURES as error:
            log.warning("replica_waits", replica=replica_id, error=str(error) or type(error).__name__)
        self._unreached.pop(replica_id, None)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
