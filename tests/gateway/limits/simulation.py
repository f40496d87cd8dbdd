"""Gateways, an engine and a database in one deterministic world, where everything that can go wrong does at some seed.

The gateways run the limiter's own pure parts; the database is a few dictionaries with the semantics of the SQL: whole
transactions, row locks (one exchange at a time), the ledger's trigger, gateways suspected and then forgotten. Replies
are lost before and after the commit, gateways die and are cut off, the database freezes, its clock jumps.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from engine.protocol import Usage
from gateway.domain.limits.clock import DatabaseClock
from gateway.domain.limits.exchange import (
    Account,
    Exchange,
    Snapshot,
    StaleRequest,
    WaitingRequest,
    begin_reservation,
    grant_waiting,
)
from gateway.domain.limits.holdings import Holdings, Row
from gateway.domain.limits.limit import NS_PER_S, Limit, calendar_window
from gateway.domain.limits.slices import Key, Reservation, Shortage
from gateway.domain.limits.work import PRICE_SCALE, Price, PromptWork, RequestWork, part_amounts
from gateway.limits.keeper import SHORT_S, SILENT_S

Fates = tuple[int, int, int]
"""The weights of the possible outcomes of a transaction: committed, lost before the commit, or without a reply."""

SUSPECT_S, FORGET_S = 5, 15
ENGINE_NOTICES_S = 4
GIVE_UP_S = 10
QUIET_ROUNDS = 6
"""The number of final rounds, of half a second each, in which no requests begin."""
PRICE = Price(3 * PRICE_SCALE, 7 * PRICE_SCALE)


class Event(msgspec.Struct, frozen=True):
    """A row of the ledger."""

    tenant: str
    index: int
    usage: Usage
    instant_ns: int
    used: Mapping[Key, int]
    """The usage in each account that the row counts in."""
    is_final: bool = True
    """True if the count is the engine's own, which replaces any other count."""


