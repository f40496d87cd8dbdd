"""The spans of one request: their bound, their parents, and what is passed on of a request that is not traced."""

from __future__ import annotations

import pytest

from gateway.domain.tracing.names import SPANS_LEFT_OUT
from gateway.domain.tracing.parent import read_parent
from gateway.domain.tracing.sampler import Sampler
from gateway.domain.tracing.span import Span
from gateway.observability.tracing.trace import MAX_SPANS, UNTRACED, Traced, Tracer, context_without_spans

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{SPAN}-01"


class StoredSpans:
    """A span sink that stores the spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, span: Span) -> None:
        self.spans.append(span)


def make_tracer(sampler: str = "parentbased_always_on") -> tuple[Tracer, StoredSpans]:
    kept = StoredSpans()
    return Tracer(Sampler(sampler, 1.0), kept), kept  # type: ignore[arg-type]


def test_a_request_has_a_bounded_number_of_spans_and_says_how_many_it_lacks() -> None:
    begins, kept = make_tracer()
    trace = begins.begin(HEADER).trace
    assert trace is not None
    made = [trace.begin("a", "client") for _ in range(MAX_SPANS + 9)]
    assert [each is None for each in made] == [False] * (MAX_SPANS - 1) + [True] * 10
    for each in made:
        if each is not None:
            trace.end(each)
    trace.end(trace.first)
    assert len(kept.spans) == MAX_SPANS
    assert kept.spans[-1].attributes == {SPANS_LEFT_OUT: 10}
    assert len({each.span_id for each in kept.spans}) == MAX_SPANS
    assert {each.parent_id for each in kept.spans[:-1]} == {trace.first.span_id}


def test_a_traced_request_passes_its_own_span_on() -> None:
    traced = make_tracer()[0].begin(HEADER)
    assert traced.trace is not None and traced.id == TRACE
    passed = read_parent(traced.header)
    assert passed is not None and (passed.trace_id, passed.is_sampled) == (TRACE, True)
    assert passed.span_id == traced.trace.first.span_id != SPAN


@pytest.mark.parametrize("header", [HEADER, ""])
def test_a_request_that_is_not_chosen_tells_others_not_to_trace_it(header: str) -> None:
    traced = make_tracer("always_off")[0].begin(header)
    passed = read_parent(traced.header)
    assert traced.trace is None and passed is not None and not passed.is_sampled
    assert (passed.trace_id == TRACE) == bool(header)
    assert traced.id == (TRACE if header else ""), "an id that nobody knows is not worth keeping"


@pytest.mark.parametrize(
    ("given", "passed"),
    [(HEADER, HEADER), (f"00-{TRACE}-{SPAN}-00",) * 2, (f"cc-{TRACE}-{SPAN}-01-ümlaut", HEADER)],
)
def test_without_traces_the_clients_span_is_passed_on(given: str, passed: str) -> None:
    traced = context_without_spans(given)
    assert (traced.id, traced.header, traced.trace) == (TRACE, passed, None)


def test_without_traces_and_a_header_nothing_is_passed_on() -> None:
    for header in ("", "nonsense"):
        made: Traced = context_without_spans(header)
        assert made is UNTRACED and not made.header
