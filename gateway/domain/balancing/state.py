"""One replica as one gateway's balancer knows it: the last snapshot, and the requests that this gateway sent since."""

from __future__ import annotations

from gateway.domain.balancing.orders import seed_of
from gateway.domain.balancing.replica import RANK_UNIT, Asked, ReplicaLoad

MIN_RAMP = 0.1
LINE_SHARE = 1 / 8
"""The share of a replica's slots for adapters under way, beyond which further adapters go elsewhere."""


class ReplicaState:
    """The state of a replica, changed by `Balancer` alone. Loads are in units of `Asked.units`."""

    __slots__ = (
        "_adapters",
        "_coming",
        "_own",
        "_picture",
        "_reported",
        "_since",
        "_tenants",
        "_tenants_since",
        "_tokens_since",
        "age_ramp",
        "available",
        "capacity",
        "homes",
        "id",
        "load",
        "num_gateways",
        "pace",
        "ramp",
        "seed",
        "weight",
    )

    def __init__(self, replica_id: str, weight: float) -> None:
        self.id = replica_id
        self.seed = seed_of(replica_id)
        self.weight = weight
        self.num_gateways = 1
        self.available = False
        self.pace = 1.0
        """The part of the replica's capacity that counts beside faster replicas."""
        self.age_ramp = self.ramp = 1.0
        """The replica's ramp by its age, and the ramp relative to the oldest replica's, times the replica's pace: 1 is
        the best."""
        self.capacity = 1.0
        """Requests that the replica runs at once, scaled by its ramp."""
        self.load = 0.0
        self.homes: set[str] = set()
        """Keys of the adapters that are on the replica or on their way to it, as the balancer's index has them."""
        self._picture = ReplicaLoad(id=replica_id)
        self._reported = 0.0
        self._since = 0.0
        self._own = 0.0
        self._tokens_since = 0
        self._coming = 0
        self._adapters: dict[str, int] = {}
        self._tenants: dict[str, int] = {}
        self._tenants_since: dict[str, int] = {}

    def update(self, picture: ReplicaLoad, now_s: float, slow_start_s: float) -> None:
        """Store a new snapshot of the replica, which includes all requests that were sent before it.

        slow_start_s: seconds in which a new replica's share of new requests grows to the full one; 0: full at once.
        """
        self._picture = picture
        self.available = not (picture.silent or picture.draining)
        age_s = max(0.0, now_s - picture.ready_since_s)
        self.age_ramp = min(1.0, max(MIN_RAMP, age_s / slow_start_s)) if slow_start_s else 1.0
        self._reported = picture.running + picture.waiting + picture.rank / RANK_UNIT
        self._since = 0.0
        self._tokens_since = 0
        self._tenants_since.clear()
        self._weigh()

    def adapters_now(self) -> set[str]:
        """Return the keys of adapters that are on the replica or on their way: by the snapshot, or by own requests."""
        picture = self._picture
        now = {*picture.resident, *picture.waiting_adapters, *self._adapters}
        self._coming = len(now) - len(picture.resident)
        return now

    def scale(self, best_ramp: float) -> None:
        """Set the replica's ramp relative to the oldest replica's: replicas that start together take all the load."""
        self.ramp = self.pace * self.age_ramp / best_ramp
        self.capacity = max(1, self._picture.capacity) * self.ramp

    def take(self, asked: Asked) -> None:
        """Count a request that is sent to the replica."""
        self._own += asked.units
        self._since += asked.units
        self._tokens_since += asked.prompt_tokens
        if asked.adapter:
            if asked.adapter not in self.homes:
                self._coming += 1
            self._adapters[asked.adapter] = self._adapters.get(asked.adapter, 0) + 1
        if asked.tenant:
            for counts in (self._tenants, self._tenants_since):
                counts[asked.tenant] = counts.get(asked.tenant, 0) + asked.choices
        self._weigh()

    def give(self, asked: Asked) -> None:
        """Count the end of a request that was taken.

        A request from before the replica was added anew does not count.
        """
        if self._own <= 0:
            return
        self._own -= asked.units
        self._since -= asked.units
        if asked.adapter:
            _subtract(self._adapters, asked.adapter, 1)
        if asked.tenant:
            _subtract(self._tenants, asked.tenant, asked.choices)
            since = self._tenants_since
            since[asked.tenant] = since.get(asked.tenant, 0) - asked.choices
        self._weigh()

    def of_adapter(self, adapter: str) -> int:
        """Return the number of this gateway's requests for an adapter at the replica."""
        return self._adapters.get(adapter, 0)

    def of_tenant(self, tenant: str) -> int:
        """Return the known choices of a tenant that run or wait at the replica.

        The choices that other gateways sent since the snapshot are not known.
        """
        reported = self._picture.tenants.get(tenant, 0) + self._tenants_since.get(tenant, 0)
        return max(reported, self._tenants.get(tenant, 0))

    def has_room_for(self, prompt_tokens: int) -> bool:
        """Tell whether the KV cache has room for a prompt now."""
        free, size = self._picture.free_blocks, self._picture.block_size
        return free is None or self._tokens_since + prompt_tokens <= free * size

    @property
    def takes_adapters(self) -> bool:
        """Tell whether few enough adapters are on their way to the replica."""
        slots = self._picture.adapter_slots
        return not slots or self._coming < max(1.0, slots * LINE_SHARE)

    def _weigh(self) -> None:
        """Estimate the load, assuming that each other gateway has sent as much since the snapshot as this one."""
        self.load = max(self._own, self._reported + self._since * self.num_gateways)


def _subtract(counts: dict[str, int], key: str, num: int) -> None:
    left = counts.get(key, 0) - num
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)
