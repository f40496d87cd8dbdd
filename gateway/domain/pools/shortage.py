"""The reason why replicas that are wanted are not started: no host has room for them. Pure, from the planner's data."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.domain.pools.capacity import Host, StartCheck
from gateway.domain.pools.plan import LIVE, Pool, needs_of_replica, room_of


def shortage_of(pools: Sequence[Pool], hosts: Sequence[Host], pool_id: str) -> str:
    """Return a sentence that says why a pool has fewer replicas than it wants; "" where room is not the reason.

    The room of replicas that drain counts as free, since replicas that only wait for that room start soon. While
    another revision takes the place of the one that serves, the reason is not room: replicas of the old revision make
    room.
    """
    pool = next((each for each in pools if each.id == pool_id), None)
    wanted = pool.revisions.get(pool.wanted_revision) if pool is not None else None
    if pool is None or wanted is None or wanted.state != "prepared":
        return ""
    live = [each for each in pool.replicas if each.place is not None and each.state in LIVE]
    mine = [each for each in live if each.revision == wanted.revision]
    missing = pool.num_replicas - sum(not each.replace for each in mine)
    if missing <= 0 or len(mine) < len(live) or any(each.replace for each in mine):
        return ""
    room = room_of(pools, hosts)
    for other in pools:
        for replica in other.replicas:
            if replica.place is not None and replica.state == "draining":
                room.leave(replica.place, needs_of_replica(other, replica))
    if room.find(wanted.needs) is not None:
        return ""
    number = "one more" if missing == 1 else f"{missing} more"
    return f"There is no room for {number}. {room.refusal(wanted.needs)}"


def standings_of(pools: Sequence[Pool], hosts: Sequence[Host], pool_id: str) -> list[StartCheck]:
    """Return for each host whether one more replica of a pool's wanted revision could start there now, and why.

    Nothing is returned before the model of the revision is prepared.
    """
    pool = next((each for each in pools if each.id == pool_id), None)
    wanted = pool.revisions.get(pool.wanted_revision) if pool is not None else None
    if wanted is None or wanted.state != "prepared":
        return []
    return room_of(pools, hosts).standings(wanted.needs)
