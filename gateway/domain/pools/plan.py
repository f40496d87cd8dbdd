"""The next actions that make pools run as their rows say: replicas are started and drained, revisions switched.

The planner looks at all rows and remembers nothing: it may be called again at any time, by anybody, and goes on where
the rows are. Agents carry its actions out; it knows neither them nor engines. A pool keeps its number of replicas of
the revision that serves. While another revision is wanted, replicas of that are started beside the old ones, and the
pool is switched when they are ready; then the old ones drain. If both do not fit, an old one makes room first. A
revision that fails is given up, and the old one is wanted again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from gateway.domain.pools.capacity import FreeMemory, Host, Needs, Place
from gateway.domain.pools.states import ReplicaState, RevisionState

MAX_FAILURES = 3
"""Failures in a row of one replica after which its revision is given up, where another one serves."""

MAX_PREPARATIONS = 5
"""Failures in a row of one host to prepare a revision's model after which another host may take the revision."""

GONE_S = 30.0
"""Seconds without an agent after which the replicas of a host are replaced. They serve until then."""

FULL_S = 300.0
"""Seconds that a replica waits for room in a cluster before one that it replaces is drained.

Until then the cluster's autoscaler may add a machine.
"""

LOST_S = 600.0
"""Seconds without an agent after which a host's replicas count as ended. An agent that comes back ends them."""

LIVE: frozenset[ReplicaState] = frozenset({"starting", "loading", "ready", "failed"})
"""States of replicas that serve or are about to serve."""

Rollout = Literal["side by side", "one after the other"]
"""The way in which a pool changes its revision: new replicas beside the old ones, or in their place."""


class Replica(msgspec.Struct, frozen=True):
    """A replica that has not been stopped."""

    id: str
    revision: int
    state: ReplicaState
    place: Place | None
    """The place where the replica runs; None for an engine that no agent started, which can only be drained."""
    num_failures: int = 0
    """Failures in a row."""
    replace: bool = False
    """True if another engine is to take the replica's place."""
    why: str = ""
    """The reason for the state, in words; "" where there is none."""
    is_evicted: bool = False
    """True if the replica is to be replaced because its host is drained.

    It keeps running until another one is ready.
    """
    full_s: float = 0.0
    """Seconds for which the replica has waited for room that other replicas occupy in a cluster."""


class Revision(msgspec.Struct, frozen=True):
    """A model with settings that a pool serves, is to serve, or has replicas of."""

    revision: int
    state: RevisionState
    needs: Needs = Needs(0)
    """The memory, the device and the kind of host that a replica needs."""
    why: str = ""
    """The reason why the revision failed; "" otherwise."""
    base_digest: str = ""
    """The digest of the revision's base model; "" until the model is prepared."""


class Pool(msgspec.Struct, frozen=True):
    """A pool: the state that its rows ask for, and its present state."""

    id: str
    num_replicas: int
    """The number of replicas that are wanted."""
    revision: int | None
    """The revision that serves."""
    wanted_revision: int
    """The revision that is to serve."""
    revisions: Mapping[int, Revision]
    replicas: Sequence[Replica]
    """The replicas that have not been stopped, oldest first."""
    is_removed: bool = False
    """True if the pool was removed: all its replicas end."""


class Create(msgspec.Struct, frozen=True):
    """The action to have a host's agent start a new replica."""

    pool_id: str
    revision: int
    place: Place


class Drain(msgspec.Struct, frozen=True):
    """The action to send a replica no new requests, and to stop it once the running ones have ended."""

    replica_id: str
    why: str


class MarkLost(msgspec.Struct, frozen=True):
    """The action to mark a replica as ended because its host has had no agent for too long."""

    replica_id: str
    why: str


class SwitchRevision(msgspec.Struct, frozen=True):
    """The action to make the wanted revision of a pool the one that serves."""

    pool_id: str
    revision: int
    former: int | None
    """The revision that served, which is retired."""


class GiveUp(msgspec.Struct, frozen=True):
    """The action to mark a revision as failed, with the reason."""

    pool_id: str
    revision: int
    back_to: int | None
    """The revision that becomes the wanted one again, if there is one."""
    why: str


