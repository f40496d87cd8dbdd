"""The data of the limits that one gateway holds: slices, the requests' reservations, and the reason of a refusal.

held = reserved + unwritten + free

`held` is the lease that PostgreSQL knows of, or less: the rest of a lease after a failed write is never used. A running
request has `reserved` its worst case; one that ended has its usage `unwritten` until the ledger has it, and the rest is
free again. A slice is the part that is kept free ahead of requests.
"""

from __future__ import annotations

import msgspec

from gateway.domain.limits.limit import Limit
from gateway.domain.limits.work import RequestWork

Key = tuple[str, int]
"""A limit's id and the start of a window, Unix seconds."""


class Shortage(msgspec.Struct, frozen=True):
    """The facts about a limit that had too little left for a request."""

    limit: Limit
    need: int
    """The least amount with which the request could run."""
    used: int
    """The amount that the ledger has."""
    reserved: int
    """The amount that all gateways have leased."""
    now_ns: int
    """PostgreSQL's time."""
    frees_s: int | None
    """Unix seconds at which the limit's window ends; None for a limit without a window."""


class Slice(msgspec.Struct, eq=False):
    """One gateway's lease of one limit in one window."""

    key: Key
    window_end: int | None
    """The end of the limit's window in Unix seconds; None for a limit without a window."""
    held: int = 0
    """The gateway's lease, as far as the gateway may use it."""
    reserved: int = 0
    """The most that running requests can use."""
    unwritten: int = 0
    """The usage of ended requests that the ledger does not have yet."""
    keep: int = 0
    """The most that is held free ahead of requests; 0: PostgreSQL is asked for each request by itself."""
    typical: int = 0
    """The size of a large recent reservation."""
    taken: int = 0
    """The amount that was reserved since the last tick."""
    per_s: float = 0.0
    """The amount that is reserved per second of late."""
    used_s: float = 0.0
    """The time of the last reservation, in seconds of a monotonic clock."""
    left: int = 0
    """The rest of the limit that no gateway held at the last exchange."""
    short: Shortage | None = None
    """The facts about the last refusal; None where there was none."""
    short_s: float = 0.0
    """The time of the last refusal, in seconds of a monotonic clock."""
    frozen: bool = False
    """True once the limit has changed: the spare part may not be reserved, and is given back."""
    num_asks: int = 0
    """Requests that wait for PostgreSQL's answer about this slice."""

    @property
    def spare(self) -> int:
        """The amount of the lease that no request has reserved or used."""
        return self.held - self.reserved - self.unwritten

    @property
    def free(self) -> int:
        """The amount of the lease that may be reserved."""
        return 0 if self.frozen else self.held - self.reserved - self.unwritten

    @property
    def is_overfull(self) -> bool:
        """True if the slice holds far more than it needs in advance."""
        return self.held - self.reserved - self.unwritten > 2 * self.keep

    @property
    def is_low(self) -> bool:
        """True if less than half of the amount that the slice should hold free is free."""
        return 2 * self.free < self.keep

    @property
    def is_nearly_empty(self) -> bool:
        """Tell whether the free part of the slice would not last until the next tick."""
        return 8 * self.free < self.keep

    def take(self, need: int, now_s: float) -> None:
        """Reserve an amount for a request.

        need: the amount in the limit's unit.
        """
        self.reserved += need
        self.taken += need
        if need > self.typical:
            self.typical = need
        self.used_s = now_s


class Entry(msgspec.Struct, frozen=True, eq=False):
    """A limit that a request needs, and the slice that the amount is taken from."""

    limit: Limit
    slice: Slice


class Reservation(msgspec.Struct, eq=False):
    """The amounts that one request has reserved."""

    entries: tuple[Entry, ...]
    work: RequestWork
    cap: int
    """The most tokens of each completion."""
    instant_ns: int
    """PostgreSQL's time at which the request was admitted."""
    open: set[int]
    """The parts that have not ended yet."""
    dispatched: set[int] = msgspec.field(default_factory=set)
    """The parts that an engine has, which will end with a usage."""
    closed: bool = False
    """True once no part can use the reservation any more."""
