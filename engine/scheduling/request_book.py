"""Every request from its arrival to its final message: the choices that wait, run or are held back, and their ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from engine.protocol import EngineError, Final, FinishReason, GenerateRequest
from engine.scheduling.band import Band
from engine.scheduling.request_group import RequestGroup
from engine.sequence import Matcher, Sequence, Status


class RequestBook:
    """The choices of all requests, each in exactly one place.

    The place is the choice's group, the waiting queue or the running set of its band, or the choice has ended.
    """

    def __init__(self, interactive: Band, batch: Band, clock: Callable[[], float], length_switch: int = 0) -> None:
        """Set up an empty book. length_switch: the length beyond which sequences have another rotation; 0: none."""
        self._interactive = interactive
        self._batch = batch
        self._clock = clock
        self._length_switch = length_switch
        self._groups: dict[str, RequestGroup] = {}

    def band_of(self, request: GenerateRequest) -> Band:
        """Return the band that a request is of."""
        return self._interactive if request.batch is None else self._batch

    def find(self, request_id: str) -> RequestGroup | None:
        """Return a request that has not ended; None for another one."""
        return self._groups.get(request_id)

    def add(self, request: GenerateRequest, seed: int) -> None:
        """Take a request that has arrived: its first choice waits, unless its grammar is compiled first."""
        group = RequestGroup.of(request, seed, self._clock())
        if self._length_switch and len(request.prompt_token_ids) > self._length_switch:
            for choice in group.choices:
                choice.become_long()
        self._groups[request.request_id] = group
        band = self.band_of(request)
        band.num_requests += 1
        band.num_alive += request.n
        band.alive_by_tenant[request.tenant] += request.n
        band.counters.arrive(request.tenant)
        if not group.compiling:
            self._queue_leader(group)

    def retry_after_s(self, band: Band) -> float:
        """Return how long the requests of the band that are here now take to finish at the recent rate."""
        return band.finish_rate.drain_s(band.num_requests, self._clock())

    def set_matchers(self, group: RequestGroup, make_matcher: Callable[[], Matcher]) -> None:
        """Give the request's choices their matchers, now that its grammar is compiled: it may be admitted.

        Raises MatcherError: when a matcher cannot be made; nothing has changed then.
        """
        matchers = [make_matcher() for _ in group.held]
        for choice, matcher in zip(group.held, matchers, strict=True):
            choice.matcher = matcher
        group.compiling = False
        self._queue_leader(group)

    def queue_held(self, group: RequestGroup) -> None:
        """Queue the request's other choices, now that the prompt is computed: they find it in the cache."""
        waiting = self.band_of(group.request).waiting
        for choice in group.held:
            waiting.push(choice)
        group.held = []

    def end(self, choice: Sequence) -> RequestGroup:
        """End a choice wherever it is, and return its request's group; if it led held ones, the next of them leads."""
        group, band = self._groups[choice.request_id], self.band_of(choice.request)
        if choice.status is Status.RUNNING:
            band.running.leave(choice)
        elif choice in group.held:
            group.held.remove(choice)
        else:
            band.waiting.remove(choice)
        choice.status = Status.FINISHED
        group.num_alive -= 1
        band.num_alive -= 1
        band.alive_by_tenant[choice.request.tenant] -= 1
        if not band.alive_by_tenant[choice.request.tenant]:
            del band.alive_by_tenant[choice.request.tenant]
        if group.held and not group.compiling and len(group.held) == group.num_alive:
            self._queue_leader(group)
        return group

    def end_all(self, group: RequestGroup) -> None:
        """End all choices of a request, the last ones first, so that no held one is queued just to end."""
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
        """Forget a request whose choices have all ended, and return its final message.

        error: the error that ended the request; None where none did. embedding: as `Final.embedding`; None where none
        was asked for.
        """
        now_s = self._clock()
        del self._groups[group.request.request_id]
        band = self.band_of(group.request)
        band.num_requests -= 1
        band.counters.leave(group.request.tenant)
        band.finish_rate.note(now_s)
        return group.final(reason, now_s, error, embedding)

    def check_integrity(self) -> None:
        """Check the invariants of all requests; tests do so after every step."""
        groups = self._groups.values()
        alive = [choice for group in groups for choice in group.choices if choice.is_alive]
        held = [choice for group in groups for choice in group.held]
        bands = (self._interactive, self._batch)
        running = [choice for band in bands for choice in band.running]
        waiting = [choice for band in bands for choice in band.waiting]
        assert Counter(map(id, alive)) == Counter(map(id, [*running, *waiting, *held])), "a choice is lost or doubled"
        for band, is_batch in zip(bands, (False, True), strict=True):
            own = [choice for choice in alive if choice.is_batch == is_batch]
            assert all(choice.is_batch == is_batch for choice in [*band.running, *band.waiting])
            assert band.num_alive == len(own)
            assert band.num_requests == sum((group.request.batch is not None) == is_batch for group in groups)
            assert dict(band.alive_by_tenant) == dict(Counter(choice.request.tenant for choice in own))
        assert all(group.num_alive == sum(c.is_alive for c in group.choices) > 0 for group in groups)
        assert all(choice.status is Status.RUNNING for choice in running)
        assert all(choice.status is Status.WAITING and not choice.block_tables for choice in [*waiting, *held])
        assert all(bool(s.request.adapter) == (s.adapter_slot is not None) for s in running)

    def _queue_leader(self, group: RequestGroup) -> None:
        self.band_of(group.request).waiting.push(group.held.pop(0))
