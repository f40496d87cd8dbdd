"""The choice of the tenant that is served next: virtual token counters (VTC; Sheng et al., OSDI 2024).

Knows tenants and numbers only.

Each tenant has a counter of the service it has received, in token units divided by its weight; the one with the
smallest is served next. Service is what the tenant's requests cost the engine:

    uncached prompt tokens + DECODE_COST * completion tokens + bytes of adapters loaded for it / bytes of a token

A token's bytes are those of its keys and values in the cache: loading an adapter moves as much memory as that many
tokens fill. Prompts and loads are charged at admission, completion tokens as they come. Tokens that are computed again
after a preemption are not charged.

A tenant that has nothing waiting earns no credit: when it returns, its counter is lifted to the smallest of those that
wait. A tenant is forgotten once that lift would override whatever is remembered of it.

Bound. Admission takes a tenant whose counter is at most `QUANTUM_TOKENS` above the smallest (see
`engine.scheduling.waiting_queue`), so two tenants of weight 1 that both have admissible requests throughout an interval
receive service that differs by at most 2 * (max(L, DECODE_COST * M) + A + QUANTUM_TOKENS) in it, L being the longest
prompt, M the most tokens (prompts and completions) of the sequences that run at once, A the largest adapter in token
units.

A pool. Gateways tell each of N replicas what tenants got on the others, and it counts as if it were got here, so the
counters are those of the pool. Two tenants that have admissible requests on all replicas throughout an interval then
receive from the pool service that differs by at most

    2 * (max(L, DECODE_COST * M) + (N - 1) * DECODE_COST * M + A + QUANTUM_TOKENS + D)

beyond what their counters differed by at its beginning. D is the most that a tenant got elsewhere and a replica was not
told of yet: what N - 1 replicas do between two heartbeats, and prompts and loads of the requests that run there, which
are told of at their end. The reason: a tenant whose counter is more than QUANTUM_TOKENS + D above another tenant's on
the whole pool is admitted nowhere where the other one waits, and its running sequences take at most the first terms.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

DECODE_COST = 2.0
QUANTUM_TOKENS = 512.0
MAX_REMEMBERED = 1024


class ServiceCounters:
    """A counter for each tenant with live requests, and for those gone idle ahead of everyone else."""

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._num_live: dict[str, int] = {}
        self._floor = 0.0  # the smallest waiting counter at the last admission

    def __len__(self) -> int:
        return len(self._counters)

    def service_of(self, tenant: str) -> float:
        """Return the counter of a tenant with live requests or a remembered counter."""
        return self._counters[tenant]

    def arrive(self, tenant: str) -> None:
        """Count one more live request of the tenant."""
        self._num_live[tenant] = self._num_live.get(tenant, 0) + 1
        self._counters.setdefault(tenant, self._floor)

    def leave(self, tenant: str) -> None:
        """Count one live request less for the tenant."""
        self._num_live[tenant] -= 1
        if self._num_live[tenant]:
            return
        del self._num_live[tenant]
        if self._counters[tenant] <= self._floor:
            del self._counters[tenant]
        elif len(self._counters) - len(self._num_live) > MAX_REMEMBERED:
            self._forget_idle()

    def lift(self, tenant: str, waiting: Iterable[str]) -> None:
        """Lift the tenant's counter before the tenant joins those that wait.

        The tenant has no credit for the time in which it asked for nothing.
        """
        smallest = min(map(self._counters.__getitem__, waiting), default=self._floor)
        self._counters[tenant] = max(self._counters[tenant], smallest)

    def admit(self, tenant: str, smallest: float, cost: float) -> None:
        """Charge the start of a request.

        smallest: the smallest of the counters of all that wait. cost: as for `charge`.
        """
        self._floor = max(self._floor, smallest)
        self._counters[tenant] += cost

    def charge(self, tenant: str, cost: float) -> None:
        """Charge a cost to the tenant. cost: token units divided by the request's weight."""
        self._counters[tenant] += cost

    def charge_elsewhere(self, tenant: str, cost: float) -> None:
        """Count service of another replica, for a tenant that is remembered here; others are lifted when they come.

        cost: as for `charge`. A cost that is no positive number is not counted.
        """
        if tenant in self._counters and 0.0 < cost < inf:
            self._counters[tenant] += cost

    def _forget_idle(self) -> None:
        """Forget the counters of idle tenants that the lift would override.

        To stay bounded come what may, forget the lower half of the others as well.
        """
        idle = sorted((c, tenant) for tenant, c in self._counters.items() if tenant not in self._num_live)
        for counter, tenant in idle:
            if counter > self._floor and len(self._counters) - len(self._num_live) <= MAX_REMEMBERED // 2:
                return
            del self._counters[tenant]
