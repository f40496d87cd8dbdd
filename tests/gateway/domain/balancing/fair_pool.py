"""Several replicas in virtual time, each with the engine's real scheduler, and gateways that balance over them.

One step of all replicas is one unit of time. Engines and gateways report service to each other every few steps.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from engine.protocol import Final
from engine.scheduling.fairness import DECODE_COST
from gateway.domain.balancing.balancer import Balancer
from gateway.domain.balancing.replica import Asked, ReplicaLoad
from gateway.domain.balancing.service import PoolService
from tests.engine.scheduling.fairness_simulator import TOKEN_BYTES, Simulator

PLACES = 8
BEAT_STEPS = 20


class Gateway:
    def __init__(self, replicas: list[str], num_gateways: int, seed: int) -> None:
        self.balancer = Balancer(seed=seed, slow_start_s=0)
        for name in replicas:
            self.balancer.add(name)
        self.balancer.share_among(num_gateways)
        self.service = PoolService()


class RunningRequest(msgspec.Struct):
    """A running request in the simulation."""

    gateway: Gateway
    asked: Asked
    weight: float
    counted: int = 0
    """Completion tokens that the gateway of the request has counted."""


class FairPool:
    """A simulated pool, and its gateways.

    tells: True: engines are told how much service tenants got from other replicas. spreads: True: the balancer knows
    the tenant of a request.
    """

    def __init__(
        self,
        num_replicas: int,
        *,
        tells: bool = True,
        spreads: bool = True,
        num_gateways: int = 2,
        num_blocks: int = 400,
        max_num_seqs: int = PLACES,
        max_batched_tokens: int = 128,
        load_bytes: int = 0,
    ) -> None:
        self.now = 0
        self.replicas = {
            f"replica-{number}": Simulator(num_blocks, max_num_seqs, max_batched_tokens, load_bytes)
            for number in range(num_replicas)
        }
        self.gateways = [Gateway(list(self.replicas), num_gateways, seed) for seed in range(num_gateways)]
        self.told_service: dict[tuple[str, str], float] = defaultdict(float)
        """The service elsewhere that a replica was told of, by replica and tenant."""
        self._tells = tells
        self._spreads = spreads
        self._max_num_seqs = max_num_seqs
        self._sent: dict[tuple[str, str], RunningRequest] = {}
        self._num_sent = 0
        self._beat()

    def service(self, tenant: str) -> float:
        """Return the service that a tenant got from the pool, before weights."""
        return sum(replica.service[tenant] for replica in self.replicas.values())

    def outstanding(self, tenant: str) -> int:
        return sum(replica.outstanding[tenant] for replica in self.replicas.values())

    def ttfts(self, tenant: str) -> list[int]:
        return [ttft for replica in self.replicas.values() for ttft in replica.ttfts[tenant]]

    def untold(self, tenant: str) -> float:
        """Return how much of a tenant's service by other replicas is unknown to the replica that knows least."""
        total = self.service(tenant)
        return max(
            total - each.service[tenant] - self.told_service[name, tenant] for name, each in self.replicas.items()
        )

    def send(self, tenant: str, prompt: int, output: int, adapter: str = "", weight: float = 1.0) -> str:
        """Send a request through the next gateway; return the replica that its balancer picks."""
        asked = Asked(adapter, prompt_tokens=prompt, tenant=tenant if self._spreads else "")
        gateway = self._next_gateway()
        name = gateway.balancer.pick(asked)
        assert name is not None
        self._send_to(name, gateway, asked, tenant, (prompt, output), weight)
        return name

    def send_to(self, name: str, tenant: str, prompt: int, output: int, adapter: str = "") -> None:
        """Send a request to a replica, whatever the balancers say."""
        self._send_to(name, self._next_gateway(), Asked(adapter, tenant=tenant), tenant, (prompt, output), 1.0)

    def step(self) -> None:
        self.now += 1
        for name, replica in self.replicas.items():
            replica.step()
            for delta in replica.landed.deltas:
                self._count(name, delta.request_id, delta.num_completion_tokens)
            for final in replica.landed.finals:
                self._end(name, final)
        if self.now % BEAT_STEPS == 0:
            self._beat()

    def _next_gateway(self) -> Gateway:
        self._num_sent += 1
        return self.gateways[self._num_sent % len(self.gateways)]

    def _send_to(
        self, name: str, gateway: Gateway, asked: Asked, tenant: str, size: tuple[int, int], weight: float
    ) -> None:
        gateway.balancer.taken(name, asked)
        request_id = self.replicas[name].send(tenant, *size, asked.adapter, weight)
        self._sent[name, request_id] = RunningRequest(gateway, asked, weight)

    def _count(self, name: str, request_id: str, num_tokens: int) -> None:
        sent = self._sent[name, request_id]
        tenant = request_id.partition("/")[0]
        sent.gateway.service.used(name, tenant, sent.weight, completion_tokens=num_tokens - sent.counted)
        sent.counted = num_tokens

    def _end(self, name: str, final: Final) -> None:
        sent, usage = self._sent.pop((name, final.request_id)), final.usage
        sent.gateway.service.used(
            name,
            final.request_id.partition("/")[0],
            sent.weight,
            prompt_tokens=usage.prompt_tokens - usage.cached_tokens,
            adapter_bytes=usage.adapter_load_bytes,
        )
        sent.gateway.balancer.given(name, sent.asked)

    def _beat(self) -> None:
        for gateway in self.gateways:
            told = gateway.service.elsewhere(self.replicas)
            for name, services in told.items() if self._tells else ():
                self.replicas[name].scheduler.count_elsewhere(services)
                for tenant, used in services.items():
                    moved = used.adapter_bytes / TOKEN_BYTES
                    self.told_service[name, tenant] += used.prompt_tokens + DECODE_COST * used.completion_tokens + moved
            for name, replica in self.replicas.items():
                gateway.balancer.update(self._picture(name, replica), float(self.now))

    def _picture(self, name: str, replica: Simulator) -> ReplicaLoad:
        scheduler = replica.scheduler
        return ReplicaLoad(
            id=name,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            capacity=self._max_num_seqs,
            resident=replica.resident,
            tenants={
                tenant: stats.num_running + stats.num_waiting for tenant, stats in scheduler.tenant_stats(32).items()
            },
        )
