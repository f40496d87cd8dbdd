"""An OTLP receiver: a real HTTP server that reads what it gets with OpenTelemetry's own schema."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.installation.waiting import wait_until

KINDS = {
    trace_pb2.Span.SPAN_KIND_INTERNAL: "internal",
    trace_pb2.Span.SPAN_KIND_SERVER: "server",
    trace_pb2.Span.SPAN_KIND_CLIENT: "client",
}


class Received(msgspec.Struct):
    """One span of a received message."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: dict[str, dict[str, Any]]
    event_times: dict[str, int]
    is_error: bool
    service: str
    schema_url: str


class Collector:
    """The received spans, and the status with which messages are answered."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.status = 200
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.num_asked = 0
        self.url = ""

    def take(self, body: bytes, headers: dict[str, str]) -> int:
        """Store the spans of a message, and return the status of the reply."""
        self.num_asked += 1
        self.may_answer.wait()
        if self.status == 200:
            self.bodies.append(body)
            self.headers.append(headers)
            self.spans += read_spans(body)
        return self.status

    def trace(self, trace_id: str, num_spans: int) -> list[Received]:
        """Wait for the spans of a trace, and return them ordered by their start."""

        def found() -> list[Received] | None:
            spans = [each for each in self.spans if each.trace_id == trace_id]
            return spans if len(spans) >= num_spans else None

        spans = wait_until(found, lambda: f"it has {[each.name for each in self.spans if each.trace_id == trace_id]}")
        assert len(spans) == num_spans, [each.name for each in spans]
        return sorted(spans, key=lambda each: each.start_ns)


def read_spans(body: bytes) -> list[Received]:
    """Return the spans of a message."""
    message = ExportTraceServiceRequest.FromString(body)
    spans: list[Received] = []
    for of_resource in message.resource_spans:
        resource = values_of(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            assert of_scope.scope.name == "lorikeet"
            spans += [_received_span(span, resource["service.name"], of_scope.schema_url) for span in of_scope.spans]
    return spans


def _received_span(span: Any, service: str, schema_url: str) -> Received:
    return Received(
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        KINDS[span.kind],
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        values_of(span.attributes),
        {each.name: values_of(each.attributes) for each in span.events},
        {each.name: each.time_unix_nano for each in span.events},
        span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        service,
        schema_url,
    )


def values_of(attributes: Any) -> dict[str, Any]:
    return {each.key: value_of(each.value) for each in attributes}


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def running_collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            assert self.headers["content-type"] == "application/x-protobuf"
            body = self.rfile.read(int(self.headers["content-length"]))
            status = collector.take(body, {name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    try:
        yield collector
    finally:
        collector.may_answer.set()
        server.shutdown()
        server.server_close()
