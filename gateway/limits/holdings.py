"""What one gateway holds of every limit: its leases, cut into what requests reserved and what is free to reserve.

    held = reserved + unwritten + free

`held` is the lease that PostgreSQL knows of, or less: what a failed write left there is never used. A running request
has `reserved` its worst case; one that ended has what it used `unwritten` until the ledger has it, and the rest is free
again. A slice is the part that is kept free ahead of requests. Pure: no I/O, no clock; times are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from engine.protocol import Usage
from gateway.limits.limit import Calendar, Limit
from gateway.limits.work import Work, amount

DROP_S = 60.0
"""An empty slice that nobody used for this long is forgotten."""

SLICE_S = 1.0
"""A slice is what the gateway reserves in this time, where its share of what is left allows that."""

IDLE_S = 2.0
"""A slice that nobody used for this long is given back."""

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
    large recent request. per_s: what is reserved per second, of which taken since the last look. left, max: what nobody
    held at the last look, of what at most. short, short_s: the last refusal, and when it was.
    frozen: the limit has changed, nothing that is spare may be reserved before it was given back.
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
    max: int = 0
    short: Shortage | None = None
    short_s: float = 0.0
    frozen: bool = False

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


class Holdings:
    """All slices of one gateway, and the requests that hold parts of them."""

    def __init__(self) -> None:
        self.slices: dict[Key, Slice] = {}
        self.overfull: set[Key] = set()
        """Slices that have something to give back."""
        self.thirsty: set[Key] = set()
        """Slices that want more."""
        self.dirty: set[Key] = set()
        """Slices whose lease in PostgreSQL may be larger than what is held."""
        self._latest: dict[str, Slice] = {}
        self._calendar = Calendar()
        self._parts: dict[str, tuple[Hold, int]] = {}
        self._unwritten: dict[str, list[tuple[Slice, int]]] = {}

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
        return self.hold(entries, work, cap, instant_ns)

    def hold(self, entries: tuple[Entry, ...], work: Work, cap: int, instant_ns: int) -> Hold:
        """A request for which the amounts are in `reserved` already."""
        hold = Hold(entries, work, cap, instant_ns, set(range(len(work.parts))))
        for index, part in enumerate(work.parts):
            self._parts[part.request_id] = hold, index
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

    def awaits(self, request_ids: Iterable[str]) -> bool:
        """Whether the ledger's taking any of these changes a lease."""
        return any(request_id in self._unwritten for request_id in request_ids)

    def dispatched(self, request_id: str) -> None:
        """The engine has this part: its usage will come."""
        if (part := self._parts.get(request_id)) is not None:
            part[0].dispatched.add(part[1])

    def ended(self, request_id: str, usage: Usage) -> None:
        """A part used this much. What it reserved beyond that is free again."""
        part = self._parts.pop(request_id, None)
        if part is None:
            return
        hold, index = part
        hold.open.discard(index)
        used = []
        for entry in hold.entries:
            unit = entry.limit.unit
            reserved = hold.work.part_amount(index, unit, hold.cap)
            spent = amount(unit, index, usage.prompt_tokens, usage.completion_tokens, hold.work.price)
            spent = min(spent, reserved)
            entry.slice.reserved -= reserved
            entry.slice.unwritten += spent
            if spent:
                used.append((entry.slice, spent))
            self.look_at(entry.slice)
        if used:
            self._unwritten[request_id] = used

    def close(self, hold: Hold) -> None:
        """The request is answered: its place among the concurrent ones is free, and so is what never ran."""
        if hold.closed:
            return
        hold.closed = True
        for index in hold.open - hold.dispatched:
            self.ended(hold.work.parts[index].request_id, Usage(0, 0))
            self._forget_unused(hold.work.parts[index].request_id)
        for entry in hold.entries:
            if entry.limit.unit == "concurrency":
                entry.slice.reserved -= 1
                self.look_at(entry.slice)

    def writing(self, request_ids: Iterable[str]) -> dict[Key, int]:
        """The leases as they are once the usage of these parts is in the ledger."""
        amounts: dict[Key, int] = {}
        for request_id in request_ids:
            for each, spent in self._unwritten.get(request_id, ()):
                amounts[each.key] = amounts.get(each.key, each.held) - spent
        return amounts

    def written(self, request_ids: Iterable[str]) -> None:
        """The ledger has the usage of these parts, and their leases are smaller by it."""
        for request_id in request_ids:
            for each, spent in self._unwritten.pop(request_id, ()):
                each.held -= spent
                each.unwritten -= spent

    def tick(self, now_s: float, elapsed_s: float, instant_ns: int) -> None:
        """Look at the pace of every slice: some want more, others have nothing to do any more."""
        for each in list(self.slices.values()):
            each.per_s = (each.per_s + each.taken / elapsed_s) / 2
            each.taken = 0
            over = each.window_end is not None and instant_ns >= each.window_end * 1_000_000_000
            if over or now_s - each.used_s >= IDLE_S:
                each.per_s, each.keep, each.typical = 0.0, 0, 0
            if each.keep and each.is_thirsty:
                self.thirsty.add(each.key)
            self.look_at(each)
            if each.held == each.reserved == each.unwritten == 0 and now_s - each.used_s >= DROP_S:
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

    def _forget_unused(self, request_id: str) -> None:
        """A part that never ran is in no ledger, so nothing of it waits to be written."""
        for each, spent in self._unwritten.pop(request_id, ()):
            each.unwritten -= spent
            self.look_at(each)
