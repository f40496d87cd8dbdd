"""What one client saw."""

from __future__ import annotations

import msgspec


class Seen(msgspec.Struct):
    """status 0: no reply came. has_ended: the last event came too; has_failed: it was an error."""

    status: int = 0
    request_id: str = ""
    num_tokens: int = 0
    has_ended: bool = False
    has_failed: bool = False
    usage: dict[str, int] | None = None
