"""Counts the bad keys and passwords of each address of late. In bounded memory, without a clock of its own."""

from __future__ import annotations

from collections import OrderedDict

from gateway.domain.tenancy.addresses import client_of

WINDOW_S = 60.0
MAX_CLIENTS = 10_000


class FailureCap:
    """At most max_failures per client and minute; 0: no cap.

    Counts in windows that begin with a client's first failure. Beyond max_clients, the client without failures for
    longest is forgotten.
    """

    def __init__(self, max_failures: int, max_clients: int = MAX_CLIENTS) -> None:
        self._max_failures = max_failures
        self._max_clients = max_clients
        self._windows: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def blocked_for_s(self, address: str, now_s: float) -> float:
        """Return the seconds until an address may try again; 0 when it may now.

        now_s: the time on a monotonic clock.
        """
        if not self._windows:
            return 0.0
        started_s, num_failures = self._windows.get(client_of(address), (now_s, 0))
        if num_failures < self._max_failures:
            return 0.0
        return max(0.0, started_s + WINDOW_S - now_s)

    def count(self, address: str, now_s: float) -> None:
        """Count a failure of an address."""
        if not self._max_failures:
            return
        client = client_of(address)
        started_s, num_failures = self._windows.get(client, (now_s, 0))
        if now_s - started_s >= WINDOW_S:
            started_s, num_failures = now_s, 0
        self._windows[client] = (started_s, num_failures + 1)
        self._windows.move_to_end(client)
        if len(self._windows) > self._max_clients:
            self._windows.popitem(last=False)

    def give_back(self, address: str) -> None:
        """Subtract one counted failure of an address, since the attempt has not failed after all."""
        client = client_of(address)
        started_s, num_failures = self._windows.get(client, (0.0, 0))
        if num_failures:
            self._windows[client] = (started_s, num_failures - 1)

    def __len__(self) -> int:
        return len(self._windows)
