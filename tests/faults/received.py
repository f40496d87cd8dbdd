"""The record of what one client saw; knows nothing of how its bytes came."""

from __future__ import annotations

import msgspec


class Received(msgspec.Struct):
    """The part of a reply that its client received.

    status: the status of the reply; 0 where no reply came. has_ended: whether the last event came. has_failed: whether
    an event was an error.
    """

    status: int = 0
    request_id: str = ""
    num_tokens: int = 0
    has_ended: bool = False
    has_failed: bool = False
    usage: dict[str, int] | None = None
