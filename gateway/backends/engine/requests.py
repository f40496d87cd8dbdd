"""The requests of one gateway on one engine, from a place in the engine's window to the final of each.

Knows neither HTTP nor what the token ids mean, nor how the connection is kept up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from engine.protocol import Abort, Delta, EngineError, Final, GenerateRequest, Submit
from gateway.backends.base import Unanswered
from gateway.backends.engine.backlog import Backlog
from gateway.backends.engine.condition import EngineCondition
from gateway.backends.engine.failures import RETRY_AFTER_S, failure, window_full
from gateway.backends.engine.link import EngineGone
from gateway.backends.engine.recorder import UsageRecorder
from gateway.backends.engine.stream import EngineStream
from gateway.backends.engine.used import UseCounter
from gateway.backends.usage import Count, UsageSink
from gateway.backends.used import UsedAmounts
from gateway.backends.window import Window
from gateway.domain.errors import ReadTooSlowly
from gateway.support.paced_calls import PacedCalls

WINDOW_WAIT_S = 2.0
"""Seconds for which a request waits for a place in the engine's window, and for an earlier attempt at it to end
there."""


class EngineRequests:
    """All requests of this gateway on one engine that have begun and whose usage is not recorded yet."""

    def __init__(
        self,
        send: Callable[[Submit | Abort], None],
        condition: EngineCondition,
        recorder: UsageRecorder,
        sink: UsageSink,
        *,
        full_for_s: float,
        batch_turns: PacedCalls,
    ) -> None:
        """Make the requests of one engine, of which there are none yet.

        batch_turns: the turns in which lines of batches end.

        send: hands a message to the link, and raises EngineGone.
        full_for_s: seconds for which more than `MAX_UNREAD_BYTES` may wait for the reader of a stream.
        """
        self.window = Window()
        """Bounds how many requests are in flight."""
        self._send = send
        self._condition = condition
        self._recorder = recorder
        self._sink = sink
        self._full_for_s = full_for_s
        self._streams: dict[str, EngineStream] = {}
        self._used = UseCounter()
        self._batch_turns = batch_turns

    async def deltas(
        self, request: GenerateRequest, trace: str = "", *, is_whole: bool = False
    ) -> AsyncGenerator[list[Delta] | Final]:
        """Yield the deltas that came since the last item, then exactly one Final.

        Closing the generator early aborts the request; its usage reaches the sink all the same.

        trace: the parent of the engine's spans; "" for none. is_whole: True: deltas come many at a time and joined.

        Raises as `Backend.generate`.
        Raises ReadTooSlowly: when more waited for the reader than is kept.
        """
        await self._wait_for_earlier(request.request_id)
        await self._take_place(request)
        stream = self._begin(request, trace, is_whole=is_whole)
        try:
            while not isinstance(item := await stream.take(), Final):
                yield item
            has_begun = stream.first_token_s is not None
            if stream.lost or (item.error is not None and _is_unanswered(item.error, has_begun=has_begun)):
                self._streams.pop(request.request_id)
                raise self._recorder.unanswered(stream, item)
            final = self._settle(stream, item)
        finally:
            self._leave(stream)
        if final.error is not None:
            raise failure(final.error)
        if stream.unread:
            raise ReadTooSlowly("The client read the reply too slowly, so the reply ended early.")
        yield final

    def stop_at(self, request_id: str, index: int, num_kept_tokens: int) -> None:
        """End a choice whose text is complete after num_kept_tokens of its tokens; discard the rest."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.kept_tokens[index] = num_kept_tokens
            self._abort(stream, Abort(request_id, num_kept_tokens, index))

    def oldest_wait_s(self) -> float:
        """Return the age of the oldest request that has no token yet; 0 where none waits. Any thread may ask."""
        streams = self._streams.values()
        waiting = [each.submitted_s for each in streams if each.first_token_s is None and each.final_s is None]
        return max(time.monotonic() - min(waiting), 0.0) if waiting else 0.0  # as the loop's clock is

    def take_used(self) -> list[UsedAmounts]:
        """Return the amounts that the requests used on the engine since the last call."""
        return self._used.take(self._streams.values())

    def cut_off(self) -> None:
        """Abort all requests; their readers get ShuttingDown once they have read what came."""
        for stream in self._streams.values():
            stream.is_cut_off = True
            stream.wake()

    # messages of the engine

    def deliver(self, deltas: Iterable[Delta]) -> None:
        """Give each delta to its stream."""
        counts = [count for delta in deltas if (count := self._deliver(delta)) is not None]
        if counts:
            self._sink.progressed(counts)  # before their readers run

    def end(self, finals: Sequence[Final]) -> None:
        """End the requests whose finals have come."""
        for final in finals:
            self._end_stream(final)

    def lose_all(self, reason: str) -> None:
        """End all requests, whose engine is gone, with the tokens that this gateway saw of each."""
        for stream in list(self._streams.values()):
            if stream.final_s is None:
                self._lose(stream, reason)

    # one request

    async def _wait_for_earlier(self, request_id: str) -> None:
        """Wait until an earlier, aborted attempt at the same request has ended at the engine.

        An engine knows requests by their ids alone.

        Raises Unanswered: when the engine has not ended the earlier attempt in time.
        """
        earlier = self._streams.get(request_id)
        if earlier is None:
            return
        earlier.waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(WINDOW_WAIT_S):
                await earlier.waiter
        except TimeoutError:
            raise Unanswered(window_full(), "full") from None

    async def _take_place(self, request: GenerateRequest) -> None:
        """Take a place in the engine's window for a request.

        Raises Unanswered: when the engine is not ready, does not understand the request, or has no place in time.
        """
        self._check(request)
        try:
            await self.window.take(WINDOW_WAIT_S)
        except TimeoutError:
            raise Unanswered(window_full(), "full") from None
        try:
            self._check(request)  # still
        except Unanswered:
            self.window.give()
            raise

    def _check(self, request: GenerateRequest) -> None:
        """Check that the engine is ready, and of a version that understands the request.

        Raises Unanswered: when the engine is not ready, or does not understand the request.
        """
        self._condition.check_ready()
        self._condition.check_understands(request)

    def _begin(self, request: GenerateRequest, trace: str, *, is_whole: bool) -> EngineStream:
        """Send a request. If the engine is gone meanwhile, the request ends at once."""
        engine_id, now_s = self._condition.engine_id, asyncio.get_running_loop().time()
        backlog = Backlog(request.n)
        stream = EngineStream(request, engine_id, now_s, [0] * request.n, is_whole=is_whole, backlog=backlog)
        self._streams[request.request_id] = stream
        self._sink.dispatched(request, engine_id)  # before any engine can work on it, whoever dies in between
        try:
            self._send(Submit(request, trace))
        except EngineGone as gone:
            self._lose(stream, str(gone))
        return stream

    def _deliver(self, delta: Delta) -> Count | None:
        """Give a delta to its stream, and return what the request has used by now."""
        stream = self._streams.get(delta.request_id)
        if stream is None:
            return None
        was_unread = stream.unread
        stream.add(delta, asyncio.get_running_loop().time(), full_for_s=self._full_for_s)
        if stream.unread and not was_unread:
            self._abort(stream, Abort(delta.request_id))
        return stream.count

    def _lose(self, stream: EngineStream, reason: str) -> None:
        """End a request whose engine is gone with what this gateway saw of the request."""
        stream.lost = True
        usage = stream.usage_seen
        error = EngineError("internal", reason)
        if not usage.completion_tokens:  # nothing of the answer exists yet: it may be asked for again
            error = EngineError("draining", reason, retry_after_s=RETRY_AFTER_S)
        self._end_stream(Final(stream.request.request_id, "error", usage, error))

    def _end_stream(self, final: Final) -> None:
        stream = self._streams.get(final.request_id)
        if stream is None:
            return
        stream.final_s = asyncio.get_running_loop().time()
        self.window.give()
        self._used.ended(stream, final.usage)
        if stream.abandoned:
            self._settle(stream, final)
            stream.wake()  # an attempt that waits for this one's end
            return
        stream.final = final
        if stream.request.batch is None or stream.lost:  # lost usage is known before an engine is there again
            stream.wake()
        else:  # an engine ends many lines of batches in one step, and nobody waits for their replies
            self._batch_turns.call(stream.wake)

    def _settle(self, stream: EngineStream, final: Final) -> Final:
        """Record the usage of a request, once, and return the final as it was recorded."""
        self._streams.pop(stream.request.request_id, None)
        return self._recorder.settle(stream, final)

    def _leave(self, stream: EngineStream) -> None:
        """Record that a stream's reader is gone.

        A request that still runs is aborted; its final is recorded when it comes.
        """
        if self._streams.get(stream.request.request_id) is not stream:
            return
        stream.abandoned = True
        if stream.final is not None:
            self._settle(stream, stream.final)
        else:
            self._abort(stream, Abort(stream.request.request_id))

    def _abort(self, stream: EngineStream, abort: Abort) -> None:
        if stream.final_s is None:
            with contextlib.suppress(EngineGone):  # then it ends by itself
                self._send(abort)


def _is_unanswered(error: EngineError, *, has_begun: bool) -> bool:
    """Tell whether a request that ended with this error may be answered elsewhere.

    has_begun: True if the reader has got a part of the reply, after which no other replica can answer.
    """
    return error.code in ("queue_full", "draining") or (error.code == "internal" and not has_begun)
