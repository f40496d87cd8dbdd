"""The interface to PostgreSQL that leases need. Knows neither SQL nor how a gateway decides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import msgspec

from gateway.domain.limits.exchange import Snapshot
from gateway.domain.limits.slices import Key


class SessionLost(Exception):
    """The error when PostgreSQL has forgotten this gateway, and its leases with it."""


class Beat(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    now_ns: int
    """PostgreSQL's time in Unix nanoseconds."""
    num_gateways: int
    """The number of gateways with heartbeats."""


class LeaseStore(Protocol):
    """The transactions of leases. A failed method raises one of `failures`."""

    failures: tuple[type[Exception], ...]

    async def exchange(
        self, gateway_id: str, limit_ids: Collection[str], decide: Callable[[Snapshot | None], Mapping[Key, int]]
    ) -> None:
        """Lock limits, read their state, and write the leases that `decide` returns for the state.

        Raises SessionLost: when this gateway was forgotten.
        """

    async def beat(self, gateway_id: str) -> Beat:
        """Record that a gateway lives, and forget gateways that have not reported for long.

        Raises SessionLost: when this gateway was forgotten.
        """

    async def claim(self, gateway_id: str, amounts: Mapping[Key, int]) -> Beat:
        """Begin the gateway's session again, with leases for all amounts in use, even if other gateways get less."""

    async def clean_up(self) -> None:
        """Delete the accounts of windows that are long over."""

    async def leave(self, gateway_id: str) -> None:
        """End the gateway's session: its leases are forgotten."""
