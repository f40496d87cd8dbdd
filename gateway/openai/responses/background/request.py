"""The request for a response that runs in the background, as it is kept until then."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

_PREFIX = b"x-lorikeet-"


class BackgroundRequest(msgspec.Struct, frozen=True):
    """The parts of a request that it takes to run it as if its client had just sent it."""

    request_id: str
    body: bytes
    """The body of the request."""
    headers: list[tuple[bytes, bytes]]
    """The headers that experiments read."""


def of_experiments(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers that are kept of a request."""
    return [(bytes(name), bytes(value)) for name, value in headers if name.startswith(_PREFIX)]