class World:
    """The simulated database, with its clock."""

    def __init__(self, limits: list[Limit]) -> None:
        self.now_ns = 1_790_000_030 * NS_PER_S
        self.limits = {limit.id: limit for limit in limits}
        self.settled: Counter[Key] = Counter()
        self.leases: dict[Key, dict[str, int]] = {}
        self.heard_ns: dict[str, int] = {}
        self.suspected_ns: dict[str, int] = {}
        self.ledger: dict[str, Event] = {}
        self.allowed: Counter[Key] = Counter()
        """The largest max that was in force in each window."""
        self.resettled: set[Key] = set()
        """Accounts that have changed since the last check."""
        self.recounted: set[str] = set()
        """Ids of requests of which the ledger or a gateway has learned since the last check."""

    def key(self, limit: Limit, instant_ns: int) -> Key:
        return limit.id, calendar_window(limit.window, instant_ns).start

    def snapshot(self, gateway: str, limit_ids: list[str]) -> Snapshot:
        accounts = {}
        for limit_id in limit_ids:
            limit = self.limits.get(limit_id)
            if limit is not None:
                key = self.key(limit, self.now_ns)
                self.allowed[key] = max(self.allowed[key], limit.max)
                others = sum(held for other, held in self.leases.get(key, {}).items() if other != gateway)
                accounts[limit_id] = Account(key[1], limit.max, self.settled[key], others)
        return Snapshot(self.now_ns, max(1, len(self.heard_ns) - len(self.suspected_ns)), accounts)

    def write_leases(self, gateway: str, amounts: Mapping[Key, int]) -> None:
        for key, held in amounts.items():
            if gateway in self.heard_ns and key[0] in self.limits:
                leases = self.leases.setdefault(key, {})
                if held > 0:
                    leases[gateway] = held
                else:
                    leases.pop(gateway, None)

    def has(self, row: Row, event: Event) -> bool:
        """Tell whether the ledger has this event, or a final one in its place."""
        known = self.ledger.get(row.request_id)
        return known is event or (known is not None and known.is_final)

    def write_usage(self, events: Mapping[str, Event]) -> None:
        self.recounted |= events.keys()
        for request_id, event in events.items():
            known = self.ledger.get(request_id)
            if known is None:
                self.ledger[request_id] = event
                self.settle(event)
            elif event.is_final and not known.is_final:
                self.ledger[request_id] = event
                self.settle(event)
                for key, spent in known.used.items():
                    self.settled[key] -= spent

    def settle(self, event: Event) -> None:
        self.resettled |= event.used.keys()
        for key, spent in event.used.items():
            self.settled[key] += spent

    def event(self, running: AdmittedRequest, index: int, usage: Usage, *, is_final: bool = True) -> Event:
        """Return the ledger's row for one part of a request.

        is_final: False: the row is an attempt that another one follows.
        """
        instant_ns, tenant = running.reservation.instant_ns, running.tenant
        used = {
            self.key(limit, instant_ns): part_amounts(
                [limit.unit], usage.prompt_tokens, usage.completion_tokens, PRICE, is_request=index == 0
            )[0]
            for limit in self.limits.values()
            if limit.window != "none" and limit.project_id in (None, tenant)
        }
        return Event(tenant, index, usage, instant_ns, used, is_final)

    def beat(self, gateway: str) -> bool:
        self.suspect_anew()
        if gateway not in self.heard_ns:
            return False
        self.heard_ns[gateway] = self.now_ns
        self.suspected_ns.pop(gateway, None)
        for other, heard_ns in self.heard_ns.items():
            if self.now_ns - heard_ns > SUSPECT_S * NS_PER_S:
                self.suspected_ns.setdefault(other, self.now_ns)
        for other, since_ns in list(self.suspected_ns.items()):
            if self.now_ns - since_ns > FORGET_S * NS_PER_S:
                self.forget(other)
        return True

    def suspect_anew(self) -> None:
        if self.now_ns - max(self.heard_ns.values(), default=self.now_ns) > SUSPECT_S * NS_PER_S:
            self.suspected_ns = dict.fromkeys(self.suspected_ns, self.now_ns)

    def forget(self, gateway: str) -> None:
        self.heard_ns.pop(gateway, None)
        self.suspected_ns.pop(gateway, None)
        for leases in self.leases.values():
            leases.pop(gateway, None)

    def claim(self, gateway: str, amounts: Mapping[Key, int]) -> None:
        self.suspect_anew()
        self.heard_ns[gateway] = self.now_ns
        self.write_leases(gateway, amounts)


class AdmittedRequest(msgspec.Struct, eq=False):
    """An admitted request."""

    tenant: str
    reservation: Reservation
    gateway: Gateway
    worst: dict[Key, int] = msgspec.field(default_factory=dict)
    """The most that the request can use of each account."""
    places: tuple[Key, ...] = ()
    ended: dict[int, Usage] = msgspec.field(default_factory=dict)
    """The usage of each part that has ended."""

    def __post_init__(self) -> None:
        work = self.reservation.work
        units = {entry.slice.key: entry.limit.unit for entry in self.reservation.entries}
        self.places = tuple(key for key, unit in units.items() if unit == "concurrency")
        for key, unit in units.items():
            self.worst[key] = sum(most for (most,) in work.of_parts([unit], self.reservation.cap))


class LostPart(msgspec.Struct, eq=False):
    """A part whose engine was lost by its gateway."""

    running: AdmittedRequest
    index: int
    final: Event | None
    """The engine's own count."""
    comes_s: float
    """The time at which the engine's count reaches the gateway; infinite: never."""
    given_up_s: float
    """The time at which the gateway stops waiting for that count."""
    is_told: bool = False