Action = Create | Drain | MarkLost | SwitchRevision | GiveUp


class NoRoom(ValueError):
    """The error for a replica without a place even if all others of its pool go; the message has each host's memory."""


def plan(pools: Sequence[Pool], hosts: Iterable[Host]) -> list[Action]:
    """Return the actions that are due now; none if all is as wanted or has to be waited for.

    If two pools want the same room, the first one gets it.
    """
    hosts = list(hosts)
    room = room_of(pools, hosts)
    away_s = {host.id: host.away_s for host in hosts}
    draining = [
        (each.place, needs_of_replica(pool, each))
        for pool in pools
        for each in pool.replicas
        if each.place is not None and each.state == "draining"
    ]
    actions: list[Action] = []
    for pool in pools:
        actions += _Plan(pool, room, draining, away_s).actions()
    return actions


def rollout_to(pools: Sequence[Pool], hosts: Iterable[Host], pool_id: str, needs: Needs) -> Rollout:
    """Return the way in which a pool would change to a revision with these needs.

    Raises NoRoom: when no replica of the revision would find a place.
    """
    room = room_of(pools, hosts)
    pool = next(pool for pool in pools if pool.id == pool_id)
    serving = [each for each in pool.replicas if each.state in LIVE and each.place is not None]
    if room.find(needs) is not None:
        return "side by side"
    if _fewest_to_leave(pool, serving, needs, room) is None:
        raise NoRoom(room.refusal(needs))
    return "one after the other"


def room_of(pools: Sequence[Pool], hosts: Iterable[Host]) -> FreeMemory:
    """Return the memory that is free on the hosts, less that of all replicas that have not been stopped."""
    room = FreeMemory(hosts)
    for pool in pools:
        for replica in pool.replicas:
            if replica.place is not None:
                room.occupy(replica.place, needs_of_replica(pool, replica))
    return room


