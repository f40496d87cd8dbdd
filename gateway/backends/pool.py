"""A pool: the replicas that serve one base model under one name, one of which takes each request.

A pool serves one revision at a time: a base model with the settings of its engines. A request stays with the revision
that it was prepared for, whatever the pool serves by the time it is sent. Knows neither rows nor who starts engines.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import Protocol, runtime_checkable

import msgspec

from engine.protocol import GenerateRequest, Service
from gateway.backends.base import Backend, Capabilities, Feature, Fit, Message, Model, PreparedPrompt, unchanged
from gateway.backends.snapshot import EngineSnapshot
from gateway.backends.used import UsedAmounts
from gateway.backends.waiting_room import WaitingRoom
from gateway.domain.balancing.answer_times import capacity_factors
from gateway.domain.balancing.balancer import Balancer
from gateway.domain.balancing.prefixes import prefix_keys
from gateway.domain.balancing.replica import Asked, ReplicaLoad
from gateway.domain.balancing.service import PoolService
from gateway.domain.errors import ENGINE_UNAVAILABLE, Overloaded
from gateway.domain.pools.drivers import OWN_DRIVER, Driver
from gateway.domain.pools.foreign_settings import OwnKeys
from gateway.text.options import USUAL, Rendering
from gateway.text.tokenizer import Tokenizer
from gateway.text.tools.tool import Tool

RETRY_AFTER_S = 1.0
RETRY_STOPPED_AFTER_S = 30.0
"""Seconds to wait where no replica runs: one that is started reads its model first."""

PACE_S = 0.25
"""Seconds between two comparisons of the replicas' answer times."""

MAX_IN_FLIGHT = 1 << 20
"""Choices that are admitted while no replica is there to say how many it takes."""


class ManagedBackend(Backend, Protocol):
    """A backend that a gateway starts, watches and stops."""

    @property
    def num_in_flight(self) -> int:
        """The requests of this gateway that the backend works on."""

    def start(self) -> None:
        """Begin to connect; what is behind the backend may come later."""

    async def stop(self) -> None:
        """End the conversation; requests that still run fail."""

    def watch(self, changed: Callable[[], None], has_other: Callable[[], bool]) -> None:
        """Set the functions of the pool that the backend calls from now on.

        changed: to be called whenever the result of `health` changes.
        has_other: tells whether another backend of the pool serves while this one does not.
        """

    @property
    def is_full(self) -> bool:
        """True if a request would have to wait for a place at the backend, or be refused for want of one."""

    def usual_ms(self) -> float | None:
        """Return the usual milliseconds of the backend's recent answers.

        Return None where there were no answers, or where the backend reports its load in heartbeats.
        """

    def take_used(self) -> list[UsedAmounts]:
        """Return the amounts that this gateway's requests used on the backend since the last call."""

    def report_used(self, elsewhere: dict[str, Service]) -> None:
        """Tell the backend what this gateway's requests used on the pool's other backends, by tenant."""

    def snapshot(self, model: str) -> EngineSnapshot:
        """Return the present state of the backend for operators. model: the name of the backend's pool."""


@runtime_checkable
class GivesBatchCredit(Protocol):
    """A backend that says how many lines of batches it wants."""

    def take_batch_credit(self) -> bool:
        """Take credit for one line of a batch; False if the engine gives none now."""


class Replica(msgspec.Struct, eq=False):
    """One backend of a pool's revision, by its id."""

    id: str
    backend: ManagedBackend
    is_draining: bool = False
    """True if new requests go elsewhere as long as there is another replica."""
    ready_since_s: float | None = None
    """The time at which the backend became ready, on the event loop's clock; None while it is not ready."""