class Gateway:
    """One simulated gateway process, driven step by step as the limiter drives itself."""

    def __init__(self, world: World, rng: random.Random, name: str, holdings: Holdings, fates: Fates) -> None:
        self.world, self.rng, self.name, self.holdings, self.fates = world, rng, name, holdings, fates
        self.id = name
        self.generation = 0
        self.alive, self.cut_off_until_s = True, 0.0
        self.elapsed_s = 0.0
        self._origin_s = rng.uniform(0, 1e6)
        self.clock = DatabaseClock(lambda: self._origin_s + self.elapsed_s)
        self.waiting: list[tuple[str, WaitingRequest]] = []
        self.unwritten: dict[Row, Event] = {}
        self.heard_s = float("-inf")
        self.finish: Callable[[], None] | None = None
        """The second half of a running transaction."""
        self.admitted: list[AdmittedRequest] = []
        self.refused: list[Shortage] = []
        self.ticked_s = 0.0
        self.max_batch = 5
        self.claim()

    def claim(self) -> None:
        self.generation += 1
        self.id = f"{self.name}.{self.generation}"
        self.holdings.reclaim()
        self.world.claim(self.id, self.holdings.amounts())
        self._heard()

    def _heard(self) -> None:
        self.heard_s = self.clock.monotonic()
        self.clock.set(self.world.now_ns)

    def beat(self) -> bool:
        """Send a heartbeat. Return whether the gateway was forgotten and has registered again."""
        if self.world.beat(self.id):
            self._heard()
            return False
        if self.finish is None:
            self.claim()
        return self.finish is None

    def count(self, row: Row, event: Event) -> None:
        """Record an event to be written to the ledger."""
        self.unwritten[row] = event
        self.world.recounted.add(row.request_id)

    def tick(self) -> None:
        now_s = self.clock.monotonic()
        if self.finish is None and now_s > self.ticked_s:
            self.holdings.tick(now_s, max(0.01, now_s - self.ticked_s), self.clock.now_ns())
            self.ticked_s = now_s

    def arrive(self, tenant: str, work: RequestWork) -> None:
        limits = tuple(limit for limit in self.world.limits.values() if limit.project_id in (None, tenant))
        if not limits:
            return
        now_s, instant_ns = self.clock.monotonic(), self.clock.now_ns()
        entries = self.holdings.entries(limits, instant_ns)
        if now_s - self.heard_s <= SILENT_S:
            reservation = self.holdings.reserve(entries, work, instant_ns, now_s)
            if reservation is not None:
                self.admitted.append(AdmittedRequest(tenant, reservation, self))
                return
            short = self.holdings.known_shortage(entries, work, instant_ns, now_s - SHORT_S)
            if short is not None:
                self.refused.append(short)
                return
        self.waiting.append((tenant, begin_reservation(entries, work, instant_ns, now_s)))

    def exchange(self) -> None:
        """Start an exchange with the database; its reply comes later, or never."""
        is_known = self.clock.monotonic() - self.heard_s <= SILENT_S
        waiting = []
        for tenant, asked in self.waiting:
            if is_known and grant_waiting(self.holdings, asked):
                assert isinstance(asked.answer, Reservation)
                self.admitted.append(AdmittedRequest(tenant, asked.answer, self))
            else:
                waiting.append((tenant, asked))
        self.waiting = []
        exchange = Exchange(self.holdings, [asked for _, asked in waiting])
        if exchange.is_empty:
            return
        fate = self.rng.choices(("done", "lost before", "lost after"), self.fates)[0]
        if self.id not in self.world.heard_ns and exchange.limit_ids:
            fate = "lost before"
        if fate != "lost before":
            snapshot = self.world.snapshot(self.id, exchange.limit_ids) if exchange.limit_ids else None
            self.world.write_leases(self.id, exchange.decide(snapshot))

        def finish() -> None:
            if fate != "done":
                exchange.failed()
                return
            exchange.committed()
            for tenant, asked in waiting:
                if isinstance(asked.answer, Reservation):
                    self.admitted.append(AdmittedRequest(tenant, asked.answer, self))
                elif isinstance(asked.answer, Shortage):
                    self.refused.append(asked.answer)
                    self.holdings.note_shortage(asked.entries, asked.answer, self.clock.monotonic())
                else:
                    assert isinstance(asked.answer, StaleRequest)
                    self.clock.set(asked.answer.now_ns)

        self.finish = finish

    def write(self) -> None:
        """Write a batch of events in one transaction, as the meter does."""
        batch = dict(list(self.unwritten.items())[: self.rng.randint(1, self.max_batch)])
        if not batch:
            return
        fate = self.rng.choices(("done", "lost before", "lost after"), self.fates)[0]
        amounts = self.holdings.writing(batch)
        if fate != "lost before":
            for row, event in batch.items():
                self.world.write_usage({row.request_id: event})
            self.world.write_leases(self.id, amounts)

        def finish() -> None:
            if fate == "done":
                self.holdings.written(batch)
                for row in batch:
                    del self.unwritten[row]
                    self.world.recounted.add(row.request_id)
            else:
                self.holdings.dirty |= amounts.keys()

        self.finish = finish


