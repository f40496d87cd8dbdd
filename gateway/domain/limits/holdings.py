"""All that one gateway holds of limits, and the requests that hold parts of it.

Pure: no I/O, no clock; times are passed in, in seconds of a monotonic clock and ns of PostgreSQL's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from engine.protocol import Usage
from gateway.domain.limits.limit import NS_PER_S, Calendar, Limit
from gateway.domain.limits.slices import Entry, Hold, Key, Shortage, Slice
from gateway.domain.limits.work import Work, amount

IDLE_S = 2.0
"""A slice that nobody used for this long is given back."""

DROP_S = 60.0
"""An empty slice that nobody used for this long is forgotten."""


class Row(NamedTuple):
    """What the ledger takes of a part: its final count, or before that what was seen of a lost engine."""

    request_id: str
    is_final: bool


class _Part(msgspec.Struct, eq=False):
    """One prompt of a request, with an amount of each entry of its hold."""

    hold: Hold
    index: int
    most: list[int]
    """What it has reserved: the most that it can use."""
    spent: list[int]
    """What is known to be used."""


class Holdings:
    """All slices of one gateway, and the requests that hold parts of them."""

    def __init__(self) -> None:
        self.slices: dict[Key, Slice] = {}
        self.overfull: set[Key] = set()
        """Slices that have something to give back."""
        self.thirsty: set[Key] = set()
        """Slices that want more."""
        self.is_urgent = False
        """One of them cannot wait."""
        self.dirty: set[Key] = set()
        """Slices whose lease in PostgreSQL may be larger than what is held."""
        self._latest: dict[str, Slice] = {}
        self._calendar = Calendar()
        self._parts: dict[str, _Part] = {}
        self._unwritten: dict[Row, list[tuple[Slice, int]]] = {}

    def entries(self, limits: Sequence[Limit], instant_ns: int) -> tuple[Entry, ...]:
        return tuple(Entry(limit, self._slice(limit, instant_ns)) for limit in limits)

    def reserve(self, entries: tuple[Entry, ...], work: Work, instant_ns: int, now_s: float) -> Hold | None:
        """The worst case of all of it, out of what is free here; None where that does not do."""
        cap = work.max_tokens
        needs = [work.amount(entry.limit.unit, cap) for entry in entries]
        for entry, need in zip(entries, needs, strict=True):
            if entry.slice.free < need:
                return None
        for entry, need in zip(entries, needs, strict=True):
            entry.slice.take(need, now_s)
            if entry.slice.is_thirsty:
                self.thirsty.add(entry.slice.key)
                self.is_urgent = self.is_urgent or entry.slice.is_parched
        return self.hold(entries, work, cap, instant_ns)

    def hold(self, entries: tuple[Entry, ...], work: Work, cap: int, instant_ns: int) -> Hold:
        """A request for which the amounts are in `reserved` already."""
        hold = Hold(entries, work, cap, instant_ns, set(range(len(work.parts))))
        for index, part in enumerate(work.parts):
            most = [work.part_amount(index, entry.limit.unit, cap) for entry in entries]
            self._parts[part.request_id] = _Part(hold, index, most, [0] * len(entries))
        return hold

    def note_shortage(self, entries: Sequence[Entry], shortage: Shortage, now_s: float) -> None:
        for entry in entries:
            if entry.limit.id == shortage.limit.id:
                entry.slice.short, entry.slice.short_s = shortage, now_s

    def known_shortage(self, entries: Sequence[Entry], work: Work, instant_ns: int, since_s: float) -> Shortage | None:
        """A limit that was short since then, and whose rest would not do for this request either."""
        for entry in entries:
            short = entry.slice.short
            if short is not None and entry.slice.short_s > since_s and entry.limit.unit != "concurrency":
                need = work.amount(entry.limit.unit, work.least(entry.limit))
                if need > entry.limit.max - short.used - short.reserved:
                    return msgspec.structs.replace(short, need=need, now_ns=instant_ns)
        return None

    def awaits(self, rows: Iterable[Row]) -> bool:
        """Whether the ledger's taking any of these changes a lease."""
        return any(row in self._unwritten for row in rows)

    def dispatched(self, request_id: str) -> None:
        """The engine has this part: its usage will come."""
        if (part := self._parts.get(request_id)) is not None:
            part.hold.dispatched.add(part.index)

    def seen(self, request_id: str, usage: Usage) -> None:
        """A part has used at least this much, of which there will be a row; its engine is lost and may tell of more, up
        to all that is reserved."""
        if (part := self._parts.get(request_id)) is not None:
            self._spend(part, usage, Row(request_id, is_final=False))

    def ended(self, request_id: str, usage: Usage) -> None:
        """A part used this much. What it reserved beyond that is free again."""
        if (part := self._parts.pop(request_id, None)) is not None:
            self._spend(part, usage, Row(request_id, is_final=True))
            self._release(part)

    def give_up(self, request_id: str) -> None:
        """A part never ran, or nobody will tell any more how far: what is reserved of it is free."""
        if (part := self._parts.pop(request_id, None)) is not None:
            self._release(part)

    def _spend(self, part: _Part, usage: Usage, row: Row) -> None:
        """What it used beyond what is known already waits for the row to be written."""
        used = []
        for place, entry in enumerate(part.hold.entries):
            spent = amount(
                entry.limit.unit, part.index, usage.prompt_tokens, usage.completion_tokens, part.hold.work.price
            )
            more = min(spent, part.most[place]) - part.spent[place]
            if more > 0:
                part.spent[place] += more
                entry.slice.reserved -= more
                entry.slice.unwritten += more
                used.append((entry.slice, more))
        if used:
            self._unwritten[row] = used

    def _release(self, part: _Part) -> None:
        hold = part.hold
        hold.open.discard(part.index)
        for entry, most, spent in zip(hold.entries, part.most, part.spent, strict=True):
            entry.slice.reserved -= most - spent
            self.look_at(entry.slice)

    def close(self, hold: Hold) -> None:
        """The request is answered: its place among the concurrent ones is free, and so is what never ran."""
        if hold.closed:
            return
        hold.closed = True
        for index in hold.open - hold.dispatched:
            self.give_up(hold.work.parts[index].request_id)
        for entry in hold.entries:
            if entry.limit.unit == "concurrency":
                entry.slice.reserved -= 1
                self.look_at(entry.slice)

    def writing(self, rows: Iterable[Row]) -> dict[Key, int]:
        """The leases as they are once these are in the ledger."""
        amounts: dict[Key, int] = {}
        for row in rows:
            for each, spent in self._unwritten.get(row, ()):
                amounts[each.key] = amounts.get(each.key, each.held) - spent
        return amounts

    def written(self, rows: Iterable[Row]) -> None:
        """The ledger has these, and their leases are smaller by them."""
        for row in rows:
            for each, spent in self._unwritten.pop(row, ()):
                each.held -= spent
                each.unwritten -= spent

    def tick(self, now_s: float, elapsed_s: float, instant_ns: int) -> None:
        """Look at the pace of every slice: some want more, others have nothing to do any more."""
        for each in list(self.slices.values()):
            each.per_s = (each.per_s + each.taken / elapsed_s) / 2
            each.taken = 0
            over = each.window_end is not None and instant_ns >= each.window_end * NS_PER_S
            if over or now_s - each.used_s >= IDLE_S:
                each.per_s, each.keep, each.typical = 0.0, 0, 0
            if each.keep and each.is_thirsty:
                self.thirsty.add(each.key)
            self.look_at(each)
            if now_s - each.used_s >= DROP_S and each.held == each.reserved == each.unwritten == each.num_asks == 0:
                self._drop(each)

    def look_at(self, each: Slice) -> None:
        """Something of it may have become free."""
        if each.is_overfull:
            each.short = None
            self.overfull.add(each.key)

    def give_back(self) -> None:
        """Hold less by what no request will need: PostgreSQL has yet to hear of it."""
        for key in self.overfull:
            each = self.slices.get(key)
            if each is not None and each.is_overfull:
                each.held -= each.spare - each.keep
                self.dirty.add(key)
            if each is not None:
                each.frozen = False
        self.overfull.clear()

    def forget_free(self, limit_id: str | None = None) -> None:
        """A limit has changed, None for any: nothing is reserved out of slices that were cut before, which go back with
        the next exchange."""
        for each in self.slices.values():
            if limit_id in (None, each.key[0]):
                each.keep, each.short, each.frozen = 0, None, True
                self.overfull.add(each.key)

    def amounts(self) -> dict[Key, int]:
        """All leases that requests still need, and nothing that is free: what a gateway that was forgotten claims."""
        return {key: need for key, each in self.slices.items() if (need := each.reserved + each.unwritten)}

    def reclaim(self) -> None:
        """PostgreSQL is going to know of exactly `amounts()`."""
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

    def _drop(self, each: Slice) -> None:
        if each.key in self.dirty:
            return
        del self.slices[each.key]
        if self._latest.get(each.key[0]) is each:
            del self._latest[each.key[0]]
