"""One request at one server, as its gateway counts it.

An attempt counts the parts that came and the usage that the server reports, and records the usage once.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
import structlog

from engine.protocol import FinishReason, GenerateRequest, Usage, UsageRecord
from gateway.backends.foreign.driver import ReplicaName
from gateway.backends.foreign.reply import Part, ReportedUsage
from gateway.backends.generation import Generation
from gateway.backends.usage import Acknowledged, Count, UsageSink
from gateway.domain.routing.foreign_usage import (
    BilledCounts,
    Evidence,
    own_completion_tokens,
    own_prompt_tokens,
    own_text_tokens,
    settle,
)

log = structlog.get_logger(__name__)

Outcome = Literal["whole", "left", "failed", "refused"]
"""The ways in which an attempt ends.

whole: the reply came to its end.
left: the client left, or this gateway stopped, before the end.
failed: the server failed at the request, also after a part of the reply had come, or had no room for it.
refused: the server will not run the request, however often it is sent.
"""


class Attempt:
    """A request that is sent to a server. Its usage reaches the sink exactly once, by `record` or `supersede`."""

    def __init__(
        self,
        generation: Generation,
        sink: UsageSink,
        source: Acknowledged,
        engine_id: str,
        name: ReplicaName,
        *,
        is_exact: bool,
    ) -> None:
        """Begin an attempt that has not been sent.

        source: the backend. It stores no usage, so the sink learns that no other count of the attempt will come.
        is_exact: whether the reply has token ids.
        """
        self.request: GenerateRequest = generation.request
        self.reported: ReportedUsage | None = None
        """The last usage that the server reported."""
        self.stopped_at: dict[int, int] = {}
        """The tokens that count of each choice that a stop string has ended here, by the number of the choice."""
        self.finished: dict[int, FinishReason] = {}
        """The choices that have ended, each with its reason."""
        self.is_cut_off = False
        """True once this gateway aborts the request because it stops."""
        self.is_false = False
        """True if the server reported counts that cannot be true."""
        self.is_recorded = False
        """True once the usage has reached the sink."""
        self.usage: Usage | None = None
        """The usage that was recorded of a reply that has ended."""
        self.num_text_bytes = 0
        """Bytes of text that came, reasoning included."""
        self.num_token_ids = 0
        """Token ids that came, of a server that returns them."""
        self.has_begun = False
        """True once a part of the reply has come."""
        self.began_s = asyncio.get_running_loop().time()
        """When the request was begun, by the loop's clock."""
        self._sink = sink
        self._source = source
        self._engine_id = engine_id
        self._name = name
        self._is_exact = is_exact
        self._prompt_tokens = generation.prompt_tokens
        self._is_prompt_exact = generation.num_prompt_tokens is None
        self._template_tokens = generation.template_tokens
        self._has_come_since = False
        self._waited_s = 0.0
        self._counts = [0] * self.request.n
        self._bytes = [0] * self.request.n
        self._events = [0] * self.request.n
        self._own = [0] * self.request.n
        """Our own counts of the tokens of each choice so far."""
        self._max_tokens = self.request.sampling.max_tokens
        self._own_prompt = own_prompt_tokens(self._evidence)
        self._settled_now: BilledCounts | None = None
        """The result of `_settled`, kept until something comes."""
        self._first_s: float | None = None

    @property
    def is_complete(self) -> bool:
        """Tell whether the server or a stop string has ended all choices."""
        return len(self.finished.keys() | self.stopped_at.keys()) >= self.request.n

    @property
    def billed_prompt_tokens(self) -> int | None:
        """The prompt's tokens as they are billed by now; None where they were counted before the request was sent."""
        if self._is_prompt_exact:
            return None
        return self._own_prompt if self.reported is None and self.has_begun else self._settled().prompt_tokens

    def count(self, index: int) -> int:
        """Return our own count of the tokens of a choice so far."""
        own = self._own[index]
        return min(own, self.stopped_at[index]) if index in self.stopped_at else own

    @property
    def waited_ms(self) -> float:
        """Return the milliseconds since the request was begun."""
        return (asyncio.get_running_loop().time() - self.began_s) * 1e3

    def times_ms(self) -> tuple[float, float]:
        """Return the milliseconds to the first part, and the milliseconds of each further token of a choice."""
        assert self._first_s is not None
        num_more = self._settled().completion_tokens / self.request.n - 1
        return (self._first_s - self.began_s) * 1e3, self._waited_s * 1e3 / num_more if num_more > 0 else 0.0

    def waited(self, seconds: float) -> None:
        """Count a time, in seconds, that was spent waiting for a further part."""
        self._waited_s += seconds

    def dispatched(self) -> None:
        """Record that the request is on its way."""
        self._sink.dispatched(self.request, self._engine_id, num_prompt_tokens=self._prompt_tokens)

    def report(self, usage: ReportedUsage) -> None:
        """Store the usage that the server reports for everything that came so far."""
        self.reported, self._has_come_since, self._settled_now = usage, False, None

    def add(self, parts: list[Part]) -> list[Part]:
        """Count the parts of one event; return the parts of choices that had not ended before.

        The caller records `so_far` before anybody reads the parts.
        """
        if self.finished:
            parts = [part for part in parts if part.index not in self.finished]
        if not parts:
            return parts
        if not self.has_begun:
            self.has_begun, self._first_s = True, asyncio.get_running_loop().time()
        self._settled_now = None
        for part in parts:
            index, text = part.index, part.text
            size = len(text) if text.isascii() else len(text.encode(errors="replace"))
            size += len(part.reasoning.encode(errors="replace"))
            for call in part.calls:
                size += len((call.name or "").encode()) + len(call.arguments.encode(errors="replace"))
            if size:
                self._bytes[index] += size
                self._events[index] += 1
                self.num_text_bytes += size
                self._has_come_since = True
            if num_ids := len(part.token_ids):
                self._counts[index] += num_ids
                self.num_token_ids += num_ids
                self._has_come_since = True
            if self._is_exact:
                self._own[index] = self._counts[index]
            else:
                self._own[index] = own_text_tokens(self._bytes[index], self._events[index], self._max_tokens)
            if part.finish_reason is not None:
                self.finished[index] = part.finish_reason
        return parts

    @property
    def so_far(self) -> Count:
        """Return the counts by now, which the caller records before anybody reads the parts that came."""
        request = self.request
        return Count(request.request_id, request.attempt, self._own_prompt, self._num_counted)

    def record(self, outcome: Outcome) -> None:
        """Record the usage of the attempt."""
        self.is_recorded = True
        settled = self._settled()
        usage = self.usage = self._usage(settled)
        if settled.is_false:
            self.is_false = True
            log.warning(
                "usage_not_believed",
                **self._name.fields,
                request_id=self.request.request_id,
                reported=msgspec.to_builtins(self.reported),
                billed_prompt_tokens=usage.prompt_tokens,
                billed_completion_tokens=usage.completion_tokens,
            )
        now_s = asyncio.get_running_loop().time()
        self._sink.record(
            self._record_of(usage, outcome),
            engine_id=self._engine_id,
            source=self._source,
            ttft_ms=None if self._first_s is None else (self._first_s - self.began_s) * 1e3,
            latency_ms=(now_s - self.began_s) * 1e3,
            refused=outcome == "refused",
        )

    def supersede(self) -> None:
        """Record the usage as the operator's own, since another attempt takes this one's place."""
        self.is_recorded = True
        record = self._record_of(self._usage(self._settled()), "failed")
        self._sink.superseded(record, engine_id=self._engine_id, source=self._source)

    def _record_of(self, usage: Usage, outcome: Outcome) -> UsageRecord:
        request = self.request
        reason: FinishReason = "abort" if outcome == "left" else "error"
        if outcome == "whole":
            reasons = [self.finished.get(index, "stop") for index in range(request.n) if index not in self.stopped_at]
            reason = "length" if "length" in reasons else "stop"
        return UsageRecord(request.request_id, request.attempt, reason, usage, request.meter)

    def _settled(self) -> BilledCounts:
        """Return the usage that is billed if the request ends now."""
        if self._settled_now is None:
            self._settled_now = self._billed_counts()
        return self._settled_now

    def _billed_counts(self) -> BilledCounts:
        reported = self.reported
        if not self.has_begun and reported is None:
            return BilledCounts(0, 0, 0, is_ours=True, is_false=False)
        if reported is None:
            return settle(self._evidence, None)
        completion = reported.completion_tokens
        if self._has_come_since:  # it is older than the last text: some servers send one with the first part alone
            completion = max(completion, own_completion_tokens(self._evidence))
        counts = (reported.prompt_tokens, completion, reported.cached_tokens)
        return settle(self._evidence, counts, reasoning_tokens=reported.reasoning_tokens)

    def _usage(self, settled: BilledCounts) -> Usage:
        completion, counted = settled.completion_tokens, self._num_counted
        discarded = 0
        if self.stopped_at and counted < completion:
            completion, discarded = counted, completion - counted
        return Usage(settled.prompt_tokens, completion, cached_tokens=settled.cached_tokens, discarded_tokens=discarded)

    @property
    def _num_counted(self) -> int:
        if not self.stopped_at:
            return sum(self._own)
        return sum(self.count(index) for index in range(self.request.n))

    @property
    def _evidence(self) -> Evidence:
        return Evidence(
            num_choices=self.request.n,
            max_tokens=self._max_tokens,
            prompt_tokens=self._prompt_tokens,
            template_tokens=self._template_tokens,
            is_prompt_exact=self._is_prompt_exact,
            is_exact=self._is_exact,
            completion_tokens=self.num_token_ids,
            text_bytes=self.num_text_bytes,
            num_events=sum(self._events),
        )
