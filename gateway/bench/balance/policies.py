"""The policies that are compared: ours, and those of other routers, all with the same knowledge.

Knowledge is the last heartbeat of each replica, and the requests that the gateway itself sent and saw end since.
"""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from typing import ClassVar

from gateway.bench.balance.model import ReplicaSnapshot
from gateway.domain.balancing.balancer import Balancer
from gateway.domain.balancing.replica import Asked


class OurPolicy:
    """The policy of `gateway.domain.balancing`."""

    name: ClassVar[str] = "bounded rendezvous (ours)"

    def __init__(self, replicas: list[str], num_gateways: int, seed: int) -> None:
        self.balancer = Balancer(seed=seed)
        for replica in replicas:
            self.balancer.add(replica)
        self.balancer.share_among(num_gateways)

    def update(self, snapshot: ReplicaSnapshot, now_s: float) -> None:
        """Store a replica's heartbeat in the balancer."""
        self.balancer.update(snapshot.load, now_s)

    def pick(self, asked: Asked) -> str:
        """Return the replica that our balancer picks for a request; there always is one."""
        replica = self.balancer.pick(asked)
        assert replica is not None
        return replica

    def taken(self, replica_id: str, asked: Asked) -> None:
        """Count a request as sent to a replica."""
        self.balancer.taken(replica_id, asked)

    def given(self, replica_id: str, asked: Asked) -> None:
        """Count a request of a replica as done."""
        self.balancer.given(replica_id, asked)


class PeerPolicy(ABC):
    """A policy of another router, with what it knows of the replicas."""

    name: ClassVar[str]

    def __init__(self, replicas: list[str], num_gateways: int, seed: int) -> None:
        self.replicas = list(replicas)
        self.rng = random.Random(seed)  # noqa: S311
        self.snapshots: dict[str, ReplicaSnapshot] = {}
        self.since: Counter[str] = Counter()

    def update(self, snapshot: ReplicaSnapshot, now_s: float) -> None:
        """Store a replica's heartbeat, which already counts the requests that were sent before."""
        self.snapshots[snapshot.load.id] = snapshot
        self.since[snapshot.load.id] = 0

    def taken(self, replica_id: str, asked: Asked) -> None:
        """Count a request as sent to a replica since its heartbeat."""
        self.since[replica_id] += 1

    def given(self, replica_id: str, asked: Asked) -> None:
        """Count a request of a replica as done since its heartbeat."""
        self.since[replica_id] -= 1

    @abstractmethod
    def pick(self, asked: Asked) -> str:
        """Return the replica for a request."""

    def load_of(self, replica: str) -> int:
        """Return the requests at a replica: by its heartbeat, and those sent and done since."""
        load = self.snapshots[replica].load
        return load.running + load.waiting + self.since[replica]


class RoundRobin(PeerPolicy):
    """The policy that chooses one replica after the other; each gateway begins at another one."""

    name = "round robin"

    def __init__(self, replicas: list[str], num_gateways: int, seed: int) -> None:
        super().__init__(replicas, num_gateways, seed)
        self.next = self.rng.randrange(len(replicas))

    def pick(self, asked: Asked) -> str:
        """Return the next replica in the order of all."""
        self.next = (self.next + 1) % len(self.replicas)
        return self.replicas[self.next]


class LeastLoaded(PeerPolicy):
    """The policy that chooses the replica with the fewest requests running and waiting; any among equal ones."""

    name = "least loaded"

    def pick(self, asked: Asked) -> str:
        """Return one of the replicas with the fewest requests."""
        loads = [(self.load_of(replica), replica) for replica in self.replicas]
        least = min(loads)[0]
        return self.rng.choice([replica for load, replica in loads if load == least])


class ConsistentHashing(PeerPolicy):
    """The policy of a hash ring with virtual nodes, by adapter, without regard to load."""

    name = "consistent hashing"
    num_points = 160

    def __init__(self, replicas: list[str], num_gateways: int, seed: int) -> None:
        super().__init__(replicas, num_gateways, seed)
        points = [(self._place(f"{name}#{i}"), name) for name in replicas for i in range(self.num_points)]
        points.sort()
        self.places = [place for place, _ in points]
        self.owners = [name for _, name in points]

    def pick(self, asked: Asked) -> str:
        """Return the owner of the first virtual node behind the adapter's place on the ring."""
        return self.owners[bisect_left(self.places, self._place(asked.adapter)) % len(self.owners)]

    @staticmethod
    def _place(text: str) -> int:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


class LoraScorer(PeerPolicy):
    """llm-d's LoRA affinity scorer alone.

    An active adapter scores 1.0, room for one more 0.8, a waiting adapter 0.6, else 0. The highest score wins, any
    among equal ones.
    """

    name = "llm-d: LoRA scorer"

    def pick(self, asked: Asked) -> str:
        """Return one of the replicas with the highest score."""
        scores = [(self.score(replica, asked), replica) for replica in self.replicas]
        best = max(scores)[0]
        return self.rng.choice([replica for score, replica in scores if score == best])

    def score(self, replica: str, asked: Asked) -> float:
        """Return a replica's score for the request's adapter, by its last heartbeat."""
        snapshot = self.snapshots[replica]
        if asked.adapter in snapshot.running_adapters:
            return 1.0
        if len(snapshot.running_adapters) + len(snapshot.waiting_adapters) < snapshot.load.adapter_slots:
            return 0.8
        return 0.6 if asked.adapter in snapshot.waiting_adapters else 0.0


class LoraAndQueueScorers(LoraScorer):
    """llm-d's LoRA scorer with its scorers of queues and of running requests, each of weight 1.

    These score 1 for the least of all replicas, 0 for the most.
    """

    name = "llm-d: LoRA + queue + running"

    def pick(self, asked: Asked) -> str:
        """Return one of the replicas with the highest sum of the three scores."""
        waiting = [self.snapshots[replica].load.waiting for replica in self.replicas]
        running = [self.snapshots[replica].load.running + self.since[replica] for replica in self.replicas]
        queues, batches = _from_most_to_least(waiting), _from_most_to_least(running)
        scores = [
            (self.score(replica, asked) + queue + batch, replica)
            for replica, queue, batch in zip(self.replicas, queues, batches, strict=True)
        ]
        best = max(scores)[0]
        return self.rng.choice([replica for score, replica in scores if score == best])


def _from_most_to_least(amounts: list[int]) -> list[float]:
    """Return a score for each amount, from 0 for the largest to 1 for the smallest; 1 for all if they are equal."""
    least, most = min(amounts), max(amounts)
    return [(most - amount) / (most - least) if most > least else 1.0 for amount in amounts]


POLICIES: list[type[OurPolicy | PeerPolicy]] = [
    OurPolicy,
    RoundRobin,
    LeastLoaded,
    ConsistentHashing,
    LoraScorer,
    LoraAndQueueScorers,
]
