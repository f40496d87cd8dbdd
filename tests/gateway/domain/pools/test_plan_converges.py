"""Whatever operators, engines and hosts do, pools come to rest as wanted, and a replica that must serve is never
ended."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gateway.domain.pools.plan import NoRoom, rollout_to
from tests.gateway.domain.pools.world import World, host, pool, revision

POOLS = ("p", "q")
NUM_STEPS = 25


class Planning(RuleBasedStateMachine):
    """A state machine of two pools on one host or two. Every change is seen by the planner before and after any
    engine moves."""

    @initialize(sizes=st.lists(st.sampled_from([3, 6, 9, 40]), min_size=1, max_size=2), num_replicas=st.integers(0, 3))
    def begin(self, sizes: list[int], num_replicas: int) -> None:
        self.world = World([host(size, name=str(index)) for index, size in enumerate(sizes)])
        self.number = dict.fromkeys(POOLS, 1)
        for name in POOLS:
            made = pool(num_replicas, serves=None, wants=1, id=name, revisions={1: revision(1)})
            self.world.pools[name] = made

    @rule(name=st.sampled_from(POOLS), num_replicas=st.integers(0, 3))
    def scale(self, name: str, num_replicas: int) -> None:
        if not self.world.pools[name].is_removed:
            self.world.change(name, num_replicas=num_replicas)

    @rule(name=st.sampled_from(POOLS), gib=st.sampled_from([1, 2, 3, 50]), is_broken=st.booleans())
    def update(self, name: str, gib: int, is_broken: bool) -> None:
        now = self.world.pools[name]
        if now.is_removed:
            return
        self.number[name] += 1
        number = self.number[name]
        self.world.change(
            name, wanted_revision=number, revisions={**now.revisions, number: revision(number, gib, state="preparing")}
        )
        if is_broken:
            self.world.broken.add((name, number))

    @rule(name=st.sampled_from(POOLS), fails=st.booleans())
    def prepare(self, name: str, fails: bool) -> None:
        now = self.world.pools[name]
        wanted = now.revisions[now.wanted_revision]
        if wanted.state == "preparing":
            made = revision(wanted.revision, needs=wanted.needs, state="failed" if fails else "prepared", why="no hub")
            self.world.change(name, revisions={**now.revisions, wanted.revision: made})

    @rule(name=st.sampled_from(POOLS))
    def remove(self, name: str) -> None:
        self.world.change(name, is_removed=True, num_replicas=0)

    @rule(name=st.sampled_from(POOLS), data=st.data())
    def flag(self, name: str, data: st.DataObject) -> None:
        if live := self.world.live(name):
            self.world.set_replica(name, data.draw(st.sampled_from(live)).id, replace=True)

    @rule(name=st.sampled_from(POOLS), data=st.data())
    def kill(self, name: str, data: st.DataObject) -> None:
        if live := self.world.live(name):
            self.world.kill(name, data.draw(st.sampled_from(live)).id)

    @rule(name=st.sampled_from(POOLS), data=st.data())
    def step(self, name: str, data: st.DataObject) -> None:
        if replicas := self.world.pools[name].replicas:
            self.world.move(name, data.draw(st.sampled_from(replicas)).id)

    @rule()
    def decide(self) -> None:
        """Plan once; check that serving goes on where both revisions fit, and that a surge's bound on replicas
        holds."""
        before = {
            name: (now, self._is_changing_beside(name), self.world.in_state(name, now.revision, "ready"))
            for name, now in self.world.pools.items()
        }
        self.world.decide()
        for name, (now, beside, ready) in before.items():
            after = self.world.pools[name]
            if beside and ready and after.num_replicas and not after.is_removed:
                assert self.world.in_state(name, after.revision, "ready"), "the last replica that serves was drained"
            num_replaced = sum(each.replace for each in self.world.live(name))
            most = max(2 * after.num_replicas + num_replaced, len(now.replicas))
            assert len(self.world.live(name)) <= most, "more replicas than a surge allows"

    def _is_changing_beside(self, name: str) -> bool:
        now = self.world.pools[name]
        if now.revision is None or now.wanted_revision == now.revision:
            return False
        wanted = now.revisions[now.wanted_revision]
        try:
            return rollout_to(list(self.world.pools.values()), self.world.hosts, name, wanted.needs) == "side by side"
        except NoRoom:
            return True  # then nothing is to be drained for it at all

    @rule()
    def rest(self) -> None:
        """Check that any state leads to rest: wanted pools that fit serve with all replicas, and nothing else is left
        over.
        """
        served_before = {name: now.revision for name, now in self.world.pools.items()}
        for name in POOLS:
            self.prepare(name, fails=False)
        self.settle_failing()
        for name, now in self.world.pools.items():
            if now.is_removed:
                assert now.replicas == []
                continue
            wanted = now.revisions[now.wanted_revision]
            if (
                (name, now.wanted_revision) in self.world.broken
                and now.num_replicas
                and served_before[name] != now.revision
            ):
                assert now.revision is None, "a broken revision leads back to the one that served"
            if now.revision is not None and now.revision == now.wanted_revision:
                assert all(each.revision == now.revision for each in now.replicas)
                assert len(now.replicas) <= now.num_replicas + sum(each.replace for each in now.replicas)
            elif now.revision is None:
                assert wanted.state == "failed" or (name, now.wanted_revision) in self.world.broken
            if served_before[name] is not None:
                assert now.revision is not None

    def settle_failing(self) -> None:
        """Settle the world; a pool that has no earlier revision may try its broken revision for ever."""
        hopeless = [
            name
            for name, now in self.world.pools.items()
            if (name, now.wanted_revision if now.revision is None else now.revision) in self.world.broken
        ]
        for _ in range(80):
            planned = self.world.decide()
            moving = [
                (name, each.id)
                for name, now in self.world.pools.items()
                for each in now.replicas
                if each.state != "ready" and not (name in hopeless and each.state == "failed")
            ]
            for name, replica_id in moving:
                self.world.move(name, replica_id)
            if not planned and not moving:
                return
        raise AssertionError(f"it never comes to rest: {planned} {self.world.pools}")


TestPlanning = Planning.TestCase
TestPlanning.settings = settings(max_examples=60, stateful_step_count=NUM_STEPS, deadline=None)
