"""A bound on the open connections of each address, so that one client cannot take them all. Per gateway process.

Connections over the bound are answered with 429 and closed before anything is read from them. Knows nothing about
requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.domain.tenancy.addresses import Network, client_of, contains

RETRY_AFTER_S = 1
_BODY = (
    b'{"error":{"message":"Too many open connections from your address.","type":"requests","param":null,'
    b'"code":"rate_limit_exceeded"}}'
)
REFUSAL = (
    b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"retry-after: %d\r\ncontent-length: %d\r\n\r\n%b" % (RETRY_AFTER_S, len(_BODY), _BODY)
)


class ConnectionCap:
    """Counts open connections per client. max_per_client 0: no bound. exempt: proxies that speak for many clients."""

    def __init__(self, max_per_client: int, exempt: Sequence[Network] = ()) -> None:
        self._max_per_client = max_per_client
        self._exempt = exempt
        self._num_open: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Whether one more may be open; each that may has to `leave`."""
        client = client_of(address)
        full = 0 < self._max_per_client <= self._num_open[client]
        if full and not contains(self._exempt, address):
            return False
        self._num_open[client] += 1
        return True

    def leave(self, address: str) -> None:
        client = client_of(address)
        self._num_open[client] -= 1
        if not self._num_open[client]:
            del self._num_open[client]


def capped_protocol(base: type[HttpToolsProtocol], cap: ConnectionCap) -> type[HttpToolsProtocol]:
    """A protocol for HTTP, under the cap."""

    class CappedProtocol(base):  # type: ignore[misc, valid-type]
        counted: str | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            address = self.client[0] if self.client else ""
            if cap.enter(address):
                self.counted = address
            else:
                transport.write(REFUSAL)
                transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self.counted is not None:
                cap.leave(self.counted)
                self.counted = None

    return CappedProtocol
