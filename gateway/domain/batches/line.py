"""The facts that tell a line of a batch from a request of its own, for all rooms that the line passes."""

from __future__ import annotations

import base64
import hashlib

import msgspec

ATTEMPTS_PER_BEGIN = 8
"""The numbers of attempts that are reserved each time a line is begun: a request gets fewer attempts."""

MAX_FILE_BYTES = 200 << 20
"""The most bytes of an input file."""

_ID_BYTES = 15


class BatchWait(msgspec.Struct, frozen=True):
    """The reason why no line of a batch can run now, as the error that a request would get instead of a reply."""

    code: str
    """The error's code, such as `insufficient_quota`."""
    message: str
    """The error's text, such as which limit is reached."""


class BatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that runs.

    Engines compute it in the batch band, limits of minutes and of concurrency do not count it, and it is billed in the
    tier `batch`.
    """

    begun: int
    """The number of times that the line was begun before; the operator bears the usage of those attempts."""
    instant_ns: int
    """The time at which the line was begun first, in Unix nanoseconds, which all its rows in the ledger have."""
    slack_s: float | None = None
    """Seconds by which the line can be delayed: 0 where deadlines go first, None where turns decide."""
    batch_id: str = ""
    """The id of the batch."""

    @property
    def first_attempt(self) -> int:
        """Return the number of the first attempt since the line was begun last."""
        return self.begun * ATTEMPTS_PER_BEGIN


def request_id_of(batch_id: str, number: int) -> str:
    """Return the id of a line's request, the same however often the line is begun."""
    digest = hashlib.sha256(f"{batch_id}/{number}".encode()).digest()[:_ID_BYTES]
    return f"req_{base64.b32encode(digest).decode().lower()}"
