"""The spans of one request, which it hands to the exporter one by one as they end.

Work apart from any request is a part of a trace as well: a line of a batch, a response in the background, a copy
for a shadow arm. Its first span is one of kind `internal`.

Knows neither HTTP nor models.
"""

from __future__ import annotations

import random
import time
from typing import Protocol

from gateway.domain.tracing.names import ERROR_TYPE, SPANS_LEFT_OUT
from gateway.domain.tracing.parent import read_parent, write_parent
from gateway.domain.tracing.sampler import Sampler
from gateway.domain.tracing.span import Attributes, Kind, Service, Span

MAX_SPANS = 64
"""The most spans of one request, which may have thousands of prompts; further ones are counted in its first span."""


class SpanSink(Protocol):
    """A receiver of spans that have ended."""

    def add(self, span: Span) -> None:
        """Take a span; never waits, and never fails."""


class Trace:
    """The spans of one request in this gateway. The first one is that of the request itself."""

    def __init__(self, trace_id: str, parent_id: str, sink: SpanSink, kind: Kind = "server") -> None:
        """Begin a trace. parent_id: the caller's span; "" for none. kind: the kind of the first span."""
        self.id = trace_id
        self.sink = sink
        self._num_left = MAX_SPANS
        self._num_left_out = 0
        self.first = self._begin_span("", kind, parent_id)

    def begin(self, name: str, kind: Kind, parent: Span | None = None, service: Service = "gateway") -> Span | None:
        """Begin a span now; None where the request has as many as it may have.

        parent: None stands for the first span. service: the process whose work the span is.
        """
        if self._num_left <= 0:
            self._num_left_out += 1
            return None
        return self._begin_span(name, kind, (parent or self.first).span_id, service)

    def finish(self, name: str, attributes: Attributes, error: str = "", *, is_our_fault: bool = True) -> None:
        """End the first span of a trace of work that runs apart from a request.

        error: the type of the error that ended the work; "" for none. is_our_fault: False where the error is the
        caller's.
        """
        self.first.name, self.first.attributes = name, attributes
        if error:
            attributes[ERROR_TYPE] = error
            self.first.is_error = is_our_fault
        self.end(self.first)

    def end(self, span: Span, at_ns: int | None = None) -> None:
        """End a span, now or at another time; it must not change any more.

        at_ns: the time of the end in Unix nanoseconds; None: now.
        """
        span.end_ns = time.time_ns() if at_ns is None else at_ns
        if span is self.first and self._num_left_out:
            span.attributes[SPANS_LEFT_OUT] = self._num_left_out
        self.sink.add(span)

    def header(self, span: Span) -> str:
        """Return the header `traceparent` that names a span as the parent of work elsewhere."""
        return write_parent(self.id, span.span_id, is_sampled=True)

    def _begin_span(self, name: str, kind: Kind, parent_id: str, service: Service = "gateway") -> Span:
        self._num_left -= 1
        return Span(self.id, new_span_id(), parent_id, name, kind, time.time_ns(), 0, service, {}, [])


class Traced:
    """The trace context of a request: its spans, if it is traced, and the header that it passes on in any case."""

    __slots__ = ("header", "id", "trace")

    def __init__(self, id: str = "", header: str = "", trace: Trace | None = None) -> None:
        self.id = id
        """The id of the trace to look for the request in: the client's or, if the request is traced, our own; "" for
        none."""
        self.header = header
        """The header `traceparent` that the request's calls of others carry, where no span of ours is in between."""
        self.trace = trace
        """The request's spans; None where the request is not traced."""

    def part(self) -> Traced:
        """Return the trace for work that the request causes and that runs apart from the request."""
        if self.trace is None:
            return self
        part = Trace(self.id, self.trace.first.span_id, self.trace.sink, "internal")
        return Traced(self.id, part.header(part.first), part)


UNTRACED = Traced()


class Tracer:
    """Begins the trace of each request of one gateway process."""

    def __init__(self, sampler: Sampler, sink: SpanSink) -> None:
        self._sampler = sampler
        self._sink = sink

    def begin(self, header: str, kind: Kind = "server") -> Traced:
        """Begin a request's trace, or go on with the client's.

        header: the client's `traceparent`; "" for none. kind: the kind of the first span.
        """
        parent = read_parent(header) if header else None
        trace_id = new_trace_id() if parent is None else parent.trace_id
        if self._sampler.takes(trace_id, parent):
            trace = Trace(trace_id, "" if parent is None else parent.span_id, self._sink, kind)
            return Traced(trace_id, trace.header(trace.first), trace)
        own = write_parent(trace_id, new_span_id(), is_sampled=False)
        return Traced("" if parent is None else trace_id, own)


def context_without_spans(header: str, kind: Kind = "server") -> Traced:
    """Return the trace context of a request of which this gateway records no spans: the client's, if there is one."""
    parent = read_parent(header) if header else None
    if parent is None:
        return UNTRACED
    return Traced(parent.trace_id, write_parent(parent.trace_id, parent.span_id, is_sampled=parent.is_sampled))


class BeginTrace(Protocol):
    """A function that begins the trace of a request: `Tracer.begin` or `context_without_spans`."""

    def __call__(self, header: str, kind: Kind = "server") -> Traced:
        """Return the trace context. header: the client's `traceparent`; "" for none.

        kind: the kind of the first span.
        """


def new_trace_id() -> str:
    """Return the id of a new trace, which is not zero."""
    return f"{random.getrandbits(128) or 1:032x}"


def new_span_id() -> str:
    """Return the id of a new span, which is not zero."""
    return f"{random.getrandbits(64) or 1:016x}"
