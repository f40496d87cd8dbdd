"""Every request from its arrival to its final: which of its choices wait, run or are held back, and how they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from engine.protocol import EngineError, Final, FinishReason, GenerateRequest
from engine.scheduling.fairness import ServiceCounters
from engine.scheduling.finish_rate import FinishRate
from engine.scheduling.request_group import RequestGroup
from engine.scheduling.running_set import RunningSet
from engine.scheduling.waiting_queue import WaitingQueue
from engine.sequence import Matcher, Sequence, Status


class RequestBook:
    """A choice is in exactly one place: held by its group, in the waiting queue, in the running set, or ended."""

    def __init__(
        self, waiting: WaitingQueue, running: RunningSet, counters: ServiceCounters, clock: Callable[[], float]
    ) -> None:
        self._waiting = waiting
        self._running = running
        self._counters = counters
        self._clock = clock
        self._groups: dict[str, RequestGroup] = {}
        self._finish_rate = FinishRate()
        self.num_alive = 0  # choices
        self.alive_by_tenant: Counter[str] = Counter()

    def find(self, request_id: str) -> RequestGroup | None:
        return self._groups.get(request_id)

    def add(self, request: GenerateRequest, seed: int) -> None:
        group = RequestGroup.of(request, seed, self._clock())
        self._groups[request.request_id] = group
        self.num_alive += request.n
        self.alive_by_tenant[request.tenant] += request.n
        self._counters.arrive(request.tenant)
        if not group.compiling:
            self._queue_leader(group)

    def retry_after_s(self) -> float:
        """When the requests that are here now will have finished, at the recent rate."""
        return self._finish_rate.drain_s(len(self._groups), self._clock())

    def set_matchers(self, group: RequestGroup, make_matcher: Callable[[], Matcher]) -> None:
        """The grammar is compiled: the request may be admitted. Raises MatcherError, and nothing has changed."""
        matchers = [make_matcher() for _ in group.held]
        for choice, matcher in zip(group.held, matchers, strict=True):
            choice.matcher = matcher
        group.compiling = False
        self._queue_leader(group)

    def queue_held(self, group: RequestGroup) -> None:
        """The prompt is computed, and the other choices find it in the cache."""
        for choice in group.held:
            self._waiting.push(choice)
        group.held = []

    def end(self, choice: Sequence) -> RequestGroup:
        """Take a choice from wherever it is; if it led held ones, the next of them leads."""
        group = self._groups[choice.request_id]
        if choice.status is Status.RUNNING:
            self._running.leave(choice)
        elif choice in group.held:
            group.held.remove(choice)
        else:
            self._waiting.remove(choice)
        choice.status = Status.FINISHED
        group.num_alive -= 1
        self.num_alive -= 1
        self.alive_by_tenant[choice.request.tenant] -= 1
        if not self.alive_by_tenant[choice.request.tenant]:
            del self.alive_by_tenant[choice.request.tenant]
        if group.held and not group.compiling and len(group.held) == group.num_alive:
            self._queue_leader(group)
        return group

    def end_all(self, group: RequestGroup) -> None:
        """The last choices first, so that no held one is queued just to end."""
        for choice in reversed(group.choices):
            if choice.is_alive:
                self.end(choice)

    def close(
        self,
        group: RequestGroup,
        reason: FinishReason,
        error: EngineError | None = None,
        embedding: bytes | None = None,
    ) -> Final:
        """All choices have ended: forget the request."""
        now_s = self._clock()
        del self._groups[group.request.request_id]
        self._counters.leave(group.request.tenant)
        self._finish_rate.note(now_s)
        return group.final(reason, now_s, error, embedding)

    def check_integrity(self) -> None:
        """Run by tests after every step."""
        groups = self._groups.values()
        alive = [choice for group in groups for choice in group.choices if choice.is_alive]
        held = [choice for group in groups for choice in group.held]
        running, waiting = list(self._running), list(self._waiting)
        assert Counter(map(id, alive)) == Counter(map(id, [*running, *waiting, *held])), "a choice is lost or doubled"
        assert self.num_alive == len(alive)
        assert dict(self.alive_by_tenant) == dict(Counter(choice.request.tenant for choice in alive))
        assert all(group.num_alive == sum(c.is_alive for c in group.choices) > 0 for group in groups)
        assert all(choice.status is Status.RUNNING for choice in running)
        assert all(choice.status is Status.WAITING and not choice.block_table for choice in [*waiting, *held])
        assert all(bool(s.request.adapter) == (s.adapter_slot is not None) for s in running)

    def _queue_leader(self, group: RequestGroup) -> None:
        self._waiting.push(group.held.pop(0))