class PoolRevision:
    """The replicas of one revision of a pool, and the facts about its base model that need no replica."""

    def __init__(
        self,
        name: str,
        model: Model,
        replicas: Sequence[Replica] = (),
        *,
        base_digest: str = "",
        pool_id: str = "",
        own_keys: OwnKeys = "none",
        as_text: Model | None = None,
        driver: Driver = OWN_DRIVER,
    ) -> None:
        """Make a revision of a pool.

        name: the public name of the pool.
        base_digest: the digest of the base model.
        as_text: prepares prompts for servers of another maker that, by their version, take no token ids; None where all
        take them.
        driver: the driver of the replicas.
        own_keys: whether projects bring keys of their own for the servers.
        """
        self.name = name
        self.driver: Driver = driver
        self.model = model
        self.pool_id = pool_id
        """The id of the pool."""
        self.own_keys: OwnKeys = own_keys
        """True if projects bring keys of their own for the servers."""
        self.room = WaitingRoom(name)
        """The requests that wait for a first replica; the revisions of a pool share one."""
        self._base_digest = base_digest
        self._as_text = as_text
        self._successor: PoolRevision | None = None
        self._is_former = False
        self._replicas: dict[str, Replica] = {}
        self._max_in_flight = 0
        self._capabilities: Capabilities | None = None
        self._paced_s = 0.0
        self._balancer = Balancer(seed=secrets.randbits(32))
        for replica in replicas:
            self.add(replica)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def add(self, replica: Replica) -> None:
        """Send requests to another replica, once it is ready."""
        self._replicas[replica.id] = replica
        self._balancer.add(replica.id)
        replica.backend.watch(
            partial(self.refresh, replica), lambda: self.any_ready(tried=frozenset((replica.id,))) is not None
        )
        self.refresh(replica)

    def remove(self, replica_id: str) -> Replica | None:
        """Stop sending requests to a replica, and return it."""
        self._balancer.remove(replica_id)
        removed = self._replicas.pop(replica_id, None)
        self._count_places()
        return removed

    def find(self, replica_id: str) -> Replica | None:
        """Return the replica with an id; None where this revision has no such replica."""
        return self._replicas.get(replica_id)

    def refresh(self, replica: Replica) -> None:
        """Update the balancer's state of a replica that has changed."""
        if self._replicas.get(replica.id) is replica:
            now_s = time.monotonic()
            self._balancer.update(_load_snapshot(replica, now_s), now_s)
            self._count_places()
            self.room.notify()

    def succeeded_by(self, other: PoolRevision | None) -> None:
        """Let another revision of the same base model take the requests that this one has no replica for any more.

        other: None: no revision takes them.
        """
        self._is_former = other is not None
        self._successor = other if other is not None and self.serves_base_of(other) else None

    def serves_base_of(self, other: PoolRevision) -> bool:
        """Tell whether this revision and another one have the same base model."""
        return self._base_digest == other._base_digest

    def share_among(self, num_gateways: int) -> None:
        """Set the number of gateways that send requests to the same replicas."""
        self._balancer.share_among(num_gateways)

    def report_used(self) -> None:
        """Tell each replica what tenants used on the others, so that a tenant's weight holds over all of them.

        To be called once in a heartbeat.
        """
        service = PoolService()
        for replica in self._replicas.values():
            for used in replica.backend.take_used():
                service.used(
                    replica.id,
                    used.tenant,
                    used.weight,
                    prompt_tokens=used.prompt_tokens,
                    completion_tokens=used.completion_tokens,
                    adapter_bytes=used.adapter_bytes,
                )
        ready = {each.id: each.backend for each in self._replicas.values() if each.backend.health().ready}
        for replica_id, elsewhere in service.elsewhere(ready).items():
            ready[replica_id].report_used(elsewhere)

    # properties of the base model alone: see `gateway.backends.base.Model`

    @property
    def capabilities(self) -> Capabilities:
        """The bounds of one replica that is ready, with the features that each ready replica has.

        Any replica will do, since all of a revision have the same settings. The bounds are as of the last change of any
        replica.
        """
        return self._capabilities or self.model.capabilities

    @property
    def max_in_flight(self) -> int:
        """The most choices that the ready replicas run and keep waiting, all together, as of the last change of any."""
        return self._max_in_flight or MAX_IN_FLIGHT

    def has_spare_room(self, share: float) -> bool:
        """Tell whether no request waits, and less than a share of all places is taken.

        Places are counted by the replicas' last heartbeats and by this gateway's requests at each. Return True where no
        replica is ready: such a pool refuses by itself.
        """
        taken, places = 0, 0
        for each in self._ready():
            backend, stats = each.backend, each.backend.health().stats
            if stats is not None and stats.num_waiting:
                return False
            taken += max(backend.num_in_flight, stats.num_running if stats is not None else 0)
            places += backend.capabilities.max_running
        return taken < share * places or not places

    @property
    def _preparing_model(self) -> Model:
        """The model that prepares prompts in the form that the revision's servers take."""
        if self._as_text is None or "token_ids" in self.capabilities.features:
            return self.model
        return self._as_text

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model of this revision."""
        return self._preparing_model.tokenizer

    def prepare_chat(
        self,
        messages: list[Message],
        tools: Sequence[Tool] = (),
        rendering: Rendering = USUAL,
        fit: Fit = unchanged,
        owner: str = "",
    ) -> PreparedPrompt:
        """Return the prompt of a chat, made by the model of this revision with the same arguments."""
        return self._preparing_model.prepare_chat(messages, tools, rendering, fit, owner)

    def prepare_text(self, prompt: str | list[int], field: str, *, add_special_tokens: bool = True) -> PreparedPrompt:
        """Return the prompt of a text or of token ids, made by the model of this revision with the same arguments."""
        return self._preparing_model.prepare_text(prompt, field, add_special_tokens=add_special_tokens)

    # which replica

    @property
    def ready(self) -> bool:
        """True if a replica takes requests."""
        return any(each.backend.health().ready for each in self._replicas.values())

    @property
    def detail(self) -> str:
        """The reason why no replica is ready, in words that anybody may read."""
        return "; ".join(each.backend.health().detail for each in self._replicas.values()) or "no replica runs"

    def asked_by(self, request: GenerateRequest) -> Asked:
        """Return the facts about a request that the choice of its replica depends on."""
        prefixes: tuple[int, ...] = ()
        if len(self._replicas) > 1:
            prefixes = prefix_keys(request.prompt_token_ids, request.tenant + request.adapter)
        num_tokens = len(request.prompt_token_ids)
        return Asked(request.adapter, 0, prefixes, num_tokens, request.n, request.tenant)

    def take(self, asked: Asked, tried: Set[str] = frozenset()) -> Replica:
        """Return the replica for a request, none of those that were tried; `give` it back when the request has ended.

        A full replica is taken only where all are full.

        Raises Overloaded: when no other replica is ready.
        """
        picked = None
        self.room.use()
        if len(self._replicas) > 1:
            self._compare_pace()
            picked = self._balancer.pick(asked, tried)
        if picked is not None and self._replicas[picked].backend.is_full:
            full = {each.id for each in self._replicas.values() if each.backend.is_full}
            picked = self._balancer.pick(asked, tried | full) or picked
        replica = self._replicas[picked] if picked is not None else self.any_ready(tried)
        if replica is None:
            raise Overloaded(
                f"No engine is ready for '{self.name}' ({self.detail}).",
                code=ENGINE_UNAVAILABLE,
                retry_after_s=RETRY_AFTER_S if self._replicas else RETRY_STOPPED_AFTER_S,
            )
        if replica.is_draining and self.room.is_open:
            self.room.want()  # a replica that stays: this one ends with its requests
        self._balancer.taken(replica.id, asked)
        return replica

    def give(self, replica: Replica, asked: Asked) -> None:
        """Record that a request has ended at the replica that had taken the request.

        Do nothing where the replica was replaced since then: its successor never had the request.
        """
        if self._replicas.get(replica.id) is replica:
            self._balancer.given(replica.id, asked)

    @property
    def is_cold(self) -> bool:
        """True if a request has to wait for the pool's first replica, which starts by itself."""
        return self.room.is_open and (self.room.num_waiting > 0 or self.any_ready() is None)

    async def warm(self, tenant: str) -> None:
        """Return once a replica takes a request of the tenant. Raises NoReplicaYet: when that takes too long."""
        await self.room.wait(tenant, self._has_place)

    def _has_place(self) -> bool:
        if self._is_former and self._successor is None and not self._replicas:
            return True  # no replica comes any more, so that the request is refused and holds up nobody
        revisions = [self] if self._successor is None else [self, self._successor]
        backends = [each.backend for revision in revisions for each in revision]
        return any(each.health().ready and not each.is_full for each in backends)

    def any_ready(self, tried: Set[str] = frozenset()) -> Replica | None:
        """Return the ready replica with the fewest requests of this gateway, none of those that were tried.

        Return a draining replica only if there is no other, and one of the succeeding revision if this one has none.
        """
        left = [each for each in self._replicas.values() if each.id not in tried and each.backend.health().ready]
        if not left and self._successor is not None:
            return self._successor.any_ready(tried)
        return min(left, key=lambda each: (each.is_draining, each.backend.num_in_flight), default=None)

    def _compare_pace(self) -> None:
        """Compare the replicas' answer times, at most every PACE_S."""
        now_s = time.monotonic()
        if now_s - self._paced_s >= PACE_S:
            self._paced_s = now_s
            self._balancer.pace(
                capacity_factors({each.id: each.backend.usual_ms() for each in self._replicas.values()})
            )

    def _count_places(self) -> None:
        """Set the bounds and features of the ready replicas, and the number of requests that all take at once."""
        ready = self._ready()
        usual = next(iter(ready or self._replicas.values()), None)
        self._capabilities = usual.backend.capabilities if usual is not None else None
        if len(ready) > 1 and self._capabilities is not None:
            features = frozenset[Feature].intersection(*(each.backend.capabilities.features for each in ready))
            if features != self._capabilities.features:
                self._capabilities = msgspec.structs.replace(self._capabilities, features=features)
        self._max_in_flight = sum(each.backend.capabilities.max_in_flight for each in ready)

    def _ready(self) -> list[Replica]:
        """Return the ready replicas that do not drain; where there is none, those that do."""
        ready = [each for each in self._replicas.values() if each.backend.health().ready]
        return [each for each in ready if not each.is_draining] or ready


