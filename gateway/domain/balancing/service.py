"""The service that a gateway's tenants got on each replica, reported to the other replicas: weights hold over the pool.

Each engine serves next the tenant with the least service by its weight (`engine.scheduling.fairness`). By itself an
engine knows only the service that it gave: a tenant whose adapter lives on one of four replicas, beside a tenant that
fills all four, would get half of one replica, an eighth of the pool. So each gateway tells each engine with its
heartbeats what its own requests used on the others since the last one, and the engine counts that too.

Why so, and not a deficit for each tenant and replica in the gateway (D2LPM; Cao et al., 2025). Deficits make a tenant's
service equal on every replica, from which fairness over the pool follows; a backlogged tenant's adapters then have to
live everywhere, each gateway enforces its own share alone, and one slow replica holds a tenant back on all. Counters of
the pool are fair wherever tenants meet: the one that got less elsewhere goes first here, adapters stay where they are,
and a tenant that needs no more than its replicas give is served there at once. A tenant gets the rest of its due
because its requests spread: the balancer lets no tenant fill a replica while it has less on another
(`gateway.domain.balancing.balancer`). No tenant is held back where nobody else waits.

Amounts are increments: gateways add up without knowing of each other, and a lost connection or process costs at most
one heartbeat's worth. With D the service that was used and is not reported yet, two tenants that wait on all N replicas
differ in what they get, by weight, by at most

    2 * (max(L, 2 * M) + (N - 1) * 2 * M + A + 512 + D)

token units in any interval (L: longest prompt; M: tokens that run at once on a replica; A: largest adapter). D is the
service that the other replicas give between two heartbeats, and the prompts and adapter loads of requests that run
there.

    service = PoolService()
    service.used("replica-1", tenant, weight, completion_tokens=new)   # of each stream, before each heartbeat
    service.used("replica-1", tenant, weight, prompt_tokens=usage.prompt_tokens - usage.cached_tokens,
                 completion_tokens=rest, adapter_bytes=usage.adapter_load_bytes)                   # at its end
    for replica_id, elsewhere in service.elsewhere(replica_ids).items():                            # each second
        ...                                        # Heartbeat(sequence, elsewhere=elsewhere) to that replica
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.protocol import Service

MAX_TENANTS = 1024
"""The most tenants that one heartbeat reports: those that used the most."""

_NOTHING = (0.0, 0.0, 0.0)


class PoolService:
    """The amounts that one gateway's requests used since its last heartbeats, by replica and tenant."""

    def __init__(self) -> None:
        self._used: dict[str, dict[str, list[float]]] = {}

    def used(
        self,
        replica_id: str,
        tenant: str,
        weight: float,
        *,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        adapter_bytes: int = 0,
    ) -> None:
        """Count the use of a replica by a request since the last call for that request.

        weight: the request's weight, above 0. prompt_tokens, completion_tokens, adapter_bytes: the amounts since the
        last call.
        """
        amounts = self._used.setdefault(replica_id, {}).setdefault(tenant, [*_NOTHING])
        amounts[0] += prompt_tokens / weight
        amounts[1] += completion_tokens / weight
        amounts[2] += adapter_bytes / weight

    def elsewhere(self, replica_ids: Iterable[str]) -> dict[str, dict[str, Service]]:
        """Return the amounts to report to each replica, and set them to zero. A replica without news has no key."""
        used, self._used = self._used, {}
        totals: dict[str, list[float]] = {}
        for tenants in used.values():
            for tenant, amounts in tenants.items():
                total = totals.setdefault(tenant, [*_NOTHING])
                for i, amount in enumerate(amounts):
                    total[i] += amount
        most = sorted(totals, key=lambda tenant: totals[tenant][0] + totals[tenant][1], reverse=True)[:MAX_TENANTS]
        reports = {
            replica_id: _services_elsewhere(totals, most, used.get(replica_id, {})) for replica_id in replica_ids
        }
        return {replica_id: services for replica_id, services in reports.items() if services}


def _services_elsewhere(
    totals: dict[str, list[float]], tenants: list[str], here: dict[str, list[float]]
) -> dict[str, Service]:
    """Return by tenant the use of all other replicas: the totals less the use of this replica."""
    services = {}
    for tenant in tenants:
        total, own = totals[tenant], here.get(tenant, _NOTHING)
        amounts = [max(0.0, all_of - mine) for all_of, mine in zip(total, own, strict=True)]
        if any(amounts):
            services[tenant] = Service(*amounts)
    return services
