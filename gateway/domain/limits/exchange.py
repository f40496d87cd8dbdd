"""One exchange with PostgreSQL, which decides each gateway's part of each limit while the limits are locked.

Pure: `decide` gets the rows that the transaction has read and says what it writes; `committed` and `failed` carry on
from there. Every amount is absolute, so an exchange whose outcome is unknown is corrected by the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gateway.domain.limits.holdings import Holdings
from gateway.domain.limits.slices import Entry, Key, Reservation, Shortage
from gateway.domain.limits.work import RequestWork

SLICE_S = 5.0
"""Seconds of reservations for which a slice holds enough in advance, if the gateway's share of the limit's rest allows.

Requests can then be admitted while PostgreSQL is slow.
"""

FIRST_SLICE = 8
"""The multiple of the amount reserved so far that a new slice holds, before the pace of its reservations is known."""

FREE_SHARE = 0.05
"""The largest share of a limit's rest that all gateways together may hold ahead of requests."""


class Account(msgspec.Struct, frozen=True):
    """A limit in its current window, with the amounts in the ledger and on other gateways."""

    window_start: int
    """The start of the window in Unix seconds."""
    max: int
    """The limit's amount in each window."""
    settled: int
    """The amount that the ledger has in the window."""
    leased: int
    """The amount that other gateways hold."""


class Snapshot(msgspec.Struct, frozen=True):
    """The state that a transaction reads while it holds the limits' locks."""

    now_ns: int
    """The database's time: Unix time in ns."""
    num_gateways: int
    """The number of gateways that live."""
    accounts: Mapping[str, Account]


class StaleRequest(msgspec.Struct, frozen=True):
    """The answer to a request that was planned for a window that is over, or for a limit that is gone."""

    now_ns: int
    """PostgreSQL's time, 0 where it was not read because no limit is left."""


class WaitingRequest(msgspec.Struct, eq=False):
    """A request that waits for an exchange, since this gateway's free leases are too small for it."""

    entries: tuple[Entry, ...]
    work: RequestWork
    """The request's prompts and their sizes."""
    instant_ns: int
    """PostgreSQL's time at which the request came, in Unix nanoseconds."""
    taken: tuple[int, ...]
    """The amounts that were free, in the order of entries."""
    answer: Reservation | Shortage | StaleRequest | None = None
    """The answer; None until there is one."""


def begin_reservation(entries: tuple[Entry, ...], work: RequestWork, instant_ns: int, now_s: float) -> WaitingRequest:
    """Begin to reserve for a request: take the free part of this gateway's leases at once.

    instant_ns: the time by PostgreSQL's clock, which decides the windows of limits.
    """
    taken = []
    for entry in entries:
        need = work.amount(entry.limit.unit, work.max_tokens)
        part = max(0, min(entry.slice.free, need))
        entry.slice.take(part, now_s)
        entry.slice.taken += need - part
        entry.slice.typical = max(entry.slice.typical, need)
        entry.slice.num_asks += 1
        taken.append(part)
    return WaitingRequest(entries, work, instant_ns, tuple(taken))


def grant_waiting(holdings: Holdings, one: WaitingRequest) -> bool:
    """Grant a waiting request out of leases that an exchange has brought since then.

    Return False if the leases are still too small.
    """
    needs = [one.work.amount(entry.limit.unit, one.work.max_tokens) for entry in one.entries]
    missing = [need - taken for need, taken in zip(needs, one.taken, strict=True)]
    if any(entry.slice.free < more for entry, more in zip(one.entries, missing, strict=True)):
        return False
    for entry, more in zip(one.entries, missing, strict=True):
        entry.slice.reserved += more
        entry.slice.num_asks -= 1
    one.answer = holdings.open_reservation(one.entries, one.work, one.work.max_tokens, one.instant_ns)
    return True


