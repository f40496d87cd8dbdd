"""A bound on the open connections of each address, and of all: so that this process can always open files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gateway.domain.tenancy.addresses import Network, client_of, contains


class ConnectionCap:
    """Counts the open connections of one process.

    max_per_client: the most connections of one client; 0: no bound. exempt: proxies that speak for many clients; their
    connections count in max_in_all only. max_in_all: the most connections of all clients together.
    """

    def __init__(self, max_per_client: int, exempt: Sequence[Network] = (), *, max_in_all: int = 1 << 20) -> None:
        self._max_per_client = max_per_client
        self._max_in_all = max_in_all
        self._exempt = exempt
        self._num_open: Counter[str] = Counter()
        self._num_in_all = 0

    @property
    def is_full(self) -> bool:
        """True if no address may open one more connection."""
        return self._num_in_all >= self._max_in_all

    def enter(self, address: str) -> bool:
        """Count one more connection.

        Return False if its address may open no more; after True, call `leave` at its end.
        """
        client = client_of(address)
        if 0 < self._max_per_client <= self._num_open[client] and not contains(self._exempt, address):
            return False
        self._num_open[client] += 1
        self._num_in_all += 1
        return True

    def leave(self, address: str) -> None:
        """Count one connection less."""
        client = client_of(address)
        self._num_in_all -= 1
        self._num_open[client] -= 1
        if not self._num_open[client]:
            del self._num_open[client]
