"""The pools of this gateway, kept as the rows say: connections to every replica, and the serving revision.

Rows are read at the start, at every change that is announced, and now and then. While the database is away, the rows
read last go on serving. Knows neither who starts engines nor which replica takes a request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from adapters.inspection import BaseShape
from engine.protocol import HEARTBEAT_INTERVAL_S
from gateway.backends.base import Health, Model
from gateway.backends.engine.model import EngineModel
from gateway.backends.foreign.driver import ReplicaName
from gateway.backends.foreign.model import OpaqueModel
from gateway.backends.pool import ManagedBackend, Pool, PoolRevision, Replica
from gateway.backends.waiting_room import WaitingRoom
from gateway.db.adapters.bases import base_names
from gateway.db.changes import Change
from gateway.db.ledger.journals import living_gateways
from gateway.db.pool import Database
from gateway.db.pools.replicas import ReplicaRow
from gateway.db.pools.revisions import RevisionRow
from gateway.db.pools.served import ServedPool, list_served
from gateway.domain.pools.drivers import OWN_DRIVER
from gateway.domain.pools.foreign_settings import has_adapters, opaque_digest, own_keys_of
from gateway.domain.routing.bases import Base, Bases
from gateway.pools.foreign import opaque_model_of
from gateway.pools.rooms import Rooms, starts_when_asked
from gateway.pools.this_machine import ThisMachine
from gateway.support.worker import Worker, stop_all

POLL_S = 5.0
"""Seconds between two queries for the number of gateways."""

REREAD_S = 60.0
"""Seconds after which all rows are read without an announced change."""

LEAVE_S = 60.0
"""Seconds for which running requests may keep the connection to a replica whose row is gone."""

FIND_EVERY_S = 0.01
"""Seconds between two checks, during a start, whether pools are connected to replicas."""

CONNECTED = frozenset({"loading", "ready", "draining"})
"""The states of replicas to which a gateway connects."""

if TYPE_CHECKING:
    from gateway.db.pool import Connection

log = structlog.get_logger(__name__)

Connect = Callable[[str, EngineModel, str | None], ManagedBackend]
"""A function that makes the backend of an engine, not started.

It takes the engine's ZeroMQ endpoint, and the public key that an engine on TCP proves.
"""

ConnectForeign = Callable[[str, RevisionRow, Model, ReplicaName], ManagedBackend]
"""A function that makes the backend of another maker's server, not started, from its URL, revision and model."""

NO_ADAPTERS = BaseShape({}, 0)
"""The shape of a base that no adapter fits."""

Served = EngineModel | OpaqueModel
"""The model of a revision: one whose files are here, or one whose files only its servers have."""

Key = tuple[str, int, str]
"""The identity of a running replica: its id, the generation of its start and its address."""


