"""The record of what one client saw; knows nothing of how its bytes came."""

from __future__ import annotations

import msgspec


class Received(msgspec.Struct):
    """The part of a reply that its client received."""

    status: int = 0
    """The status of the reply; 0 where no reply came."""
    request_id: str = ""
    num_tokens: int = 0
    has_ended: bool = False
    """True if the last event came."""
    has_failed: bool = False
    """True if an event was an error."""
    usage: dict[str, int] | None = None
