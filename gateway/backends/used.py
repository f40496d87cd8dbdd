"""The amounts that requests used on a backend, as they are reported to the pool's other backends."""

from __future__ import annotations

import msgspec


class UsedAmounts(msgspec.Struct, frozen=True):
    """The amounts that one request used on a backend."""

    tenant: str
    weight: float
    """The weight of the request (`GenerateRequest.weight`)."""
    prompt_tokens: int
    """Computed prompt tokens, the cached ones left aside."""
    completion_tokens: int
    """Completion tokens, those included that were computed after the end of the text."""
    adapter_bytes: int
    """Bytes of the adapter that were loaded for the request."""
