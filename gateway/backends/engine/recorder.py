"""The usage of the requests on one engine, handed to the usage sink once for each attempt.

Knows neither the link nor when a request ends.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from engine.protocol import Final, UsageRecord
from gateway.backends.base import Unanswered
from gateway.backends.engine.failures import REFUSALS, failure
from gateway.backends.engine.stream import EngineStream
from gateway.backends.usage import Acknowledged, UsageSink


class UsageRecorder:
    """Records the usage of one engine's requests.

    Attempts at a lost engine are recorded as far as this gateway saw them.
    """

    def __init__(self, sink: UsageSink, source: Acknowledged, give_up_s: float) -> None:
        """Make the recorder of one engine.

        source: acknowledges usage to the engine.
        give_up_s: seconds that an engine which is there again, or which this gateway has left, may take to hand over
        the usage of lost requests.
        """
        self.lost_ids: list[str] = []
        """Requests whose engine was lost, and may come back with a better count."""
        self._sink = sink
        self._source = source
        self._give_up_s = give_up_s
        self._has_stopped = False

    def settle(self, stream: EngineStream, final: Final) -> Final:
        """Record the usage of an attempt that has ended; return the engine's final with the usage that counts."""
        final = stream.settled(final)
        if stream.lost:
            self.lost_ids.append(stream.request.request_id)
            if self._has_stopped:
                self.give_up_later()
        self._sink.record(
            _record_of(stream, final),
            engine_id="" if stream.lost else stream.engine_id,
            source=None if stream.lost else self._source,
            ttft_ms=stream.elapsed_ms(stream.first_token_s),
            latency_ms=stream.elapsed_ms(stream.final_s),
            refused=final.error is not None and final.error.code in REFUSALS,
        )
        return final

    def unanswered(self, stream: EngineStream, final: Final) -> Unanswered:
        """Return the error for the reader of a stream whose engine died, failed or had no room.

        The catcher of the error decides what is recorded, by calling `settle` or `supersede`.
        """
        assert final.error is not None
        has_died = stream.lost

        def settle() -> None:
            self.settle(stream, final)

        def supersede() -> None:
            engine_id, source = ("", None) if has_died else (stream.engine_id, self._source)
            self._sink.superseded(_record_of(stream, final), engine_id=engine_id, source=source)

        kind: Literal["died", "failed", "full"] = "died" if has_died else "full"
        if not has_died and final.error.code == "internal":
            kind = "failed"
        return Unanswered(failure(final.error), kind, was_sent=True, settle=settle, supersede=supersede)

    def give_up_later(self) -> None:
        """Stop waiting, after a while, for the engine's own count of lost requests.

        By then the engine is there again and would have reported, or this gateway has nothing more to do with the
        engine.
        """
        if self.lost_ids:
            lost_ids, self.lost_ids = self.lost_ids, []
            asyncio.get_running_loop().call_later(self._give_up_s, self._sink.given_up, lost_ids)

    def stop(self) -> None:
        """Record that this gateway leaves the engine for good."""
        self._has_stopped = True
        self.give_up_later()


def _record_of(stream: EngineStream, final: Final) -> UsageRecord:
    request = stream.request
    return UsageRecord(request.request_id, request.attempt, final.finish_reason, final.usage, request.meter)
