"""Takes the usage that backends report: into the journal at once, from there to the ledger.

Once a usage is on disk, the backend is told. Knows neither files nor SQL, nor prices.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

import msgspec
import structlog

from engine.protocol import GenerateRequest, UsageRecord
from gateway.backends.usage import Acknowledged, Count
from gateway.limits.limiter import Limiter
from gateway.metering.acknowledgements import Acknowledgements
from gateway.metering.copier import Copier
from gateway.metering.format import Ended, Opened
from gateway.metering.journal import Journal
from gateway.metering.tag import decode_tag
from gateway.observability.metrics import Metrics

log = structlog.get_logger(__name__)

MAX_SUPERSEDED = 10_000
"""The most attempts that are remembered as superseded or disowned, in case their engine reports them late.

An older one is recognized by the ledger.
"""


class Meter:
    """The gateway's `UsageSink`.

    The unused part of a request's reservation is given back at its end, and the rest once its row is written.
    """

    def __init__(
        self, journal: Journal, acknowledgements: Acknowledgements, copier: Copier, limiter: Limiter, metrics: Metrics
    ) -> None:
        self._journal = journal
        self._acknowledgements = acknowledgements
        self._copier = copier
        self._limiter = limiter
        self._metrics = metrics
        self._superseded: dict[tuple[str, int], None] = {}  # as (request_id, attempt), the oldest first
        self._disowned: dict[tuple[str, int], None] = {}  # the same for all rows of lines, by the id of the first row

    @property
    def has_room(self) -> bool:
        """Tell whether the journal has room for the usage of new requests."""
        return self._journal.has_room

    @property
    def journal_id(self) -> str:
        """The id of the journal that the usage goes into."""
        return self._journal.id

    def dispatched(self, request: GenerateRequest, engine_id: str, *, num_prompt_tokens: int | None = None) -> None:
        """Record that a request is sent to an engine.

        num_prompt_tokens: the tokens of the prompt where the request holds text; None: those of its token ids.
        """
        opened = Opened(
            request.request_id,
            request.attempt,
            request.meter,
            engine_id,
            len(request.prompt_token_ids) if num_prompt_tokens is None else num_prompt_tokens,
            request.n * request.sampling.max_tokens,
        )
        self._journal.open(opened)
        self._limiter.dispatched(request.request_id)

    def progressed(self, counts: list[Count]) -> None:
        """Record the tokens that clients may have seen so far."""
        self._journal.progress(counts)

    def record(
        self,
        usage: UsageRecord,
        *,
        engine_id: str,
        source: Acknowledged | None,
        ttft_ms: float | None,
        latency_ms: float | None,
        refused: bool = False,
    ) -> None:
        """Record the usage of a request that has ended.

        source: acknowledges the record to the engine once it is durable; None where no engine waits for that.
        ttft_ms, latency_ms: times to the first token and to the end; None where they are not known.
        refused: True: the engine refused the request as the client's mistake.
        """
        if not self._has_tag(usage):
            return  # not acknowledged, so the engine keeps the record for a gateway that can read it
        attempt = (usage.request_id, usage.attempt)
        superseded = attempt in self._superseded
        disowned = not superseded and (usage.request_id.split(".", 1)[0], usage.attempt) in self._disowned
        self._journal.end(Ended(usage, engine_id, ttft_ms, latency_ms, time.time_ns(), superseded or disowned, refused))
        if source is not None:
            self._acknowledgements.add(source, attempt, self._journal.position)
        if superseded:
            pass  # the reservation is the later attempt's
        elif disowned:
            self._limiter.superseded(usage.request_id)
        elif source is not None:
            self._limiter.ended(usage.request_id, usage.usage)
        else:
            self._limiter.seen(usage.request_id, usage.usage)
        self._metrics.usage_waiting.set(len(self._journal.unsettled.ended))
        self._copier.wake()

    def superseded(self, usage: UsageRecord, *, engine_id: str, source: Acknowledged | None) -> None:
        """Record the usage of an attempt that another attempt replaced.

        source: acknowledges the record to the engine once it is durable; None where no engine waits for that.
        """
        self._note_superseded(usage.request_id, (usage.attempt,))
        self._limiter.superseded(usage.request_id)
        self.record(usage, engine_id=engine_id, source=source, ttft_ms=None, latency_ms=None)

    def has_sent(self, request_id: str, attempts: Iterable[int]) -> bool:
        """Tell whether one of these attempts at a request was sent and still runs, or is superseded."""
        running = self._journal.unsettled.running
        return any((request_id, each) in running or (request_id, each) in self._superseded for each in attempts)

    def supersede(self, request_id: str, attempts: Iterable[int]) -> None:
        """Record in advance that other attempts replace these, so that the operator pays for all their usage."""
        self._note_superseded(request_id, attempts)
        self._limiter.superseded(request_id)

    def disown(self, request_id: str, attempts: Iterable[int]) -> None:
        """Record in advance that the operator pays for these attempts at a batch line, in each of their rows."""
        self.supersede(request_id, attempts)
        for attempt in attempts:
            _remember(self._disowned, (request_id, attempt))

    def outrun(self, request_id: str, attempts: range, by: range) -> None:
        """Record that the operator pays for these attempts, because others of the same reservation were faster.

        by: the numbers of the faster attempts.
        """
        self._note_superseded(request_id, attempts)
        if self.has_sent(request_id, by):
            self._limiter.dispatched(request_id)

    def _note_superseded(self, request_id: str, attempts: Iterable[int]) -> None:
        for attempt in attempts:
            _remember(self._superseded, (request_id, attempt))

    def _has_tag(self, usage: UsageRecord) -> bool:
        """Tell whether a usage has a valid meter tag, which says whom to bill."""
        if (usage.request_id, usage.attempt) in self._journal.unsettled.running:
            return True
        try:
            decode_tag(usage.meter)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.error("usage_without_meter_tag", request_id=usage.request_id, error=str(error))
            return False
        return True

    def given_up(self, request_ids: Collection[str]) -> None:
        """Release the reservations of requests that no engine answers any more."""
        self._limiter.given_up(request_ids)


def _remember(attempts: dict[tuple[str, int], None], attempt: tuple[str, int]) -> None:
    attempts[attempt] = None
    if len(attempts) > MAX_SUPERSEDED:
        attempts.pop(next(iter(attempts)))
