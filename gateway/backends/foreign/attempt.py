"""One request at one server, as its gateway counts it: what came, what the server says, and what is recorded, once."""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from engine.protocol import FinishReason, GenerateRequest, Usage, UsageRecord
from gateway.backends.foreign.model import TEMPLATE_TOKENS
from gateway.backends.foreign.reply import Part, Told
from gateway.backends.generation import Generation
from gateway.backends.usage import Acknowledged, Count, UsageSink
from gateway.domain.routing.foreign_usage import Seen, Settled, own_completion, own_prompt, settle

log = structlog.get_logger(__name__)


class Attempt:
    """A request that is sent to a server. Its usage reaches the sink exactly once, by `record` or `supersede`."""

    def __init__(
        self, generation: Generation, sink: UsageSink, source: Acknowledged, engine_id: str, *, is_exact: bool
    ) -> None:
        """source: gets nothing to keep, but says that no other count will come. is_exact: whether the reply has token
        ids."""
        self.request: GenerateRequest = generation.request
        self.told: Told | None = None
        """The last usage that the server told."""
        self.kept: dict[int, int] = {}
        """The tokens that count of each choice that a stop string has ended here, by the number of the choice."""
        self.finished: dict[int, FinishReason] = {}
        """The choices that have ended, each with its reason."""
        self.is_cut_off = False
        """True once this gateway aborts the request because it stops."""
        self.is_lie = False
        """True if the server told counts that cannot be true."""
        self._sink = sink
        self._source = source
        self._engine_id = engine_id
        self._is_exact = is_exact
        self._prompt_tokens = generation.prompt_tokens
        self._is_prompt_exact = generation.num_prompt_tokens is None
        self._template_tokens = TEMPLATE_TOKENS if generation.conversation is not None else 0
        self._is_told_late = False
        self._counts = [0] * self.request.n
        self._bytes = [0] * self.request.n
        self._events = [0] * self.request.n
        self._began_s = asyncio.get_running_loop().time()
        self._first_s: float | None = None
        self._is_recorded = False

    @property
    def has_begun(self) -> bool:
        """Tell whether a part of the reply has come."""
        return self._first_s is not None

    @property
    def is_complete(self) -> bool:
        """Tell whether the server or a stop string has ended all choices."""
        return len(self.finished.keys() | self.kept.keys()) >= self.request.n

    @property
    def num_text_bytes(self) -> int:
        """Bytes of text that came, hidden ones included."""
        return sum(self._bytes)

    def count(self, index: int) -> int:
        """Return our own count of the tokens of a choice so far."""
        seen = self._seen(self._counts[index], self._bytes[index], self._events[index], num_choices=1)
        own = own_completion(seen)
        return min(own, self.kept.get(index, own))

    def dispatched(self) -> None:
        """Note that the request is on its way."""
        self._sink.dispatched(self.request, self._engine_id, num_prompt_tokens=self._prompt_tokens)

    def tell(self, told: Told) -> None:
        """Take the usage that the server tells, with all that came by now."""
        self.told, self._is_told_late = told, False

    def add(self, parts: list[Part]) -> None:
        """Count what came, and have it noted before anybody reads it."""
        self._is_told_late = True
        if self._first_s is None:
            self._first_s = asyncio.get_running_loop().time()
        for part in parts:
            index = part.index
            self._counts[index] += len(part.token_ids)
            size = part.hidden_bytes + len(part.text.encode(errors="replace"))
            for call in part.calls:
                size += len((call.name or "").encode()) + len(call.arguments.encode(errors="replace"))
            self._bytes[index] += size
            self._events[index] += bool(size)
            if part.finish_reason is not None:
                self.finished[index] = part.finish_reason
        request = self.request
        count = Count(request.request_id, request.attempt, own_prompt(self._all), self._num_kept)
        self._sink.progressed([count])

    def record(self, *, is_whole: bool) -> Usage:
        """Record the usage of the attempt; return it. is_whole: whether the reply came to its end."""
        self._is_recorded = True
        settled = self._settled(is_whole=is_whole)
        usage = self._usage(settled)
        if settled.is_lie:
            self.is_lie = True
            log.warning(
                "usage_not_believed",
                request_id=self.request.request_id,
                told=msgspec.to_builtins(self.told),
                billed_prompt_tokens=usage.prompt_tokens,
                billed_completion_tokens=usage.completion_tokens,
            )
        now_s = asyncio.get_running_loop().time()
        self._sink.record(
            self._record_of(usage, is_whole=is_whole),
            engine_id=self._engine_id,
            source=self._source,
            ttft_ms=None if self._first_s is None else (self._first_s - self._began_s) * 1e3,
            latency_ms=(now_s - self._began_s) * 1e3,
        )
        return usage

    def supersede(self) -> None:
        """Record the attempt as the operator's own: another attempt takes its place."""
        self._is_recorded = True
        usage = self._usage(self._settled(is_whole=False))
        record = self._record_of(usage, is_whole=False)
        self._sink.superseded(record, engine_id=self._engine_id, source=self._source)

    @property
    def is_recorded(self) -> bool:
        return self._is_recorded

    def _record_of(self, usage: Usage, *, is_whole: bool) -> UsageRecord:
        request = self.request
        reason: FinishReason = "error"
        if is_whole:
            reasons = [self.finished.get(index, "stop") for index in range(request.n) if index not in self.kept]
            reason = "length" if "length" in reasons else "stop"
        elif self.has_begun:
            reason = "abort"
        return UsageRecord(request.request_id, request.attempt, reason, usage, request.meter)

    def _settled(self, *, is_whole: bool) -> Settled:
        told = self.told
        if not self.has_begun and told is None:
            return Settled(0, 0, 0, is_ours=True, is_lie=False)
        if told is None or (self._is_told_late and not is_whole):  # the count is older than what came since
            return settle(self._all, None)
        counts = (told.prompt_tokens, told.completion_tokens, told.cached_tokens)
        return settle(self._all, counts, reasoning_tokens=told.reasoning_tokens)

    def _usage(self, settled: Settled) -> Usage:
        completion, kept = settled.completion_tokens, self._num_kept
        discarded = 0
        if self.kept and kept < completion:
            completion, discarded = kept, completion - kept
        return Usage(settled.prompt_tokens, completion, cached_tokens=settled.cached_tokens, discarded_tokens=discarded)

    @property
    def _num_kept(self) -> int:
        return sum(self.count(index) for index in range(self.request.n))

    @property
    def _all(self) -> Seen:
        return self._seen(sum(self._counts), sum(self._bytes), sum(self._events), num_choices=self.request.n)

    def _seen(self, count: int, num_bytes: int, num_events: int, *, num_choices: int) -> Seen:
        return Seen(
            num_choices=num_choices,
            max_tokens=self.request.sampling.max_tokens,
            prompt_tokens=self._prompt_tokens,
            template_tokens=self._template_tokens,
            is_prompt_exact=self._is_prompt_exact,
            is_exact=self._is_exact,
            completion_tokens=count,
            text_bytes=num_bytes,
            num_events=num_events,
        )
