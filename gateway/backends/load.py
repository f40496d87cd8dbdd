"""The load of a pool as one gateway sees it, from the heartbeats of engines and its own requests."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gateway.backends.pool import Pool
from gateway.domain.pools.scaling import NEVER_S, Load


@runtime_checkable
class HasOldestWait(Protocol):
    """A backend that knows how long its oldest request has waited."""

    def oldest_wait_s(self) -> float:
        """Return the age of the oldest request of this gateway that has no token yet; 0 where none waits."""


def load_of(pool: Pool, now_s: float) -> Load:
    """Return the load of a pool as this gateway sees it at this time of the monotonic clock.

    Replicas that drain are left out: their requests move to no other.
    """
    serving, room = pool.serving, pool.serving.room
    replicas = [each for each in serving if not each.is_draining and each.backend.health().ready]
    running = waiting = own = 0
    oldest_s, shares = 0.0, list[float]()
    for each in replicas:
        stats = each.backend.health().stats
        if stats is None:
            own += each.backend.num_in_flight
            continue
        running += stats.num_running
        waiting += stats.num_waiting
        if stats.kv_blocks_total:
            shares.append(stats.kv_blocks_used / stats.kv_blocks_total)
        if isinstance(each.backend, HasOldestWait):
            oldest_s = max(oldest_s, each.backend.oldest_wait_s())
    return Load(
        num_ready=len(replicas),
        places=sum(each.backend.capabilities.max_running for each in replicas),
        num_running=running,
        num_waiting=waiting,
        num_own=own,
        kv_share=round(sum(shares) / len(shares), 3) if shares else 0.0,
        oldest_wait_s=round(oldest_s, 1),
        num_held=0 if replicas and not room.num_waiting else room.num_wanted,
        idle_s=round(min(now_s - room.used_s, NEVER_S), 1),
    )
