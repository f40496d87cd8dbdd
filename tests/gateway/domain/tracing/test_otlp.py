"""Spans are sent in a form that OpenTelemetry's own schema reads."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.tracing.names import SCHEMA_URL
from gateway.domain.tracing.otlp import encode_request, encode_span
from gateway.domain.tracing.span import Span, SpanEvent
from tests.gateway.observability.tracing.collector import read_spans

RESOURCES = {"gateway": {"service.name": "g"}, "engine": {"service.name": "e"}}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
values = st.one_of(
    texts,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.lists(texts, max_size=5),
)
attributes = st.dictionaries(texts, values, max_size=20)
times = st.integers(0, 2**63)
events = st.builds(SpanEvent, texts, times, attributes)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    start = draw(times)
    return Span(
        f"{draw(st.integers(1, 2**128 - 1)):032x}",
        f"{draw(st.integers(1, 2**64 - 1)):016x}",
        draw(st.one_of(st.just(""), st.integers(1, 2**64 - 1).map(lambda number: f"{number:016x}"))),
        draw(texts),
        draw(st.sampled_from(["internal", "server", "client"])),
        start,
        start + draw(st.integers(0, 2**40)),
        draw(st.sampled_from(["gateway", "engine"])),
        draw(attributes),
        draw(st.lists(events, max_size=3, unique_by=lambda event: event.name)),
        draw(st.booleans()),
    )


@settings(deadline=None, max_examples=50)
@given(st.lists(spans(), max_size=8))
def test_every_span_is_read_as_it_was(given_spans: list[Span]) -> None:
    read = {
        (each.trace_id, each.span_id, each.service): each
        for each in read_spans(encode_request(map(encode_span, given_spans), RESOURCES, "1"))  # type: ignore[arg-type]
    }
    for span in given_spans:
        found = read[span.trace_id, span.span_id, span.service[0]]
        if sum((each.trace_id, each.span_id) == (span.trace_id, span.span_id) for each in given_spans) > 1:
            continue
        assert (found.parent_id, found.name, found.kind) == (span.parent_id, span.name, span.kind)
        assert (found.start_ns, found.end_ns, found.is_error) == (span.start_ns, span.end_ns, span.is_error)
        assert found.attributes == span.attributes
        assert {name: type(value) for name, value in found.attributes.items()} == {
            name: type(value) for name, value in span.attributes.items()
        }
        assert found.events == {each.name: each.attributes for each in span.events}
        assert found.event_times == {each.name: each.at_ns for each in span.events}
        assert found.schema_url == SCHEMA_URL


def test_text_that_is_no_unicode_does_not_fail() -> None:
    span = Span("1" * 32, "2" * 16, "", "\ud800", "server", 2, 1, attributes={"a": "x\udfff"})
    (found,) = read_spans(encode_request([encode_span(span)], RESOURCES, "1"))  # type: ignore[arg-type]
    assert (found.name, found.attributes["a"], found.end_ns) == ("?", "x?", 2)
