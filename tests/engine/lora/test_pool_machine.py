"""Slots, bytes and references stay consistent whatever arrives, leaves, is pinned, unloaded or refused."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from adapters.errors import AdapterRejected
from engine.lora.layer import LoadedAdapter
from engine.lora.pool import AdapterPool
from engine.lora.slots import RECENT_S
from tests.engine.lora.loading import LoadsWhenTold

MAX_ADAPTERS, MAX_BYTES = 4, 100
NUM_BYTES = {"a": 10, "b": 10, "c": 25, "d": 40, "e": 60, "f": 99, "too large": 101, "bad": 1}
DIGESTS = st.sampled_from(sorted(NUM_BYTES))


def load(digest: str) -> LoadedAdapter:
    if digest == "bad":
        raise AdapterRejected(["it does not fit"])
    return LoadedAdapter(digest, {}, NUM_BYTES[digest])


class PoolMachine(RuleBasedStateMachine):
    copies_to_device = False

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.executor = LoadsWhenTold()
        self.pool = AdapterPool(
            load,
            MAX_ADAPTERS,
            wake=lambda: None,
            max_bytes=MAX_BYTES,
            to_device=(lambda adapter: adapter) if self.copies_to_device else None,
            clock=lambda: self.now_s,
            executor=self.executor,
        )
        self.users: list[tuple[str, int, bool]] = []
        self.waiting: set[str] = set()
        self.pinned: set[str] = set()

    @rule(digest=DIGESTS, for_batch=st.booleans())
    def ask(self, digest: str, for_batch: bool) -> None:
        ready = self.pool.is_resident(digest)
        recent = self.used_of_late()
        slot = self.pool.acquire(digest, for_batch=for_batch)
        assert not for_batch or recent <= set(self.pool.resident), "batch work takes nobody's place"
        assert (slot is not None) == ready
        if slot is None:
            self.waiting.add(digest)
        else:
            self.users.append((digest, slot, for_batch))
            self.waiting.discard(digest)

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        digest, slot, for_batch = self.users.pop(data.draw(st.integers(0, len(self.users) - 1)))
        assert self.pool.adapter(slot).key == digest
        self.pool.release(slot, for_batch=for_batch)

    @precondition(lambda self: any(self.pool.is_reclaimed(slot) for _, slot, _ in self.users))
    @rule()
    def batch_work_yields(self) -> None:
        wanted = [user for user in self.users if self.pool.is_reclaimed(user[1])]
        assert all(for_batch for _, _, for_batch in wanted)
        for user in wanted:
            self.users.remove(user)
            self.pool.release(user[1], for_batch=True)

    def used_of_late(self) -> set[str]:
        """Return the adapters that only an interactive request may replace, as long as none waits."""
        if any(key not in self.pool.resident for key in self.waiting):
            return set()
        return {
            slot.key for slot in self.pool.slots if slot.last_interactive_s > self.now_s - RECENT_S and not slot.closing
        }

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        digest = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.discard(digest)
        self.pool.withdraw(digest)

    @rule(digest=DIGESTS)
    def pin(self, digest: str) -> None:
        self.pool.pin(digest)

    @rule(digest=DIGESTS)
    def unload(self, digest: str) -> None:
        used = any(user == digest for user, _, _ in self.users)
        self.waiting.discard(digest)
        assert not (self.pool.unload(digest) and used)
        assert not self.pool.is_resident(digest)

    @precondition(lambda self: self.executor.submitted)
    @rule(dt_s=st.sampled_from((0.0, 0.1, 1.0)))
    def loads_go_on(self, dt_s: float) -> None:
        self.now_s += dt_s
        self.executor.run_next()

    @rule(dt_s=st.sampled_from((0.0, 0.1, 1.0, 70.0)))
    def take_arrivals(self, dt_s: float) -> None:
        self.now_s += dt_s
        for arrival in self.pool.arrivals():
            if arrival.error is not None:
                assert arrival.key in ("bad", "too large")
                self.waiting.discard(arrival.key)
            elif arrival.key not in self.waiting:
                self.pool.withdraw(arrival.key)

    @invariant()
    def whole(self) -> None:
        self.pool.check_integrity(len(self.users))
        for digest, slot, _ in self.users:
            assert self.pool.adapter(slot).key == digest  # in use: never evicted, never replaced

    def teardown(self) -> None:
        """Check that all waiting adapters get a slot once the running requests have left."""
        for _, slot, for_batch in self.users:
            self.pool.release(slot, for_batch=for_batch)
        self.users = []
        for digest in sorted(NUM_BYTES):
            self.pool.unload(digest)  # the pins, too
        self.waiting = {"a", "c", "e", "f"}
        for _ in range(60):
            for digest in sorted(self.waiting):
                if (slot := self.pool.acquire(digest)) is not None:
                    self.pool.release(slot)
                    self.waiting.discard(digest)
            if self.executor.submitted:
                self.executor.run_next()
            self.take_arrivals(0.1)
        assert not self.waiting
        self.pool.check_integrity(num_users=0)


class CopyingPoolMachine(PoolMachine):
    """The same machine over a pool that copies adapters to a device."""

    copies_to_device = True


PoolMachine.TestCase.settings = CopyingPoolMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, derandomize=True
)
TestPool = PoolMachine.TestCase
TestCopyingPool = CopyingPoolMachine.TestCase
