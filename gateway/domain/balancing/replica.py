"""The data that the choice of a replica depends on: a snapshot of each replica, and the needs of a request.

Pure data.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

RANK_UNIT = 64
"""The rank of an adapter whose sequences weigh as much as two sequences without an adapter.

The products with adapters' weights grow with the sum of the ranks in a batch (CaraServe; Li et al., 2024).
"""


class ReplicaLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a replica, as its last heartbeat shows it."""

    id: str
    ready_since_s: float = 0.0
    """The moment at which the replica began to serve, on the clock of `Balancer.update`: slow start counts from here.
    """
    running: int = 0
    """Choices that run, over all gateways."""
    waiting: int = 0
    """Choices that wait for their turn at the replica, over all gateways."""
    capacity: int = 1
    """Choices that can run at once."""
    rank: int = 0
    """The sum of the ranks of all running and waiting choices' adapters; 0 where the replica does not tell."""
    free_blocks: int | None = None
    """Blocks of the KV cache that a new prompt may take; None where that is not known."""
    block_size: int = 16
    """Tokens of a block."""
    adapter_slots: int = 0
    """Adapters that can be resident at once; 0 where that is not known."""
    resident: frozenset[str] = frozenset()
    """Keys of the adapters on the device."""
    waiting_adapters: frozenset[str] = frozenset()
    """Keys of the adapters that are loading or in line for a slot."""
    tenants: Mapping[str, int] = {}
    """Running and waiting choices by tenant, of those with the most."""
    draining: bool = False
    """True if the replica finishes its requests and takes no new ones."""
    silent: bool = False
    """True if the connection is lost or heartbeats are missed."""


class Asked(msgspec.Struct, frozen=True):
    """The facts about a request on which the choice of its replica depends."""

    adapter: str = ""
    """The adapter's content key; "" for the base model."""
    rank: int = 0
    """The adapter's rank; 0 where it is not known."""
    prefixes: tuple[int, ...] = ()
    """Keys of the prompt's beginnings, the shortest first (`prefix_keys`)."""
    prompt_tokens: int = 0
    choices: int = 1
    tenant: str = ""
    """An opaque id; "" where one tenant's share of a replica does not matter."""

    @property
    def units(self) -> float:
        """The load that the request adds to a replica: 1 for a choice without an adapter."""
        return self.choices * (1.0 + self.rank / RANK_UNIT)