class Simulation:
    """A simulated world whose events are drawn from one seed. `run` raises AssertionError where a promise breaks."""

    def __init__(
        self,
        seed: int,
        world: type[World] = World,
        holdings: type[Holdings] = Holdings,
        *,
        num_gateways: int = 0,
        fates: Fates = (20, 1, 1),
    ) -> None:
        self.fates = fates
        self.rng = random.Random(seed)
        self.world = world(_limits(self.rng))
        self.holdings = holdings
        self.elapsed_s = 0.0
        self.running: list[AdmittedRequest] = []
        self.orphans: list[tuple[float, AdmittedRequest]] = []
        self.lost: list[LostPart] = []
        self.num_requests = self.num_started = 0
        self.promised: Counter[Key] = Counter()
        """The worst cases of all running and orphaned requests, and the usage of ended ones that the ledger does not
        have."""
        self.counters: dict[str, Gateway] = {}
        """The gateway that counts an ended request, by the request's id."""
        self.untold: dict[str, Event] = {}
        """The count that the engine is going to report, by the id of a request whose gateway lost its engine."""
        self.to_come: dict[str, Mapping[Key, int]] = {}
        """The usage of an ended request that the ledger does not have yet, by the request's id. All of it is
        promised."""
        self.touched: set[Gateway] | None = None
        """The gateways that have changed since the last check; None stands for any of them."""
        self.gateways: list[Gateway] = []
        for _ in range(num_gateways or self.rng.choice((1, 2, 3, 5, 20))):
            self.start_gateway()

    def start_gateway(self) -> None:
        self.num_started += 1
        self.gateways.append(Gateway(self.world, self.rng, f"gw{self.num_started}", self.holdings(), self.fates))

    def run(self, num_steps: int = 300) -> None:
        for _ in range(num_steps):
            self.step()
            self.check()
        self.drain()

    def step(self) -> None:
        rng = self.rng
        gateway = rng.choice(self.gateways)
        action = rng.choices(
            ("arrive", "transact", "end", "time", "die", "cut off", "freeze", "clock", "limit", "start", "lose"),
            (30, 40, 25, 20, 0.3, 0.3, 0.2, 0.2, 0.5, 0.3, 1.0),
        )[0]
        self.touched = {gateway} if action in ("arrive", "transact", "end", "time") else None
        match action:
            case "arrive":
                for _ in range(rng.choice((1, 1, 1, 5))):
                    self.num_requests += 1
                    gateway.arrive(rng.choice(("a", "b")), _work(rng, self.num_requests))
            case "transact":
                self.transact(gateway)
            case "end":
                self.end_some()
            case "time":
                self.pass_time(rng.choice((0.001, 0.01, 0.1, 0.3, 1.0)))
            case "die" if len(self.gateways) > 1:
                self.die(gateway)
            case "cut off":
                # Longer would be taken for dead; what it runs then is counted when it is written.
                gateway.cut_off_until_s = self.elapsed_s + rng.uniform(0, SUSPECT_S + FORGET_S - 2)
            case "freeze":
                self.world.now_ns += 30 * NS_PER_S
                self.elapsed_s += 30
                for each in self.gateways:
                    each.elapsed_s += 30
                    each.cut_off_until_s = min(each.cut_off_until_s, self.elapsed_s)
                self.collect()
            case "clock":
                self.world.now_ns += rng.choice((1, 60, 3600)) * NS_PER_S
                for each in self.gateways:  # whom it makes late at once
                    each.cut_off_until_s = min(each.cut_off_until_s, self.elapsed_s + FORGET_S - 2)
            case "limit":
                self.change_limit()
            case "lose":
                self.lose(gateway)
            case "start" if len(self.gateways) < 20:
                self.start_gateway()
        self.adopt()

    def transact(self, gateway: Gateway) -> None:
        if gateway.finish is not None:
            gateway.finish()
            gateway.finish = None
        elif self.elapsed_s >= gateway.cut_off_until_s:
            gateway.tick()
            self.rng.choice((gateway.exchange, gateway.write))()

    def pass_time(self, seconds: float) -> None:
        beats = int(self.elapsed_s + seconds) - int(self.elapsed_s)
        self.elapsed_s += seconds
        self.world.now_ns += int(seconds * NS_PER_S)
        for gateway in self.gateways:
            gateway.elapsed_s += seconds
            if beats and self.elapsed_s >= gateway.cut_off_until_s:
                has_claimed = gateway.beat()
                if has_claimed and self.touched is not None:
                    self.touched.add(gateway)
        self.collect()

    def collect(self) -> None:
        """Write the engine's records of dead gateways' requests to the ledger through a living gateway."""
        due = [running for at_s, running in self.orphans if self.elapsed_s >= at_s]
        self.orphans = [(at_s, running) for at_s, running in self.orphans if self.elapsed_s < at_s]
        for running in due:
            self._count(running, -1)
            for index, part in enumerate(running.reservation.work.parts):
                usage = running.ended.get(index) or self._usage(running, index)
                self.world.write_usage({part.request_id: self.world.event(running, index, usage)})
        for each in list(self.lost):
            self.find(each)

    def lose(self, gateway: Gateway) -> None:
        """Disconnect a gateway from the engine: clients get errors, the ledger the usage seen; the engine may go on for
        a while.
        """
        for running in [running for running in self.running if running.gateway is gateway]:
            for index in sorted(running.reservation.dispatched - running.ended.keys()):
                used = self._usage(running, index)
                seen = Usage(used.prompt_tokens, self.rng.randint(0, used.completion_tokens))
                request_id = running.reservation.work.parts[index].request_id
                gateway.holdings.seen(request_id, seen)
                self.counters[request_id] = gateway
                gateway.count(Row(request_id, False), self.world.event(running, index, seen, is_final=False))
                final = self.world.event(running, index, used) if self.rng.random() < 0.7 else None
                if final is not None:
                    self.untold[request_id] = final
                comes_s = self.elapsed_s + self.rng.uniform(0, ENGINE_NOTICES_S)
                self.lost.append(LostPart(running, index, final, comes_s, self.elapsed_s + GIVE_UP_S))
                running.ended[index] = seen
            gateway.holdings.close(running.reservation)
            self.running.remove(running)
            self._count(running, -1)

    def find(self, lost: LostPart) -> None:
        gateway, request_id = lost.running.gateway, lost.running.reservation.work.parts[lost.index].request_id
        if self.touched is not None:
            self.touched.add(gateway)
        if lost.final is not None and not lost.is_told and self.elapsed_s >= lost.comes_s:
            lost.is_told = True
            del self.untold[request_id]
            if gateway.alive:
                gateway.holdings.ended(request_id, lost.final.usage)
                gateway.count(Row(request_id, True), lost.final)
            else:  # another one is told
                self.world.write_usage({request_id: lost.final})
        if self.elapsed_s >= lost.given_up_s:
            self.lost.remove(lost)
            if gateway.alive:
                gateway.holdings.give_up(request_id)

    def adopt(self) -> None:
        for gateway in self.gateways:
            self.running += gateway.admitted
            for running in gateway.admitted:
                self._count(running, 1)
                for part in running.reservation.work.parts:
                    if self.rng.random() < 0.9:
                        gateway.holdings.dispatched(part.request_id)
            gateway.admitted = []

    def _count(self, running: AdmittedRequest, sign: int) -> None:
        """Add a request's worst cases to the promised amounts, or subtract them.

        sign: 1 to add, -1 to subtract.
        """
        for key, worst in running.worst.items():
            self.promised[key] += sign * worst
        for key in running.places:
            self.promised[key] += sign

    def end_some(self) -> None:
        for running in self.rng.sample(self.running, min(len(self.running), self.rng.randint(1, 4))):
            self.end(running)

    def end(self, running: AdmittedRequest) -> None:
        if self.touched is not None:
            self.touched.add(running.gateway)
        for index in sorted(running.reservation.dispatched - running.ended.keys()):
            usage = running.ended[index] = self._usage(running, index)
            part = running.reservation.work.parts[index]
            running.gateway.holdings.ended(part.request_id, usage)
            self.counters[part.request_id] = running.gateway
            running.gateway.count(Row(part.request_id, True), self.world.event(running, index, usage))
        running.gateway.holdings.close(running.reservation)
        self.running.remove(running)
        self._count(running, -1)

    def die(self, gateway: Gateway) -> None:
        self.gateways.remove(gateway)
        gateway.alive = False
        orphans = [running for running in self.running if running.gateway is gateway]
        self.running = [running for running in self.running if running.gateway is not gateway]
        late_s = self.elapsed_s + self.rng.uniform(1, ENGINE_NOTICES_S)
        for running in orphans:
            running.reservation.dispatched |= running.reservation.open  # the worst case: all of it runs
            self.orphans.append((late_s, running))
        for row, event in gateway.unwritten.items():  # all of ended requests, whose counts the engine keeps as well
            self.world.write_usage({row.request_id: event})

    def change_limit(self) -> None:
        limit = self.rng.choice(list(self.world.limits.values()))
        changed = msgspec.structs.replace(limit, max=int(limit.max * self.rng.choice((0.5, 2, 1))))
        self.world.limits[limit.id] = changed
        for gateway in self.gateways:
            gateway.holdings.forget_free(limit.id)

    def check(self) -> None:
        """Check that no limit is exceeded, counting every admitted request with its worst case until the ledger has
        its usage."""
        for request_id in self.world.recounted:
            self._recount(request_id)
        self.world.recounted.clear()
        more = dict.fromkeys(self.world.resettled, 0) | self.promised
        self.world.resettled.clear()
        for key, added in more.items():  # accounts without changes were checked before
            total = self.world.settled[key] + added
            assert total <= self.world.allowed[key], f"{key}: {total} of {self.world.allowed[key]}"
        for gateway in self.gateways if self.touched is None else self.touched:
            if gateway.alive:
                self._check_holdings(gateway)

    def _recount(self, request_id: str) -> None:
        """Compute the usage of an ended request that the ledger lacks, from the best known count."""
        for key, spent in self.to_come.pop(request_id, {}).items():
            self.promised[key] -= spent
        best, known = self.untold.get(request_id), self.world.ledger.get(request_id)
        counter = self.counters.get(request_id)
        if best is None and counter is not None and counter.alive:
            unwritten = counter.unwritten
            best = unwritten.get(Row(request_id, True)) or unwritten.get(Row(request_id, False))
        if best is not None and best is not known:
            known_used = known.used if known is not None else {}
            more = self.to_come[request_id] = {
                key: max(0, spent - known_used.get(key, 0)) for key, spent in best.used.items()
            }
            for key, spent in more.items():
                self.promised[key] += spent

    def _check_holdings(self, gateway: Gateway) -> None:
        # The ledger has a write whose reply was lost, and the gateway does not know that.
        in_ledger = gateway.holdings.writing(
            row for row, event in gateway.unwritten.items() if self.world.has(row, event)
        )
        for key, each in gateway.holdings.slices.items():
            assert each.spare >= 0, f"{gateway.id} uses more of {key} than it holds"
            if gateway.id in self.world.heard_ns and gateway.finish is None:
                leased = self.world.leases.get(key, {}).get(gateway.id, 0)
                held = in_ledger.get(key, each.held)
                assert held <= leased, f"{gateway.id} holds {held} of {key}, PostgreSQL knows of {leased}"

    def drain(self) -> None:
        """Let all requests end. Check that nothing stays reserved, and that accounts equal the ledger."""
        for running in list(self.running):
            self.end(running)
        for gateway in self.gateways:
            gateway.cut_off_until_s, gateway.max_batch = 0.0, 500
        self.touched = None
        num_quiet = 0
        for _ in range(60):
            num_quiet = num_quiet + 1 if self._is_quiet() else 0
            if num_quiet > QUIET_ROUNDS:
                break
            self.pass_time(0.5)
            for gateway in self.gateways:
                for _ in range(4):
                    self.transact(gateway)
            self.adopt()
            for running in list(self.running):
                self.end(running)
            self.check()
        assert not self.orphans
        assert not self.lost
        held = {key: leases for key, leases in self.world.leases.items() if any(leases.values())}
        assert not held, f"not returned: {held}"
        assert not any(gateway.unwritten for gateway in self.gateways)
        sums: Counter[Key] = Counter()
        for event in self.world.ledger.values():
            for limit in self.world.limits.values():
                if limit.window != "none" and limit.project_id in (None, event.tenant):
                    tokens = event.usage.prompt_tokens, event.usage.completion_tokens
                    [used] = part_amounts([limit.unit], *tokens, PRICE, is_request=event.index == 0)
                    sums[self.world.key(limit, event.instant_ns)] += used
        assert +self.world.settled == +sums, "the accounts have drifted from the ledger"

    def _is_quiet(self) -> bool:
        """Tell whether no request runs, nothing is in transit and gateways hold nothing."""
        if self.running or self.orphans or self.lost or any(self.world.leases.values()):
            return False
        return not any(gateway.unwritten or gateway.waiting or gateway.finish for gateway in self.gateways)

    def _usage(self, running: AdmittedRequest, index: int) -> Usage:
        part = running.reservation.work.parts[index]
        most = part.num_choices * min(part.max_tokens, running.reservation.cap)
        return Usage(part.prompt_tokens, self.rng.choice((most, self.rng.randint(0, most))))


def _limits(rng: random.Random) -> list[Limit]:
    def limit(name: str, unit: str, window: str, most: int, project: str | None) -> Limit:
        return Limit(name, "org", project, None, None, unit, window, most, True)  # type: ignore[arg-type]

    scale = rng.choice((1, 10, 1000))
    known = [
        limit("a-tokens", "tokens", "minute", 300 * scale, "a"),
        limit("a-requests", "requests", "minute", 3 * scale, "a"),
        limit("a-concurrency", "concurrency", "none", rng.choice((1, 3, 50)), "a"),
        limit("b-cost", "cost_nanos", "day", 3000 * scale, "b"),
        limit("b-output", "output_tokens", "month", 200 * scale, "b"),
        limit("org-tokens", "tokens", "day", 500 * scale, None),
    ]
    return rng.sample(known, rng.randint(1, len(known)))


def _work(rng: random.Random, number: int) -> RequestWork:
    parts = tuple(
        PromptWork(f"req_{number}" + (f".{index}" if index else ""), rng.randint(1, 40), rng.choice((1, 1, 3)), 50)
        for index in range(rng.choice((1, 1, 1, 3)))
    )
    return RequestWork(parts, PRICE, min_tokens=rng.choice((1, 1, 10)))
