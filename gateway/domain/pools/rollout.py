"""The way in which a change of a pool will replace its replicas, for operators to know before it happens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.domain.pools.capacity import Host
from gateway.domain.pools.plan import LIVE, NoRoom, Pool, Rollout, rollout_to


def rollout_of(pools: Sequence[Pool], hosts: Sequence[Host], pool_id: str) -> Rollout | None:
    """Return how the pool with this id changes to its wanted revision.

    None: where no change of a revision that serves is under way, its model is not prepared yet, or no replica of it
    finds a place.
    """
    pool = next((each for each in pools if each.id == pool_id), None)
    wanted = pool.revisions.get(pool.wanted_revision) if pool is not None else None
    if pool is None or wanted is None or wanted.state != "prepared" or pool.revision in (None, wanted.revision):
        return None
    present = [each for each in pool.replicas if each.revision != wanted.revision]
    if sum(each.place is not None and each.state in LIVE for each in present) < pool.num_replicas:
        return "one after the other"  # one of them has made room already
    before = msgspec.structs.replace(pool, replicas=present)
    try:
        return rollout_to([before if each is pool else each for each in pools], hosts, pool_id, wanted.needs)
    except NoRoom:
        return None
