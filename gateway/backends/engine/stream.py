"""One request on an engine, as its gateway sees it: the deltas that wait for their reader, and the tokens used.

Knows neither the link nor who records usage.
"""

from __future__ import annotations

import asyncio

import msgspec

from engine.protocol import Delta, Final, GenerateRequest, Usage
from gateway.backends.engine.backlog import MAX_UNREAD_BYTES, Backlog, join_deltas
from gateway.backends.usage import Count
from gateway.domain.errors import ShuttingDown


class EngineStream(msgspec.Struct, eq=False):
    """A request that was sent to an engine. Times are in seconds of the event loop's clock."""

    request: GenerateRequest
    engine_id: str
    """The process that the request was sent to."""
    submitted_s: float
    """The time when the request was sent."""
    counts: list[int]
    """The last cumulative count of tokens that was seen of each choice."""
    first_token_s: float | None = None
    """The time when the first token came; None before."""
    final_s: float | None = None
    """The time when the final came; None before."""
    kept_tokens: dict[int, int] = msgspec.field(default_factory=dict)
    """The number of tokens that count, for each choice that a stop string has ended."""
    abandoned: bool = False
    """True if nobody reads the stream any more."""
    full_since_s: float | None = None
    """The time since which more than MAX_UNREAD_BYTES of deltas are unread; None while there are fewer."""
    unread: bool = False
    """True if too much has waited for the reader for too long; further deltas are dropped."""
    lost: bool = False
    """True if the engine is gone, so that the final was made up here."""
    is_cut_off: bool = False
    """True if this gateway stops: the reader gets ShuttingDown once it has read what came."""
    is_whole: bool = False
    """True if the reader takes many deltas at once, joined: once the backlog is full, and at the end."""
    backlog: Backlog = msgspec.field(default_factory=Backlog)
    final: Final | None = None
    waiter: asyncio.Future[None] | None = None
    """The future for which the reader waits; None while it does not wait."""
    num_used: int = 0
    """Completion tokens that were reported to the other engines of the pool."""

    def add(self, delta: Delta, now_s: float, *, full_for_s: float) -> None:
        """Add the new tokens of a choice.

        full_for_s: seconds for which more than `MAX_UNREAD_BYTES` may wait for the reader.
        """
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.counts[delta.index] = delta.num_completion_tokens
        if self.abandoned or self.unread:
            return
        self.backlog.add(delta)
        self._watch_size(now_s, full_for_s)
        if not self.is_whole or self.backlog.is_full:
            self.wake()

    def wake(self) -> None:
        """Let the reader go on, if it waits."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def take(self) -> list[Delta] | Final:
        """Wait for the next deltas of the stream, and return them; return the Final after the last ones.

        Raises ShuttingDown: when the stream was cut off.
        """
        while not self._has_deltas and self.final is None and not self.is_cut_off:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        if deltas := self.backlog.take():
            return join_deltas(deltas) if self.is_whole else deltas
        if self.final is not None:
            return self.final
        assert self.is_cut_off
        raise ShuttingDown

    @property
    def count(self) -> Count:
        """Return the tokens that the request has used by now."""
        request = self.request
        return Count(request.request_id, request.attempt, len(request.prompt_token_ids), self._num_kept_tokens)

    @property
    def usage_seen(self) -> Usage:
        """Return the usage that this gateway saw, for a request whose engine cannot tell."""
        seen = sum(self.counts)
        return Usage(prompt_tokens=len(self.request.prompt_token_ids) if seen else 0, completion_tokens=seen)

    def settled(self, final: Final) -> Final:
        """Return the engine's final with the usage that counts.

        The engine may have run past a stop string before it heard of it: the tokens beyond are discarded here then, as
        the engine would have done.
        """
        usage, reason = final.usage, final.finish_reason
        kept_tokens = self._num_kept_tokens
        if self.kept_tokens and kept_tokens < usage.completion_tokens:
            usage = msgspec.structs.replace(
                usage,
                completion_tokens=kept_tokens,
                discarded_tokens=usage.discarded_tokens + usage.completion_tokens - kept_tokens,
                accepted_draft_tokens=min(usage.accepted_draft_tokens, kept_tokens),
            )
        if len(self.kept_tokens) == self.request.n and reason == "length":
            reason = "stop"
        return msgspec.structs.replace(final, finish_reason=reason, usage=usage)

    def elapsed_ms(self, until_s: float | None) -> float | None:
        """Return the milliseconds from the request's submission to a time; None where that has not come.

        until_s: the time by the clock of `submitted_s`; None where it has not come.
        """
        return None if until_s is None else (until_s - self.submitted_s) * 1e3

    @property
    def _has_deltas(self) -> bool:
        """Tell whether there are deltas that the reader takes now."""
        return self.backlog.is_full if self.is_whole else bool(self.backlog)

    @property
    def _num_kept_tokens(self) -> int:
        """The number of tokens of all choices that this gateway saw, up to the stop strings."""
        if not self.kept_tokens:
            return sum(self.counts)
        return sum(min(count, self.kept_tokens.get(index, count)) for index, count in enumerate(self.counts))

    def _watch_size(self, now_s: float, full_for_s: float) -> None:
        """End the stream if too much has been unread for too long, since the client does not read.

        If this process was busy, all readers are behind for a moment; such a moment is waited out.
        """
        if self.backlog.num_bytes <= MAX_UNREAD_BYTES:
            self.full_since_s = None
        elif self.full_since_s is None:
            self.full_since_s = now_s
        elif now_s - self.full_since_s >= full_for_s:
            self.unread = True
