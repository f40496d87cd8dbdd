"""The attempts at one prompt: one replica after the other, until one answers or no other may be asked.

Exactly one attempt of a prompt is billed; the operator bears the cost of the attempts before that one. Knows nothing of
the reply that the items become, nor of other models that a routing policy may try.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from engine.protocol import GenerateRequest, Usage
from gateway.backends.base import Unanswered
from gateway.backends.generation import Generation, Item
from gateway.backends.pool import PoolRevision, Replica
from gateway.domain.errors import GatewayError, Overloaded
from gateway.domain.routing.retry_budget import RetryBudget
from gateway.pipeline.model_call import ModelCall

MAX_ATTEMPTS = 3
"""The most attempts at one prompt, not counting replicas that were not there."""


class Restarted:
    """An item that says that another attempt begins: the items before it do not count."""


RESTARTED: Final = Restarted()


def has_no_successor(error: GatewayError) -> bool:
    """Return False: no error has a successor."""
    return False


class Attempts:
    """The attempts at one prompt, and the replicas that were asked."""

    def __init__(
        self,
        pool: PoolRevision,
        request: GenerateRequest,
        budget: RetryBudget,
        on_unanswered: Callable[[GatewayError], None] | None = None,
        is_followed: Callable[[GatewayError], bool] = has_no_successor,
        tried: set[str] | None = None,
        call: ModelCall | None = None,
    ) -> None:
        """Prepare the attempts at one prompt.

        budget: the budget of the gateway process for all retries but the first one after a replica's death.
        on_unanswered: called with the error where the prompt ends without any replica having had it.
        is_followed: tells whether something else takes the prompt after an error, and is billed.
        tried: the replicas that are not asked; each replica that is asked is added. None: all may be asked.
        call: gets the error of a prompt that no replica takes, where the request is traced.
        """
        self.request = request
        """The request as the next replica gets it."""
        self._pool = pool
        self._asked = pool.asked_by(request)
        self._budget = budget
        self._tried = set() if tried is None else tried
        self._num_sent = 0
        self._on_unanswered = on_unanswered
        self._is_followed = is_followed
        self._has_seen_death = False
        self._call = call
        budget.sent(_now_s())

    @contextmanager
    def replica(self) -> Iterator[Replica]:
        """Give the replica for the next attempt, whose load includes the attempt until the context is left.

        Raises Overloaded: when no replica is ready.
        """
        try:
            replica = self._pool.take(self._asked, self._tried)
        except Overloaded as error:
            if self._call is not None:
                self._call.note(error)
            self._end_attempts(error)
            raise
        self._tried.add(replica.id)
        try:
            yield replica
        finally:
            self._pool.give(replica, self._asked)

    def unanswered(self, failure: Unanswered, *, may_restart: bool) -> None:
        """Prepare the next attempt after a failed one.

        may_restart: whether the caller has seen none of the failed attempt's items.

        Raises the failure's error: when no other replica may be asked; the failure is settled then.
        """
        self._num_sent += failure.was_sent
        if not (may_restart and self._has_another() and self._is_allowed(failure)):
            (failure.supersede if self._is_followed(failure.error) else failure.settle)()
            self._end_attempts(failure.error)
            raise failure.error
        failure.supersede()
        if failure.was_sent:
            self.request = msgspec.structs.replace(self.request, attempt=self.request.attempt + 1)

    def _end_attempts(self, error: GatewayError) -> None:
        if not self._num_sent and self._on_unanswered is not None and not self._is_followed(error):
            self._on_unanswered(error)

    def _has_another(self) -> bool:
        return self._pool.any_ready(self._tried) is not None

    def _is_allowed(self, failure: Unanswered) -> bool:
        if failure.kind == "absent":
            return True
        if failure.kind == "failed":  # another replica would most likely fail as well
            return False
        is_free = failure.kind == "died" and not self._has_seen_death
        self._has_seen_death = self._has_seen_death or failure.kind == "died"
        return is_free or (self._num_sent < MAX_ATTEMPTS and self._budget.take(_now_s()))


async def generate_items(
    pool: PoolRevision,
    generation: Generation,
    budget: RetryBudget,
    on_unanswered: Callable[[GatewayError], None] | None = None,
    *,
    may_restart: bool = False,
    is_followed: Callable[[GatewayError], bool] = has_no_successor,
    tried: set[str] | None = None,
    call: ModelCall | None = None,
) -> AsyncGenerator[Item | Restarted]:
    """Yield the items of one prompt's completions. Closing the generator aborts the prompt.

    may_restart: True if the reader can begin anew when it gets `RESTARTED`; else a prompt whose first item was yielded
    is not tried again.
    on_unanswered: called with the error where the prompt ends without any replica having had it.
    is_followed: tells whether something else takes the prompt after an error, and is billed.
    tried: the replicas that are not asked; each replica that is asked is added. None: all may be asked.
    call: records the attempts, where the request is traced.

    Raises as `gateway.backends.base.Backend.generate`, except Unanswered.
    """
    attempts = Attempts(pool, generation.request, budget, on_unanswered, is_followed, tried, call)
    while True:
        has_begun = False
        try:
            with attempts.replica() as replica:
                items = _items(replica, generation, call)
                try:
                    async for item in items:
                        has_begun = True
                        yield item
                finally:
                    await items.aclose()
            return
        except Unanswered as failure:
            attempts.unanswered(failure, may_restart=may_restart or not has_begun)
        generation = msgspec.structs.replace(generation, request=attempts.request)
        if has_begun:
            yield RESTARTED


async def embed_prompt(
    pool: PoolRevision,
    request: GenerateRequest,
    budget: RetryBudget,
    on_unanswered: Callable[[GatewayError], None] | None = None,
    *,
    trace: str = "",
    call: ModelCall | None = None,
) -> tuple[bytes, Usage]:
    """Return the embedding or the score of one prompt, whichever the request asks for, in fp32, little-endian.

    budget: the budget of the gateway process for all retries but the first one after a replica's death.
    on_unanswered: called with the error where the prompt ends without any replica having had it.
    trace: the span that the request belongs to, as a `traceparent`; "" for none.
    call: records the attempts, where the request is traced.

    Raises as `generate_items`.
    """
    attempts = Attempts(pool, request, budget, on_unanswered, call=call)
    while True:
        try:
            with attempts.replica() as replica:
                if call is not None:
                    return await call.embedding(replica, attempts.request)
                return await replica.backend.embed(attempts.request, trace)
        except Unanswered as failure:
            attempts.unanswered(failure, may_restart=True)


def _items(replica: Replica, generation: Generation, call: ModelCall | None) -> AsyncGenerator[Item]:
    return replica.backend.generate(generation) if call is None else call.attempt(replica, generation)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
