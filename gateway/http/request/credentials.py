"""The headers of a request that hold a key."""

from __future__ import annotations

from litestar.types import HTTPScope, Scope

from gateway.domain.errors import InvalidRequest

HEADERS = (b"authorization", b"x-api-key")
"""The headers that may hold a key. Each has one value and is no list (RFC 9110, 5.3 and 11.6.2)."""


def authorization_of(scope: Scope) -> str | None:
    """Return the header `authorization`; without one, a header with the key in `x-api-key`."""
    found = None
    for name, value in scope["headers"]:
        if name == b"authorization":
            return value.decode("latin-1")
        if name == b"x-api-key":
            found = f"Bearer {value.decode('latin-1')}"
    return found


def repeated_credential(scope: HTTPScope) -> InvalidRequest | None:
    """Return the refusal of a request with two headers of a name that may hold a key; None for other requests.

    A proxy that checks a key may have read the one that this server would not.
    """
    given = [name for name, _ in scope["headers"] if name in HEADERS]
    if len(given) == len(set(given)):
        return None
    name = next(name for name in given if given.count(name) > 1).decode()
    return InvalidRequest(f"The header '{name}' came more than once: send one key.", code="repeated_header")