class LivePools(Mapping[str, Pool]):
    """The pools of this gateway by name, up to date between `start` and `stop`.

    Subscribe `changed` to announced changes.
    """

    def __init__(
        self,
        database: Database,
        bases: Bases,
        connect: Connect,
        forget_routes: Callable[[], None],
        connect_foreign: ConnectForeign | None = None,
        *,
        this_machine: ThisMachine | None = None,
        cold_start_s: float = 60.0,
    ) -> None:
        """Make the pools, of which there are none before `start`.

        bases: replaced in place whenever another base model is served, after which forget_routes is called.
        connect_foreign: None leaves out the pools of other makers' servers.
        this_machine: the keys and folders of this machine; None: models are in the folders of the rows, and no engine
        is on TCP.
        cold_start_s: seconds for which a request waits for the first replica of a pool that starts some when requests
        come.
        """
        self.rooms = Rooms(cold_start_s)
        """The rooms in which requests wait for a first replica."""
        self._this_machine = this_machine
        self._is_announced = this_machine is None
        self._connect_foreign = connect_foreign
        self._database = database
        self._bases = bases
        self._connect = connect
        self._forget_routes = forget_routes
        self._pools: dict[str, Pool] = {}
        self._revisions: dict[tuple[str, int], PoolRevision] = {}  # by pool id and number
        self._models: dict[Path, EngineModel] = {}
        self._unusable: dict[Path, str] = {}  # why each model that cannot be read cannot
        self._keys: dict[str, Key] = {}  # backends of the connected replicas, by id
        self._num_wanted = 0
        self._served: dict[str, ServedPool] = {}  # the rows as last read, by pool id
        self._stale: set[str] | None = None  # pools that have changed since; None: any may have
        self._reread_at_s = 0.0
        self._leaving: dict[asyncio.Task[None], ManagedBackend] = {}
        self._wake = asyncio.Event()
        self._workers = (
            Worker(self._step, POLL_S, name="pools", wake=self._wake),
            Worker(self._report_used, HEARTBEAT_INTERVAL_S, name="service of tenants"),
        )

    def __getitem__(self, name: str) -> Pool:
        return self._pools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pools)

    def __len__(self) -> int:
        return len(self._pools)

    @property
    def ready(self) -> bool:
        """True if some pool has a ready replica, or no pool wants one."""
        return self._num_wanted == 0 or any(pool.ready for pool in self._pools.values())

    @property
    def by_base(self) -> list[tuple[str, ManagedBackend]]:
        """The backends that take requests, each with the digest of its base model."""
        found = []
        for name, pool in self._pools.items():
            base = self._bases.named(name)
            if base is not None:
                found += [(base.digest, replica.backend) for replica in pool.serving]
        return found

    @property
    def connected(self) -> list[ManagedBackend]:
        """The backends of all replicas, including those without a row that complete their last requests."""
        followed = [replica.backend for revision in self._revisions.values() for replica in revision]
        return [*followed, *self._leaving.values()]

    @property
    def healths(self) -> dict[str, Health]:
        """The health of each replica by its id."""
        return {each.id: each.backend.health() for revision in self._revisions.values() for each in revision}

    @property
    def scaled(self) -> dict[str, Pool]:
        """The pools whose number of replicas follows their load, by id."""
        found = {each.row.id: self._pools.get(each.row.name) for each in self._served.values() if each.scaling}
        return {id: pool for id, pool in found.items() if pool is not None}

    async def start(self) -> None:
        """Read the rows of all pools once, and follow their changes from then on.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        await self._step()
        for worker in self._workers:
            worker.start()

    async def find_replicas(self, within_s: float) -> None:
        """Wait until each pool with a serving replica, by its rows, has a connection to one.

        within_s: seconds after which to return at the latest. A gateway that has just started then need not refuse
        requests.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not all(self._is_found(each) for each in self._served.values()):  # noqa: ASYNC110 - for a moment
                    await asyncio.sleep(FIND_EVERY_S)

    def _is_found(self, served: ServedPool) -> bool:
        pool = self._pools.get(served.row.name)
        serves = any(row.state == "ready" and row.revision == served.row.revision for row in served.replicas)
        return pool is None or not serves or pool.ready

    async def stop(self) -> None:
        """Stop following the rows. Connections stay for running requests: `disconnect` ends them."""
        await stop_all(*self._workers)

    async def disconnect(self) -> None:
        """End all connections."""
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, *(backend.stop() for backend in self.connected), return_exceptions=True)

    def changed(self, change: Change | None) -> None:
        """Schedule the reading of the rows that a change may be about."""
        if change is None:
            self._stale = None
        elif change.table != "pools":
            return
        elif self._stale is not None:
            self._stale.add(change.id)
        self._wake.set()

    async def _step(self) -> None:
        """Read the changed rows, and update the pools by them."""
        now_s = asyncio.get_running_loop().time()
        stale, self._stale = self._stale if now_s < self._reread_at_s else None, set()
        try:
            async with self._database.acquire() as conn:
                num_gateways = len(await living_gateways(conn))
                if stale is None or stale:
                    served = {each.row.id: each for each in await self._list_served(conn, stale)}
                    former_names = await base_names(conn)
            if stale is None:
                self._served = served
                self._reread_at_s = now_s + REREAD_S
            elif stale:
                self._served = {id: each for id, each in self._served.items() if id not in stale} | served
            if stale is None or stale:
                in_order = sorted(self._served.values(), key=lambda each: (each.row.created_at, each.row.id))
                await self._read_models(in_order)
                self._take(in_order, former_names)
        except BaseException:
            self._stale = None
            raise
        for revision in self._revisions.values():
            revision.share_among(max(1, num_gateways))

    async def _list_served(self, conn: Connection, pool_ids: set[str] | None) -> list[ServedPool]:
        """Return pools with this machine's folders.

        The machine's key is announced before an engine on TCP is connected to.

        pool_ids: the ids of the pools; None: all.
        """
        found = await list_served(conn, pool_ids)
        if self._this_machine is None:
            return found
        if not self._is_announced and any(replica.public_key for each in found for replica in each.replicas):
            await self._this_machine.announce(conn)
            self._is_announced = True
        return [self._this_machine.with_own_folders(each) for each in found]

    async def _report_used(self) -> None:
        for revision in self._revisions.values():
            revision.report_used()

    async def _read_models(self, served: Sequence[ServedPool]) -> None:
        """Read the models of new folders; one that cannot be read is left out, and tried again at the next step."""
        folders = {Path(each.folder) for pool in served for each in pool.revisions.values() if each.folder is not None}
        for folder in folders - self._models.keys():
            try:
                self._models[folder] = await asyncio.to_thread(EngineModel.load, folder)
                self._unusable.pop(folder, None)
            except Exception as error:  # any error of the libraries that read an operator's tokenizer and template
                if self._unusable.get(folder) != str(error):
                    self._unusable[folder] = str(error)
                    log.error("model_unusable", folder=str(folder), error=str(error))
        for folder in self._models.keys() - folders:
            del self._models[folder]

    def _take(self, served: Sequence[ServedPool], former_names: Mapping[str, str]) -> None:
        """Update the pools by these rows, without waiting for anything."""
        bases, pools, revisions = [], {}, {}
        self._num_wanted = 0
        gone = dict(self._keys)
        for each in served:
            room = self.rooms.room_of(each)
            made = self._revisions_of(each, room)
            revisions.update({(each.row.id, number): revision for number, revision in made.items()})
            for number, revision in made.items():
                rows = [row for row in each.replicas if row.revision == number]
                self._follow_replicas(revision, each.revisions[number], rows, gone)
            serving = made.get(each.row.revision or each.row.wanted_revision)
            if serving is None or each.is_removed:
                continue
            is_wanted = each.row.num_replicas > 0 or len(list(serving)) > 0
            self._num_wanted += is_wanted and not starts_when_asked(each)
            pool = self._pools.get(each.row.name) or Pool(
                each.row.name, serving, created=int(each.row.created_at.timestamp())
            )
            pool.serve(serving, list(made.values()))
            pool.num_wanted = each.row.num_replicas
            pools[pool.name] = pool
            bases.append(self._base_of(each, each.revisions[each.row.revision or each.row.wanted_revision], serving))
        self._leave_replicas(gone)
        self._revisions, self._pools = revisions, pools
        self.rooms.keep(each.row.id for each in served)
        if [self._bases.named(base.name) for base in bases] != bases or len(bases) != len(self._bases.names):
            self._bases.replace(bases, former_names)
            self._forget_routes()

    def _revisions_of(self, served: ServedPool, room: WaitingRoom) -> dict[int, PoolRevision]:
        """Return the revisions of a pool whose models could be read, by number, with the replicas that they had."""
        made = {}
        for number, row in served.revisions.items():
            model = self._model_of(row)
            if model is not None:
                known = self._revisions.get((served.row.id, number))
                made[number] = known or PoolRevision(
                    served.row.name,
                    model,
                    base_digest=_digest_of(row, model),
                    pool_id=served.row.id,
                    own_keys=own_keys_of(row.driver, row.settings),
                    as_text=None if row.driver == OWN_DRIVER else opaque_model_of(row),
                    driver=row.driver,
                )
                made[number].room = room
        return made

    def _model_of(self, row: RevisionRow) -> Served | None:
        """Return the model of a revision; None where it is not prepared or cannot be read."""
        if row.driver != OWN_DRIVER and self._connect_foreign is None:
            return None
        if row.folder is None:
            return None if row.base_digest is None else opaque_model_of(row)
        return self._models.get(Path(row.folder))

    def _base_of(self, served: ServedPool, row: RevisionRow, serving: PoolRevision) -> Base:
        model = serving.model
        assert isinstance(model, EngineModel | OpaqueModel)
        allowed = None
        if served.row.access == "listed":
            allowed = frozenset(grant.project_id or grant.organization_id for grant in served.grants)
        shape = NO_ADAPTERS
        if isinstance(model, EngineModel) and has_adapters(row.driver, row.settings):
            found = model.config
            shape = BaseShape(found.adapter_targets(), found.num_layers, found.layers_of_targets())
        return Base(served.row.name, _digest_of(row, model), shape, allowed)

    def _connected(self, replica: ReplicaRow, row: RevisionRow, model: Model, pool: str) -> ManagedBackend:
        """Return the backend of a replica that has an address, not started."""
        assert replica.address is not None
        if row.driver == OWN_DRIVER:
            assert isinstance(model, EngineModel)
            return self._connect(replica.address, model, replica.public_key)
        assert self._connect_foreign is not None
        return self._connect_foreign(replica.address, row, model, ReplicaName(pool, replica.id))

    def _follow_replicas(
        self, revision: PoolRevision, revision_row: RevisionRow, rows: Sequence[ReplicaRow], gone: dict[str, Key]
    ) -> None:
        """Connect to the replicas of a revision, and remove those that stay from `gone`."""
        for row in rows:
            if row.address is None or row.state not in CONNECTED:
                continue
            key = (row.id, row.generation, row.address)
            replica = revision.find(row.id)
            if replica is None or gone.get(row.id) != key:
                if replica is not None:
                    self._leave(revision, row.id)
                backend = self._connected(row, revision_row, revision.model, revision.name)
                backend.start()
                replica = Replica(row.id, backend)
                revision.add(replica)
                self._keys[row.id] = key
            if replica.is_draining != (row.state == "draining"):
                replica.is_draining = row.state == "draining"
                revision.refresh(replica)
            gone.pop(row.id, None)

    def _leave_replicas(self, gone: Mapping[str, Key]) -> None:
        for replica_id in gone:
            self._keys.pop(replica_id, None)
            for revision in self._revisions.values():
                self._leave(revision, replica_id)

    def _leave(self, revision: PoolRevision, replica_id: str) -> None:
        """Send a replica no more requests, and disconnect once its running requests have ended."""
        replica = revision.remove(replica_id)
        if replica is None:
            return
        task = asyncio.create_task(_disconnect(replica.backend))
        self._leaving[task] = replica.backend
        task.add_done_callback(self._leaving.pop)


def _digest_of(row: RevisionRow, model: Served) -> str:
    """Return the digest of the base that a revision serves, by which adapters find the pools that can apply them.

    If the revision's servers cannot load adapters, the digest is one that no adapter has.
    """
    if isinstance(model, OpaqueModel) or has_adapters(row.driver, row.settings):
        return model.digest
    return opaque_digest(row.pool_id, row.driver, row.settings.get("served_model", ""))


async def _disconnect(backend: ManagedBackend) -> None:
    try:
        async with asyncio.timeout(LEAVE_S):
            await backend.drain()
    except TimeoutError:
        log.warning("requests_on_a_replica_that_is_gone", num_in_flight=backend.num_in_flight)
    finally:
        await backend.stop()
