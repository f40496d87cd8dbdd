"""The spans of one call of a model: the call itself, and below it each attempt at a replica.

A request has one call, or one for each target of a route that it was tried at. Knows names, counts and times, and
nothing of prompts and answers.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec

from engine.protocol import GenerateRequest, SamplingParams, Usage
from gateway.backends.base import Unanswered
from gateway.backends.generation import Generation, Item
from gateway.backends.pool import PoolRevision, Replica
from gateway.domain.errors import GatewayError, shortened
from gateway.domain.pools.drivers import OWN_DRIVER
from gateway.domain.tracing import names
from gateway.domain.tracing.span import Attributes, Span, SpanEvent
from gateway.observability.tracing.trace import Trace
from gateway.pipeline.context import RequestContext
from gateway.routing.route import Route

OPERATIONS = {
    "/v1/completions": names.TEXT_COMPLETION,
    "/v1/embeddings": names.EMBEDDINGS,
    "/v1/rerank": names.RERANK,
}
"""The kind of task that a span names, by endpoint; all endpoints that are not listed are chats."""

_WITHOUT_TEXT = (names.EMBEDDINGS, names.RERANK)

CANCELLED = "cancelled"
"""The error type that a span has for a request whose client left."""

_MS = 1_000_000


class ModelCall:
    """The span of a model call, from the choice of its target to its answer, error or end."""

    def __init__(self, trace: Trace, span: Span, context: RequestContext, model: str) -> None:
        self._trace = trace
        self._span = span
        self._operation = OPERATIONS.get(context.endpoint, names.CHAT)
        self._num_prompts = 1
        self._driver = ""
        self._pool = ""
        self._usages: dict[str, Usage] = {}
        self._reasons: list[str] = []
        self._first_ns: int | None = None
        self._error = ""
        self._has_ended = False
        span.name = f"{self._operation} {shortened(model)}"
        span.attributes = {names.OPERATION: self._operation, names.REQUEST_MODEL: shortened(model)}

    @classmethod
    def begin(cls, context: RequestContext, model: str) -> ModelCall | None:
        """Begin a call; None where the request is not traced. model: the model string of the target."""
        trace = context.trace.trace
        span = None if trace is None else trace.begin("", "client")
        return None if trace is None or span is None else cls(trace, span, context, model)

    def prepared(
        self, route: Route, pool: PoolRevision, requests: Sequence[GenerateRequest], context: RequestContext
    ) -> None:
        """Record the model, the pool and the parameters of the request on the span, once they are known."""
        self._num_prompts, self._driver, self._pool = len(requests), pool.driver, pool.name
        adapter, attributes = route.adapter, self._span.attributes
        attributes[names.PROVIDER] = pool.driver
        attributes[names.REQUEST_MODEL] = route.model
        attributes[names.RESPONSE_MODEL] = route.base if adapter is None else f"{route.base}:{adapter.label}"
        attributes[names.POOL] = pool.name
        if self._operation not in _WITHOUT_TEXT:
            _add_sampling(attributes, requests[0].sampling, requests[0].n)
            attributes[names.REQUEST_STREAM] = context.stream
        self._span.name = f"{self._operation} {route.model}"

    async def attempt(self, replica: Replica, generation: Generation) -> AsyncGenerator[Item]:
        """Yield the items of an attempt at a replica, as its backend does, and record the attempt's span."""
        request = generation.request
        span, error = self._begin_attempt(replica, request), CANCELLED
        reasons, first_ns = list[str](), None
        if span is not None:
            generation = msgspec.structs.replace(generation, trace=self._trace.header(span))
        try:
            async with aclosing(replica.backend.generate(generation)) as items:
                async for item in items:
                    if isinstance(item, Usage):
                        error = ""
                        self._answered(request, item, span, first_ns, reasons)
                    elif isinstance(item, list):
                        if first_ns is None:
                            first_ns = time.time_ns()
                            self._first_ns = self._first_ns or first_ns
                        for piece in item:
                            if piece.finish_reason is not None:
                                reasons.append(piece.finish_reason)
                    yield item
        except Exception as failed:
            error = _type_of(failed)
            raise
        finally:
            if error:
                self._end_with_error(span, error)

    async def embedding(self, replica: Replica, request: GenerateRequest) -> tuple[bytes, Usage]:
        """Return an embedding by a replica, as its backend does, and record the attempt's span."""
        span, error = self._begin_attempt(replica, request), CANCELLED
        header = "" if span is None else self._trace.header(span)
        try:
            embedding, usage = await replica.backend.embed(request, header)
            error = ""
            self._answered(request, usage, span, None, [])
        except Exception as failed:
            error = _type_of(failed)
            raise
        finally:
            if error:
                self._end_with_error(span, error)
        return embedding, usage

    def note(self, error: GatewayError) -> None:
        """Record the error with which the call fails."""
        self._error = _type_of(error)

    def ending(self, close: Callable[[], None]) -> Callable[[], None]:
        """Return a function that calls `close` and ends the call, unless it has ended already."""

        def close_and_end() -> None:
            close()
            self.end()

        return close_and_end

    def end(self) -> None:
        """End the call, with the error of its last attempt where it has no whole answer."""
        if self._has_ended:
            return
        self._has_ended = True
        span, attributes = self._span, self._span.attributes
        if self._usages:
            used = self._usages.values()
            attributes[names.INPUT_TOKENS] = sum(each.prompt_tokens for each in used)
            attributes[names.CACHED_TOKENS] = sum(each.cached_tokens for each in used)
            if self._operation not in _WITHOUT_TEXT:
                attributes[names.OUTPUT_TOKENS] = sum(each.completion_tokens for each in used)
        if self._reasons:
            attributes[names.RESPONSE_FINISH_REASONS] = self._reasons
        if self._first_ns is not None:
            attributes[names.RESPONSE_FIRST_CHUNK] = (self._first_ns - span.start_ns) / 1e9
        if len(self._usages) < self._num_prompts:
            attributes[names.ERROR_TYPE] = self._error or CANCELLED
            span.is_error = True
        self._trace.end(span)

    def _begin_attempt(self, replica: Replica, request: GenerateRequest) -> Span | None:
        is_own = self._driver == OWN_DRIVER
        if is_own:
            span = self._trace.begin(f"engine {self._pool}", "server", self._span, "engine")
        else:
            span = self._trace.begin(f"{self._driver} {self._pool}", "client", self._span)
        if span is not None:
            span.attributes = {
                names.POOL: self._pool,
                names.REPLICA: replica.id,
                names.REQUEST_ID: request.request_id,
                names.ATTEMPT: request.attempt,
            }
            if is_own:
                span.attributes[names.TIMED_BY] = "gateway"
        return span

    def _answered(
        self, request: GenerateRequest, usage: Usage, span: Span | None, first_ns: int | None, reasons: list[str]
    ) -> None:
        """Record the answer to one prompt; the call ends with the last prompt's answer.

        span: the span of the attempt; None where there is room for no more spans. first_ns: the time of the first token
        in Unix nanoseconds; None where none came.
        """
        self._usages[request.request_id] = usage
        self._reasons += reasons
        if span is not None:
            end_ns = None
            if usage.arrived_unix_ns:
                end_ns = _set_engine_times(span, usage)
            elif first_ns is not None:
                span.events.append(SpanEvent(names.FIRST_TOKEN_EVENT, first_ns))
            self._trace.end(span, end_ns)
        if len(self._usages) >= self._num_prompts:
            self.end()

    def _end_with_error(self, span: Span | None, error: str) -> None:
        self._error = error
        if span is not None:
            span.attributes[names.ERROR_TYPE] = error
            span.is_error = True
            self._trace.end(span)