class _Plan:
    """The plan of one pool.

    room: the free memory now, shared with the other pools: a created replica takes of it.
    draining: the replicas of all pools that will give back their room.
    away_s: for each host, seconds without an agent.
    """

    def __init__(
        self, pool: Pool, room: FreeMemory, draining: Sequence[tuple[Place, Needs]], away_s: Mapping[str, float]
    ) -> None:
        self._away_s = away_s
        self._pool = pool
        self._room = room
        self._draining = draining
        self._drained: set[str] = set()
        self._actions: list[Action] = []

    def actions(self) -> list[Action]:
        """Return the actions that are due for the pool now."""
        pool = self._pool
        self._leave_hosts()
        revisions = set() if pool.is_removed else {pool.revision, pool.wanted_revision}
        for replica in self._live():
            if replica.revision not in revisions:
                why = "the pool was removed" if pool.is_removed else "another revision serves"
                self._drain(replica, why)
        if pool.is_removed:
            return self._actions
        if pool.wanted_revision != pool.revision:
            self._change_revision()
        elif pool.revision is not None:
            self._keep(pool.revision)
        return self._actions

    def _leave_hosts(self) -> None:
        """Replace replicas on hosts that have had no agent for too long.

        Replicas that wait on hosts where their model cannot be prepared are replaced as well.
        """
        for replica in self._pool.replicas:
            away_s = 0.0 if replica.place is None else self._away_s.get(replica.place.host_id, math.inf)
            if away_s > LOST_S:
                self._drained.add(replica.id)
                self._actions.append(MarkLost(replica.id, "its host has no agent"))
            elif away_s > GONE_S and replica.state in LIVE:
                self._drain(replica, "its host has no agent")
            elif replica.state in ("starting", "failed") and self._is_avoided(replica):
                self._drain(replica, "its host cannot prepare the model")

    def _is_avoided(self, replica: Replica) -> bool:
        needs = needs_of_replica(self._pool, replica)
        return replica.place is not None and replica.place.host_id in needs.avoided

    # the revision that serves

    def _keep(self, number: int) -> None:
        """Start or drain replicas until a number of them run, and replace those that have to leave their hosts."""
        self._drain_excess(number)
        managed = self._managed_replicas(number)
        staying = [each for each in managed if not each.replace]
        leaving = sorted((each for each in managed if each.replace), key=lambda each: each.state != "ready")
        num_ready = sum(each.state == "ready" for each in staying)
        bridging = [each for each in leaving if each.state == "ready" or each.is_evicted]
        bridging = bridging[: max(0, self._pool.num_replicas - num_ready)]
        for each in leaving:
            if each not in bridging:
                self._drain(each, "another replica takes its place")
        revision = self._pool.revisions.get(number)
        if revision is None or revision.state not in ("prepared", "retired"):
            return
        missing = self._pool.num_replicas - len(staying)
        missing -= self._create(revision, missing)
        is_under_way = any(each.state in ("starting", "loading") for each in staying)
        is_changing = number != self._pool.wanted_revision  # which replaces all of them anyway
        if missing > 0 and bridging and not (is_under_way or is_changing or self._will_fit(revision.needs)):
            self._make_room(bridging, revision.needs)
        if not is_changing and num_ready + len(bridging) >= self._pool.num_replicas:
            self._make_room_in_cluster(bridging, staying)

    def _drain_excess(self, number: int) -> None:
        """Drain the replicas beyond the number that shall run: first those that do not serve, then the youngest."""
        staying = [each for each in self._managed_replicas(number) if not each.replace]
        excess = len(staying) - self._pool.num_replicas
        for each in _worst_first(staying)[: max(excess, 0)]:
            self._drain(each, "fewer replicas are wanted")

    # a change of the revision

    def _change_revision(self) -> None:
        pool = self._pool
        wanted = pool.revisions.get(pool.wanted_revision)
        if wanted is None or wanted.state == "preparing":
            if pool.revision is not None:
                self._keep(pool.revision)
            return
        broken = next((each for each in self._live(wanted.revision) if each.num_failures >= MAX_FAILURES), None)
        if wanted.state == "failed":
            self._give_up(wanted, wanted.why)
        elif broken is not None and pool.revision is not None:
            self._give_up(wanted, f"{broken.num_failures} starts in a row failed: {broken.why}")
        else:
            self._roll_out(wanted)

    def _give_up(self, wanted: Revision, why: str) -> None:
        back_to = self._pool.revision
        if wanted.state != "failed" or back_to is not None:
            self._actions.append(GiveUp(self._pool.id, wanted.revision, back_to, why))
        for replica in self._live(wanted.revision):
            self._drain(replica, "its revision failed")

    def _roll_out(self, wanted: Revision) -> None:
        """Start replicas of a prepared revision, and switch to it once they are ready."""
        pool = self._pool
        if pool.revision is not None:
            self._drain_excess(pool.revision)
        self._drain_excess(wanted.revision)
        live = self._live(wanted.revision)
        missing = pool.num_replicas - len(self._managed_replicas(wanted.revision))
        num_created = self._create(wanted, missing)
        num_ready = sum(each.state == "ready" for each in live)
        waiting = [each for each in live if each.full_s > FULL_S]
        is_full = bool(waiting) or (missing > num_created == 0 and not self._will_fit(wanted.needs))
        is_ready = num_ready > 0 and num_ready == len(live) - len(waiting)
        if num_ready >= self._num_required() or (is_ready and is_full):
            self._actions.append(SwitchRevision(pool.id, wanted.revision, pool.revision))
        elif waiting and pool.revision is not None:
            old = [each for each in self._live(pool.revision) if each.state == "ready"]
            if num_ready + len(old) >= pool.num_replicas:
                self._make_room_in_cluster(old, live)
        elif not live and is_full:
            old = [] if pool.revision is None else self._managed_replicas(pool.revision)
            if self._make_room(old, wanted.needs) or not self._room.has_hosts:
                return
            if _fewest_to_leave(pool, old, wanted.needs.later(), self._room_after_drains()) is None:
                self._give_up(wanted, self._room.refusal(wanted.needs))

    def _num_required(self) -> int:
        """Return how many replicas of the wanted revision must be ready before the pool is switched."""
        pool = self._pool
        if pool.revision is None:
            return min(1, pool.num_replicas)
        serves = any(each.state == "ready" for each in self._live(pool.revision))
        return max(pool.num_replicas, 1 if serves else 0)

    # room

    def _create(self, revision: Revision, count: int) -> int:
        """Create replicas of a revision, at most `count`, while there is room. Return how many were created."""
        for number in range(count):
            place = self._room.take(revision.needs)
            if place is None:
                return number
            self._actions.append(Create(self._pool.id, revision.revision, place))
        return max(count, 0)

    def _will_fit(self, needs: Needs) -> bool:
        """Tell whether a replica will have room once the draining replicas are gone."""
        return self._room_after_drains().find(needs) is not None

    def _room_after_drains(self) -> FreeMemory:
        """Return the free memory once the draining replicas are gone."""
        room = self._room.copy()
        for place, freed in self._draining:
            room.leave(place, freed)
        for replica in self._pool.replicas:
            if replica.place is not None and replica.id in self._drained:
                room.leave(replica.place, needs_of_replica(self._pool, replica))
        return room

    def _make_room(self, candidates: Sequence[Replica], needs: Needs) -> bool:
        """Drain as few candidates as are needed to make room for a new replica. Return False if all are too few."""
        leaving = _fewest_to_leave(self._pool, candidates, needs, self._room_after_drains())
        for replica in leaving or ():
            self._drain(replica, "it makes room for a new replica")
        return bool(leaving)

    def _make_room_in_cluster(self, candidates: Sequence[Replica], starting: Sequence[Replica]) -> None:
        """Drain one candidate whose room is enough for a replica that has waited for room in a cluster.

        The cluster alone knows the free memory of its machines. The room that a replica leaves is enough for one that
        needs no more.
        """
        waiting = [each for each in starting if each.full_s > FULL_S]
        for replica in _worst_first(candidates):
            freed = needs_of_replica(self._pool, replica)
            if any(
                replica.place == each.place and freed.covers(needs_of_replica(self._pool, each)) for each in waiting
            ):
                self._drain(replica, "it makes room for a new replica")
                return

    # replicas

    def _live(self, number: int | None = None) -> list[Replica]:
        return [
            each
            for each in self._pool.replicas
            if each.state in LIVE and number in (None, each.revision) and each.id not in self._drained
        ]

    def _managed_replicas(self, number: int) -> list[Replica]:
        return [each for each in self._live(number) if each.place is not None]

    def _drain(self, replica: Replica, why: str) -> None:
        self._drained.add(replica.id)
        self._actions.append(Drain(replica.id, why))


