"""One request on an engine, as its gateway sees it: what came and waits for its reader, and what it has used.

Knows neither the link nor who records usage.
"""

from __future__ import annotations

import asyncio

import msgspec

from engine.protocol import Delta, Final, GenerateRequest, Usage
from gateway.backends.engine.backlog import MAX_UNREAD_BYTES, Backlog
from gateway.backends.usage import Count
from gateway.domain.errors import GatewayError


class EngineStream(msgspec.Struct, eq=False):
    """counts: the last cumulative count seen of each choice; kept: how many of them count, for the choices that a stop
    string has ended; abandoned: nobody reads it any more; full_since_s: more waits for its reader than is kept for
    long; unread: for too long; lost: the engine is gone, its final is made up here; cut_off: its reader is told so once
    it has read what came. Times are the loop's, in seconds.
    """

    request: GenerateRequest
    engine_id: str
    submitted_s: float
    counts: list[int]
    first_token_s: float | None = None
    final_s: float | None = None
    kept: dict[int, int] = msgspec.field(default_factory=dict)
    abandoned: bool = False
    full_since_s: float | None = None
    unread: bool = False
    lost: bool = False
    cut_off: GatewayError | None = None
    backlog: Backlog = msgspec.field(default_factory=Backlog)
    final: Final | None = None
    waiter: asyncio.Future[None] | None = None
    num_used: int = 0
    """Completion tokens that other engines of the pool were told of."""

    def add(self, delta: Delta, now_s: float, *, full_for_s: float) -> None:
        """Take what is new of a choice. full_for_s: how long too much may wait for the reader."""
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.counts[delta.index] = delta.num_completion_tokens
        if self.abandoned or self.unread:
            return
        self.backlog.add(delta)
        self._watch_size(now_s, full_for_s)
        self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def take(self) -> list[Delta] | Final:
        """Wait for the next deltas and take them.

        Raises the error with which the stream was cut off.
        """
        while not self.backlog and self.final is None and self.cut_off is None:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        if deltas := self.backlog.take():
            return deltas
        if self.final is not None:
            return self.final
        assert self.cut_off is not None
        raise self.cut_off

    @property
    def count(self) -> Count:
        """Return what the request has used by now."""
        request = self.request
        return Count(request.request_id, request.attempt, len(request.prompt_token_ids), self._num_kept_tokens)

    @property
    def usage_seen(self) -> Usage:
        """All that is known where its engine cannot say."""
        seen = sum(self.counts)
        return Usage(prompt_tokens=len(self.request.prompt_token_ids) if seen else 0, completion_tokens=seen)

    def settled(self, final: Final) -> Final:
        """With what counts of its usage. The engine may have run past a stop string before it heard of it: the rest is
        discarded here then, as the engine would have."""
        usage, reason = final.usage, final.finish_reason
        kept = self._num_kept_tokens
        if self.kept and kept < usage.completion_tokens:
            usage = msgspec.structs.replace(
                usage,
                completion_tokens=kept,
                discarded_tokens=usage.discarded_tokens + usage.completion_tokens - kept,
                accepted_draft_tokens=min(usage.accepted_draft_tokens, kept),
            )
        if len(self.kept) == self.request.n and reason == "length":
            reason = "stop"
        return msgspec.structs.replace(final, finish_reason=reason, usage=usage)

    def elapsed_ms(self, until_s: float | None) -> float | None:
        """Since it was submitted."""
        return None if until_s is None else (until_s - self.submitted_s) * 1e3

    @property
    def _num_kept_tokens(self) -> int:
        """Return the number of tokens seen of all choices, without what follows the stop strings."""
        if not self.kept:
            return sum(self.counts)
        return sum(min(count, self.kept.get(index, count)) for index, count in enumerate(self.counts))

    def _watch_size(self, now_s: float, full_for_s: float) -> None:
        """Notice a reader that is behind: for a moment, as all readers are where this process was busy, or since its
        client does not read. The second is not waited for."""
        if self.backlog.num_bytes <= MAX_UNREAD_BYTES:
            self.full_since_s = None
        elif self.full_since_s is None:
            self.full_since_s = now_s
        elif now_s - self.full_since_s >= full_for_s:
            self.unread = True