def _load_snapshot(replica: Replica, now_s: float) -> ReplicaLoad:
    health = replica.backend.health()
    if not health.ready:
        replica.ready_since_s = None
        return ReplicaLoad(id=replica.id, silent=True)
    if replica.ready_since_s is None:
        replica.ready_since_s = now_s
    stats, capabilities = health.stats, replica.backend.capabilities
    if stats is None:
        return ReplicaLoad(
            id=replica.id,
            ready_since_s=replica.ready_since_s,
            capacity=capabilities.max_running,
            resident=replica.backend.resident(),
            draining=replica.is_draining,
        )
    return ReplicaLoad(
        id=replica.id,
        ready_since_s=replica.ready_since_s,
        running=stats.num_running,
        waiting=stats.num_waiting,
        capacity=capabilities.max_running,
        free_blocks=stats.kv_blocks_total - stats.kv_blocks_used if stats.kv_blocks_total else None,
        block_size=capabilities.block_size,
        adapter_slots=stats.adapter_slots_total,
        resident=frozenset(stats.resident_adapters),
        waiting_adapters=frozenset(stats.waiting_adapters),
        tenants={tenant: each.num_running + each.num_waiting for tenant, each in stats.tenants.items()},
        draining=replica.is_draining,
    )


class Pool:
    """A base model under its public name: the serving revision, and those that came before or come next."""

    def __init__(self, name: str, current: PoolRevision, *, created: int) -> None:
        """Make a pool.

        current: the revision that takes new requests. created: the Unix time in seconds that /v1/models shows.
        """
        self.name = name
        """The public name."""
        self.created = created
        """The Unix time in seconds that /v1/models shows."""
        self.others: list[PoolRevision] = []
        """Revisions that are to serve, or that still answer older requests."""
        self.num_wanted = 0
        """The replicas that the pool is to run."""
        self._current = current
        self._former: PoolRevision | None = None

    def serve(self, current: PoolRevision, others: Sequence[PoolRevision] = ()) -> None:
        """Let a revision take new requests from now on, as soon as it can.

        others: revisions that are to serve later, or that still answer older requests.
        """
        if current is not self._current:
            self._former = self._current
        self._current = current
        self.others = [each for each in others if each is not current]
        for former in (*self.revisions[1:], *([self._former] if self._former is not None else [])):
            former.succeeded_by(current)
        current.succeeded_by(None)
        if self._former is not None and self._former not in self.others:
            self._former = None  # its replicas are gone

    def take_batch_credit(self) -> bool | None:
        """Take credit for one line of a batch.

        Return False where no engine gives any now, and None where the pool's servers are of another maker, which know
        no credit. A pool that starts its replicas by itself and has none takes a line now and then, so that one is
        started.
        """
        if self.serving.is_cold:
            return self.serving.room.take_line()
        knows_credit = False
        for replica in self.serving:
            if isinstance(replica.backend, GivesBatchCredit):
                knows_credit = True
                if not replica.is_draining and replica.backend.take_batch_credit():
                    return True
        return False if knows_credit or not any(True for _ in self.serving) else None

    @property
    def serving(self) -> PoolRevision:
        """The revision that takes new requests.

        This is the current revision. While no replica of the current revision takes requests, it is the revision before
        if that has such a replica and serves the same base model.
        """
        former = self._former
        if former is not None and not self._current.ready and former.ready and former.serves_base_of(self._current):
            return former
        return self._current

    @property
    def revisions(self) -> list[PoolRevision]:
        """All revisions that have replicas, or are to have them: the current one first."""
        return [self._current, *self.others]

    @property
    def replicas(self) -> list[Replica]:
        """The replicas of all revisions, those of the current one first."""
        return [replica for revision in self.revisions for replica in revision]

    @property
    def backends(self) -> list[ManagedBackend]:
        """The backends of all revisions, those of the current one first."""
        return [replica.backend for replica in self.replicas]

    @property
    def ready(self) -> bool:
        """True if a replica of the serving revision takes requests."""
        return self.serving.ready