class Exchange:
    """One report of a gateway's leases to PostgreSQL. Nothing else may change `held` until it has ended."""

    def __init__(self, holdings: Holdings, asks: Sequence[WaitingRequest]) -> None:
        self._holdings = holdings
        self._asks = asks
        for one in asks:
            for entry, taken in zip(one.entries, one.taken, strict=True):
                if taken < one.work.amount(entry.limit.unit, one.work.max_tokens):
                    holdings.overfull.add(entry.slice.key)
                    entry.slice.keep = 0  # the whole amount is free for requests that ask, and is cut into slices again
        holdings.give_back()
        wanting = {key: each for key in holdings.wanting if (each := holdings.slices.get(key)) is not None}
        holdings.wanting.clear()
        holdings.is_urgent = False
        self._slices = wanting | {entry.slice.key: entry.slice for one in asks for entry in one.entries}
        self._amounts: dict[Key, int] = {}

    @property
    def limit_ids(self) -> list[str]:
        """The limits to lock and to read."""
        return sorted({key[0] for key in self._slices})

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to exchange."""
        return not self._slices and not self._holdings.dirty

    def decide(self, snapshot: Snapshot | None) -> dict[Key, int]:
        """Return the leases of this gateway that change; 0 ends a lease.

        snapshot: None if there was nothing to read.
        """
        self._amounts = {key: self._holdings.slices[key].held for key in self._holdings.dirty}
        if snapshot is not None:
            left = self._unheld_amounts(snapshot)
            for one in self._asks:
                self._answer(one, snapshot, left)
            self._cut_slices(snapshot, left)
        return self._amounts

    def committed(self) -> None:
        """Put the granted leases to use, since the transaction is committed."""
        holdings = self._holdings
        for key, held in self._amounts.items():
            holdings.slices[key].held = held
        holdings.dirty -= self._amounts.keys()
        for one in self._asks:
            self._unpin(one)
            if isinstance(one.answer, Reservation):
                for entry, taken in zip(one.entries, one.taken, strict=True):
                    # Less than was taken where another limit clamped the request.
                    entry.slice.reserved += one.work.amount(entry.limit.unit, one.answer.cap) - taken
                    holdings.note_spare(entry.slice)
                one.answer = holdings.open_reservation(one.entries, one.work, one.answer.cap, one.instant_ns)
            else:
                self._undo(one)

    def failed(self) -> None:
        """Undo the exchange, whose end is unknown.

        The leases in PostgreSQL are at least as large as `held` in either case.
        """
        self._holdings.dirty |= self._amounts.keys()
        for one in self._asks:
            one.answer = None
            self._unpin(one)
            self._undo(one)

    @staticmethod
    def _unpin(one: WaitingRequest) -> None:
        for entry in one.entries:
            entry.slice.num_asks -= 1

    def _undo(self, one: WaitingRequest) -> None:
        for entry, taken in zip(one.entries, one.taken, strict=True):
            entry.slice.reserved -= taken
            self._holdings.note_spare(entry.slice)

    def _unheld_amounts(self, snapshot: Snapshot) -> dict[Key, int]:
        """Return the amounts that nobody holds of the limits that still exist."""
        left = {}
        for key, each in self._slices.items():
            account = snapshot.accounts.get(key[0])
            if account is not None and account.window_start == key[1]:
                left[key] = account.max - account.settled - account.leased - each.held
        return left

    def _answer(self, one: WaitingRequest, snapshot: Snapshot, left: dict[Key, int]) -> None:
        """Grant a request all that it needs, or nothing."""
        work, cap = one.work, one.work.max_tokens
        for entry, taken in zip(one.entries, one.taken, strict=True):
            account = snapshot.accounts.get(entry.limit.id)
            if account is None or account.window_start != entry.slice.key[1]:
                one.answer = StaleRequest(snapshot.now_ns)
                return
            least = work.least(entry.limit)
            fits = work.cap_within(entry.limit.unit, taken + max(0, left[entry.slice.key]))
            if fits is None or fits < least:
                one.answer = Shortage(
                    entry.limit,
                    work.amount(entry.limit.unit, least),
                    account.settled,
                    account.max - account.settled - left[entry.slice.key],
                    snapshot.now_ns,
                    entry.slice.window_end,
                )
                return
            cap = min(cap, fits)
        for entry, taken in zip(one.entries, one.taken, strict=True):
            key, grant = entry.slice.key, max(0, work.amount(entry.limit.unit, cap) - taken)
            if grant:
                left[key] -= grant
                self._amounts[key] = self._amounts.get(key, entry.slice.held) + grant
        one.answer = Reservation(one.entries, work, cap, one.instant_ns, set())

    def _cut_slices(self, snapshot: Snapshot, left: dict[Key, int]) -> None:
        for key, room in left.items():
            each = self._slices[key]
            share = int(max(0, room) * FREE_SHARE / snapshot.num_gateways)
            keep = min(int(max(each.per_s * SLICE_S, each.taken * FIRST_SLICE)), share)
            each.keep = keep if keep >= each.typical else 0
            more = max(0, each.keep - max(0, each.free))
            if more:
                left[key] -= more
                self._amounts[key] = self._amounts.get(key, each.held) + more
            each.left = left[key]
