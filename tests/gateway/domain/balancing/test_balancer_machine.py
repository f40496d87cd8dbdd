"""Whatever comes and goes, no request goes to a replica that must not get any, and no replica exceeds its bound."""

from __future__ import annotations

from math import sqrt

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from gateway.domain.balancing.balancer import BOUND, FLOOR, SIGMAS, Balancer
from gateway.domain.balancing.replica import Asked, ReplicaLoad

IDS = [f"replica-{number}" for number in range(6)]
ADAPTERS = ["", "a", "b", "c"]
CAPACITY = 8
SLOTS = 4

ids = st.sampled_from(IDS)
adapters = st.sampled_from(ADAPTERS[1:])
asks = st.builds(
    Asked,
    adapter=st.sampled_from(ADAPTERS),
    rank=st.sampled_from([0, 16, 128]),
    prefixes=st.lists(st.sampled_from([1, 2, 3]), max_size=3, unique=True).map(tuple),
    choices=st.integers(1, 3),
)


class BalancerMachine(RuleBasedStateMachine):
    """A state machine; `self.open` holds the replicas that may get requests, beside the balancer's own state."""

    def __init__(self) -> None:
        super().__init__()
        self.balancers = [Balancer(seed=seed, slow_start_s=0) for seed in (0, 1)]
        self.now_s = 100.0
        self.members: set[str] = set()
        self.open: set[str] = set()
        self.sent: list[tuple[str, Asked]] = []

    @rule(name=ids)
    def add(self, name: str) -> None:
        for balancer in self.balancers:
            balancer.add(name)
        self.members.add(name)

    @rule(name=ids)
    def remove(self, name: str) -> None:
        for balancer in self.balancers:
            balancer.remove(name)
        self.members.discard(name)
        self.open.discard(name)

    @rule(
        name=ids,
        running=st.integers(0, 2 * CAPACITY),
        waiting=st.integers(0, 3),
        resident=st.frozensets(adapters, max_size=SLOTS),
        state=st.sampled_from(["ready", "ready", "ready", "draining", "silent"]),
    )
    def beat(self, name: str, running: int, waiting: int, resident: frozenset[str], state: str) -> None:
        picture = ReplicaLoad(
            id=name,
            running=running,
            waiting=waiting,
            capacity=CAPACITY,
            adapter_slots=SLOTS,
            resident=resident,
            draining=state == "draining",
            silent=state == "silent",
        )
        for balancer in self.balancers:
            balancer.update(picture, self.now_s)
        if name in self.members:
            self.open.discard(name)
            if state == "ready":
                self.open.add(name)

    @rule(seconds=st.sampled_from([0.5, 1.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(asked=asks, exclude=st.frozensets(ids, max_size=4), sends=st.booleans())
    def ask(self, asked: Asked, exclude: frozenset[str], sends: bool) -> None:
        loads = self.balancers[0].loads()
        picked, other = [balancer.pick(asked, exclude) for balancer in self.balancers]
        assert (picked is None) == (not self.open - exclude)
        assert picked is None or picked in self.open - exclude
        if asked.adapter or asked.prefixes:
            assert picked == other, "gateways that know the same choose the same"
        if picked is None:
            return
        if not exclude:
            share = (sum(loads.values()) + asked.units) / len(loads)
            slack = min(share + SIGMAS * sqrt(share), CAPACITY)
            assert loads[picked] < max(BOUND * share, slack, FLOOR * CAPACITY)
        if sends:
            for balancer in self.balancers:
                balancer.taken(picked, asked)
            self.sent.append((picked, asked))

    @rule(place=st.integers(0, 1000))
    def end(self, place: int) -> None:
        if self.sent:
            name, asked = self.sent.pop(place % len(self.sent))
            for balancer in self.balancers:
                balancer.given(name, asked)
                assert all(load >= 0 for load in balancer.loads().values())


BalancerMachine.TestCase.settings = settings(deadline=None, max_examples=150, stateful_step_count=60, derandomize=True)
TestBalancerMachine = BalancerMachine.TestCase