def _set_engine_times(span: Span, usage: Usage) -> int:
    """Set the times of a span by the clock of the engine's machine, and return the span's end in Unix nanoseconds."""
    prefill_ns = usage.arrived_unix_ns + int(usage.queue_ms * _MS)
    token_ns = prefill_ns + int(usage.prefill_ms * _MS)
    span.start_ns = usage.arrived_unix_ns
    span.events += (SpanEvent(names.PREFILL_EVENT, prefill_ns), SpanEvent(names.FIRST_TOKEN_EVENT, token_ns))
    span.attributes.update(
        {
            names.TIMED_BY: "engine",
            names.QUEUE_MS: usage.queue_ms,
            names.PREFILL_MS: usage.prefill_ms,
            names.DECODE_MS: usage.decode_ms,
        }
    )
    if usage.adapter_wait_ms:
        span.attributes[names.ADAPTER_WAIT_MS] = usage.adapter_wait_ms
    return token_ns + int(usage.decode_ms * _MS)


def _add_sampling(attributes: Attributes, sampling: SamplingParams, num_choices: int) -> None:
    """Add the sampling parameters to a span, except those that are off or have their usual value."""
    attributes[names.REQUEST_MAX_TOKENS] = sampling.max_tokens
    attributes[names.REQUEST_TEMPERATURE] = sampling.temperature
    if sampling.top_p != 1.0:
        attributes[names.REQUEST_TOP_P] = sampling.top_p
    if sampling.top_k > 0:
        attributes[names.REQUEST_TOP_K] = sampling.top_k
    if sampling.seed is not None:
        attributes[names.REQUEST_SEED] = sampling.seed
    if sampling.frequency_penalty:
        attributes[names.REQUEST_FREQUENCY_PENALTY] = sampling.frequency_penalty
    if sampling.presence_penalty:
        attributes[names.REQUEST_PRESENCE_PENALTY] = sampling.presence_penalty
    if num_choices != 1:
        attributes[names.REQUEST_CHOICES] = num_choices


def _type_of(error: Exception) -> str:
    """Return the error type for a span: the code that a client would get, where there is one."""
    if isinstance(error, Unanswered):
        error = error.error
    return error.code or error.type if isinstance(error, GatewayError) else type(error).__name__
