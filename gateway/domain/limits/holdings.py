"""All leases that one gateway holds of limits, and the requests that have reserved parts of them.

Pure: no I/O, no clock; times are passed in, in seconds of a monotonic clock and ns of PostgreSQL's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from engine.protocol import Usage
from gateway.domain.limits.limit import NS_PER_S, Calendar, Limit
from gateway.domain.limits.slices import Entry, Key, Reservation, Shortage, Slice
from gateway.domain.limits.work import RequestWork, part_amounts, request_amounts

IDLE_S = 2.0
"""Seconds without use after which a slice is given back."""

DROP_S = 60.0
"""Seconds without use after which an empty slice is forgotten."""


class Row(NamedTuple):
    """A row of the ledger with the usage of a part: the final count, or one that was seen of a lost engine."""

    request_id: str
    is_final: bool


class _Part(msgspec.Struct, eq=False):
    """One prompt of a request, with an amount for each limit of its reservation."""

    reservation: Reservation
    index: int
    """The number of the prompt in its request."""
    most: list[int]
    """The reserved amounts: the most that the part can use."""
    spent: list[int]
    """The amounts that are known to be used."""


class Holdings:
    """All leases that one gateway holds, as slices, and the requests that have reserved parts of them."""

    def __init__(self) -> None:
        self.slices: dict[Key, Slice] = {}
        self.overfull: set[Key] = set()
        """Keys of the slices that hold more than they need, and have to give a part back."""
        self.wanting: set[Key] = set()
        """Keys of the slices that need a larger lease."""
        self.is_urgent = False
        """True if a slice is nearly empty, so that the next exchange cannot wait."""
        self.dirty: set[Key] = set()
        """Keys of the slices whose lease in PostgreSQL may be larger than `Slice.held`."""
        self._latest: dict[str, Slice] = {}
        self._calendar = Calendar()
        self._parts: dict[str, _Part] = {}
        self._unwritten: dict[Row, list[tuple[Slice, int]]] = {}

    def entries(self, limits: Sequence[Limit], instant_ns: int) -> tuple[Entry, ...]:
        """Return the slice of each limit in the window of an instant."""
        return tuple(Entry(limit, self._slice(limit, instant_ns)) for limit in limits)

    def reserve(
        self, entries: tuple[Entry, ...], work: RequestWork, instant_ns: int, now_s: float
    ) -> Reservation | None:
        """Reserve the most that a request can use, out of what is free here; return None if that is not enough.

        entries: the slices of the limits that apply. instant_ns: the time of the request by PostgreSQL's clock.
        """
        cap = work.max_tokens
        units = [entry.limit.unit for entry in entries]
        of_parts = work.of_parts(units, cap)
        needs = request_amounts(units, of_parts)
        for entry, need in zip(entries, needs, strict=True):
            if entry.slice.free < need:
                return None
        for entry, need in zip(entries, needs, strict=True):
            each = entry.slice
            each.take(need, now_s)
            if each.keep and each.is_low:
                self.wanting.add(each.key)
                self.is_urgent = self.is_urgent or each.is_nearly_empty
        return self._add_parts(Reservation(entries, work, cap, instant_ns, set(range(len(of_parts)))), of_parts)

    def open_reservation(self, entries: tuple[Entry, ...], work: RequestWork, cap: int, instant_ns: int) -> Reservation:
        """Return the reservation of a request whose amounts are in `reserved` already.

        cap: the most tokens of the request. instant_ns: the time of the request by PostgreSQL's clock.
        """
        of_parts = work.of_parts([entry.limit.unit for entry in entries], cap)
        return self._add_parts(Reservation(entries, work, cap, instant_ns, set(range(len(of_parts)))), of_parts)

    def _add_parts(self, reservation: Reservation, of_parts: list[list[int]]) -> Reservation:
        for index, (part, most) in enumerate(zip(reservation.work.parts, of_parts, strict=True)):
            self._parts[part.request_id] = _Part(reservation, index, most, [0] * len(most))
        return reservation

    def note_shortage(self, entries: Sequence[Entry], shortage: Shortage, now_s: float) -> None:
        """Record a refusal at the slice of the limit that was short."""
        for entry in entries:
            if entry.limit.id == shortage.limit.id:
                entry.slice.short, entry.slice.short_s = shortage, now_s

    def known_shortage(
        self, entries: Sequence[Entry], work: RequestWork, instant_ns: int, since_s: float
    ) -> Shortage | None:
        """Return a limit that was short since an instant and whose rest is too small for this request as well."""
        for entry in entries:
            short = entry.slice.short
            if short is not None and entry.slice.short_s > since_s and entry.limit.unit != "concurrency":
                need = work.amount(entry.limit.unit, work.least(entry.limit))
                if need > entry.limit.max - short.used - short.reserved:
                    return msgspec.structs.replace(short, need=need, now_ns=instant_ns)
        return None

    def awaits(self, rows: Iterable[Row]) -> bool:
        """Tell whether a lease changes when the ledger has any of these rows."""
        return any(row in self._unwritten for row in rows)

    def dispatched(self, request_id: str) -> None:
        """Record that an engine has this part, so that its usage will come."""
        if (part := self._parts.get(request_id)) is not None:
            part.reservation.dispatched.add(part.index)

    def superseded(self, request_id: str) -> None:
        """Record that no engine has this part any more, and that it used nothing: another attempt may follow."""
        if (part := self._parts.get(request_id)) is not None:
            part.reservation.dispatched.discard(part.index)
            if part.reservation.closed:
                self.give_up(request_id)

    def seen(self, request_id: str, usage: Usage) -> None:
        """Record that a part has used at least this much, for which there will be a row.

        The part's engine is lost and may report more, up to all that is reserved.
        """
        if (part := self._parts.get(request_id)) is not None:
            self._spend(part, usage, Row(request_id, is_final=False))

    def ended(self, request_id: str, usage: Usage) -> None:
        """Record that a part used this much. The rest of its reservation is free again."""
        if (part := self._parts.pop(request_id, None)) is not None:
            self._spend(part, usage, Row(request_id, is_final=True))
            self._release_part(part)

    def give_up(self, request_id: str) -> None:
        """Free the reservation of a part that never ran, or whose usage nobody will report any more."""
        if (part := self._parts.pop(request_id, None)) is not None:
            self._release_part(part)

    def _spend(self, part: _Part, usage: Usage, row: Row) -> None:
        """Move the newly known use of a part from the reserved amounts to those that wait for their ledger row."""
        work, entries = part.reservation.work, part.reservation.entries
        all_spent = part_amounts(
            [entry.limit.unit for entry in entries],
            usage.prompt_tokens,
            usage.completion_tokens,
            work.price,
            is_request=work.is_request(part.index),
        )
        used = []
        for place, (entry, spent) in enumerate(zip(entries, all_spent, strict=True)):
            more = min(spent, part.most[place]) - part.spent[place]
            if more > 0:
                part.spent[place] += more
                each = entry.slice
                each.reserved -= more
                each.unwritten += more
                used.append((each, more))
        if used:
            self._unwritten[row] = used

    def _release_part(self, part: _Part) -> None:
        reservation = part.reservation
        reservation.open.discard(part.index)
        for entry, most, spent in zip(reservation.entries, part.most, part.spent, strict=True):
            entry.slice.reserved -= most - spent
            self.note_spare(entry.slice)

    def close(self, reservation: Reservation) -> None:
        """Free an answered request's place among the concurrent ones.

        The reservation of parts that never ran is freed as well.
        """
        if reservation.closed:
            return
        reservation.closed = True
        for index in reservation.open - reservation.dispatched:
            self.give_up(reservation.work.parts[index].request_id)
        for entry in reservation.entries:
            if entry.limit.unit == "concurrency":
                entry.slice.reserved -= 1
                self.note_spare(entry.slice)

    def writing(self, rows: Iterable[Row]) -> dict[Key, int]:
        """Return the leases that these rows shrink, each as it is once the rows are in the ledger, by slice."""
        amounts: dict[Key, int] = {}
        for row in rows:
            for each, spent in self._unwritten.get(row, ()):
                amounts[each.key] = amounts.get(each.key, each.held) - spent
        return amounts

    def written(self, rows: Iterable[Row]) -> None:
        """Shrink the leases by these rows, which the ledger has."""
        for row in rows:
            for each, spent in self._unwritten.pop(row, ()):
                each.held -= spent
                each.unwritten -= spent

    def tick(self, now_s: float, elapsed_s: float, instant_ns: int) -> None:
        """Measure the pace of every slice, after which some need more and others have something to give back.

        elapsed_s: the seconds since the last call. instant_ns: the present time by PostgreSQL's clock.
        """
        for each in list(self.slices.values()):
            each.per_s = (each.per_s + each.taken / elapsed_s) / 2
            each.taken = 0
            over = each.window_end is not None and instant_ns >= each.window_end * NS_PER_S
            if over or now_s - each.used_s >= IDLE_S:
                each.per_s, each.keep, each.typical = 0.0, 0, 0
            if each.keep and each.is_low:
                self.wanting.add(each.key)
            self.note_spare(each)
            if now_s - each.used_s >= DROP_S and each.held == each.reserved == each.unwritten == each.num_asks == 0:
                self._drop_slice(each)

    def note_spare(self, each: Slice) -> None:
        """Mark a slice as one that may have something to give back."""
        if each.is_overfull:
            each.short = None
            self.overfull.add(each.key)

    def give_back(self) -> None:
        """Give up the parts of leases that no request will need. The next exchange tells PostgreSQL."""
        for key in self.overfull:
            each = self.slices.get(key)
            if each is not None and each.is_overfull:
                each.held -= each.spare - each.keep
                self.dirty.add(key)
            if each is not None:
                each.frozen = False
        self.overfull.clear()

    def forget_free(self, limit_id: str | None = None) -> None:
        """Reserve nothing more out of slices from before a change of a limit (None: of any limit).

        The leases of these slices go back with the next exchange.
        """
        for each in self.slices.values():
            if limit_id in (None, each.key[0]):
                each.keep, each.short, each.frozen = 0, None, True
                self.overfull.add(each.key)

    def amounts(self) -> dict[Key, int]:
        """Return all leases that requests still need, without what is free.

        A gateway that was forgotten claims these.
        """
        return {key: need for key, each in self.slices.items() if (need := each.reserved + each.unwritten)}

    def reclaim(self) -> None:
        """Set all slices to exactly `amounts()`, which will be claimed from PostgreSQL."""
        for each in self.slices.values():
            each.held, each.keep = each.reserved + each.unwritten, 0
        self.dirty.clear()

    def _slice(self, limit: Limit, instant_ns: int) -> Slice:
        now = self._calendar.period(limit.window, instant_ns)
        key = (limit.id, now.start)
        found = self.slices.get(key)
        if found is None:
            found = self.slices[key] = Slice(key, now.end)
            if (before := self._latest.get(limit.id)) is not None:
                found.per_s, found.typical = before.per_s, before.typical
            self._latest[limit.id] = found
        return found

    def _drop_slice(self, each: Slice) -> None:
        if each.key in self.dirty:
            return
        del self.slices[each.key]
        if self._latest.get(each.key[0]) is each:
            del self._latest[each.key[0]]
