"""Bounds on the open connections of each address, and of all addresses together.

One client cannot take them all, and this process can always open files. Per gateway process.

Connections over a bound are answered with 429, or 503, and closed before anything is read from them. Knows nothing
about requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.domain.tenancy.addresses import Network, client_of, contains

RETRY_AFTER_S = 1
_BODY = b'{"error":{"message":"%b","type":"%b","param":null,"code":"%b"}}'


def _refusal(status: bytes, message: bytes, kind: bytes, code: bytes) -> bytes:
    body = _BODY % (message, kind, code)
    return (
        b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\n"
        b"retry-after: %d\r\ncontent-length: %d\r\n\r\n%b" % (status, RETRY_AFTER_S, len(body), body)
    )


REFUSAL = _refusal(
    b"429 Too Many Requests", b"Your address has too many open connections.", b"requests", b"rate_limit_exceeded"
)
FULL = _refusal(
    b"503 Service Unavailable",
    b"The server has too many open connections. Try again later.",
    b"server_error",
    b"server_is_overloaded",
)


class ConnectionCap:
    """Counts open connections, per client and in all.

    max_per_client: 0: no bound.
    exempt: proxies that speak for many clients. Their connections count only in max_in_all.
    """

    def __init__(self, max_per_client: int, exempt: Sequence[Network] = (), *, max_in_all: int = 1 << 20) -> None:
        self._max_per_client = max_per_client
        self._max_in_all = max_in_all
        self._exempt = exempt
        self._num_open: Counter[str] = Counter()
        self._num_in_all = 0

    def enter(self, address: str) -> bool:
        """Count one more connection, or return False where no more may be open.

        Each that was counted has to `leave`.
        """
        client = client_of(address)
        full = 0 < self._max_per_client <= self._num_open[client]
        if full and not contains(self._exempt, address):
            return False
        self._num_open[client] += 1
        self._num_in_all += 1
        return True

    @property
    def is_full(self) -> bool:
        """Tell whether no client may open one more connection."""
        return self._num_in_all >= self._max_in_all

    def leave(self, address: str) -> None:
        client = client_of(address)
        self._num_in_all -= 1
        self._num_open[client] -= 1
        if not self._num_open[client]:
            del self._num_open[client]


def capped_protocol(base: type[HttpToolsProtocol], cap: ConnectionCap) -> type[HttpToolsProtocol]:
    """Return a protocol for HTTP whose connections the cap bounds."""

    class CappedProtocol(base):  # type: ignore[misc, valid-type]
        counted: str | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            address = self.client[0] if self.client else ""
            if cap.is_full:
                transport.write(FULL)
                transport.close()
            elif cap.enter(address):
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
