"""The data of what one gateway holds of limits: slices, what requests reserved of them, and why one was refused.

    held = reserved + unwritten + free

`held` is the lease that PostgreSQL knows of, or less: what a failed write left there is never used. A running request
has `reserved` its worst case; one that ended has what it used `unwritten` until the ledger has it, and the rest is free
again. A slice is the part that is kept free ahead of requests.
"""

from __future__ import annotations

import msgspec

from gateway.domain.limits.limit import Limit
from gateway.domain.limits.work import Work

Key = tuple[str, int]
"""A limit's id and the start of a window, Unix seconds."""


class Shortage(msgspec.Struct, frozen=True):
    """Why a request was refused. used is settled, reserved is leased by all gateways. need: the least that would do.
    frees_s: when the window ends, Unix seconds; now_ns: PostgreSQL's time."""

    limit: Limit
    need: int
    used: int
    reserved: int
    now_ns: int
    frees_s: int | None


class Slice(msgspec.Struct, eq=False):
    """One limit in one window. window_end: Unix seconds, None without one.

    keep: the most that is held free ahead of requests; 0 asks for each request by itself. typical: the amount of a
    large recent request. per_s: what is reserved per second, of which taken since the last look. left: what nobody held
    at the last look. short, short_s: the last refusal, and when it was.
    frozen: the limit has changed, nothing that is spare may be reserved before it was given back. num_asks: requests
    that wait for PostgreSQL's answer about it.
    """

    key: Key
    window_end: int | None
    held: int = 0
    reserved: int = 0
    unwritten: int = 0
    keep: int = 0
    typical: int = 0
    taken: int = 0
    per_s: float = 0.0
    used_s: float = 0.0
    left: int = 0
    short: Shortage | None = None
    short_s: float = 0.0
    frozen: bool = False
    num_asks: int = 0

    @property
    def spare(self) -> int:
        return self.held - self.reserved - self.unwritten

    @property
    def free(self) -> int:
        """What may be reserved."""
        return 0 if self.frozen else self.spare

    @property
    def is_overfull(self) -> bool:
        return self.spare > 2 * self.keep

    @property
    def is_thirsty(self) -> bool:
        return 2 * self.free < self.keep

    @property
    def is_parched(self) -> bool:
        """It would not last until the next look."""
        return 8 * self.free < self.keep

    def take(self, need: int, now_s: float) -> None:
        self.reserved += need
        self.taken += need
        self.typical = max(self.typical, need)
        self.used_s = now_s


class Entry(msgspec.Struct, frozen=True, eq=False):
    """A limit that a request needs, and the slice it is taken from."""

    limit: Limit
    slice: Slice


class Hold(msgspec.Struct, eq=False):
    """What one request has reserved. cap: the most tokens of each completion. open: the parts that have not ended yet,
    of which those in dispatched will end with a usage. instant_ns: PostgreSQL's time at which it was admitted."""

    entries: tuple[Entry, ...]
    work: Work
    cap: int
    instant_ns: int
    open: set[int]
    dispatched: set[int] = msgspec.field(default_factory=set)
    closed: bool = False