def _fewest_to_leave(pool: Pool, candidates: Sequence[Replica], needs: Needs, room: FreeMemory) -> list[Replica] | None:
    """Return the first candidates, worst first, that must leave for a replica to fit; None if all are too few."""
    room = room.copy()
    leaving: list[Replica] = []
    for replica in _worst_first(candidates):
        if room.find(needs) is not None:
            break
        assert replica.place is not None
        room.leave(replica.place, needs_of_replica(pool, replica))
        leaving.append(replica)
    if room.find(needs) is None:
        return None
    for replica in list(leaving):  # replicas that made no room, as on a host that is drained, stay
        assert replica.place is not None
        room.occupy(replica.place, needs_of_replica(pool, replica))
        if room.find(needs) is None:
            room.leave(replica.place, needs_of_replica(pool, replica))
        else:
            leaving.remove(replica)
    return leaving


def _worst_first(replicas: Sequence[Replica]) -> list[Replica]:
    """Return replicas in the order in which to stop them: the failed first, then those not ready, then the youngest."""
    rank = {"failed": 0, "starting": 1, "loading": 2, "ready": 3}
    youngest_first = list(replicas)[::-1]
    return sorted(youngest_first, key=lambda each: rank[each.state])


def needs_of_replica(pool: Pool, replica: Replica) -> Needs:
    """Return the memory that a replica of a pool occupies; empty needs where its revision is not known."""
    revision = pool.revisions.get(replica.revision)
    return revision.needs if revision is not None else Needs(0)
