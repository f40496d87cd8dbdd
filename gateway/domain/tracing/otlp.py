"""Spans as the OpenTelemetry protocol has them: one `ExportTraceServiceRequest` in Protocol Buffers' binary form.

The binary form, since not all receivers take the one in JSON. Field numbers are those of
opentelemetry/proto/trace/v1/trace.proto and its neighbors, version 1.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gateway.domain.tracing.names import SCHEMA_URL, SCOPE
from gateway.domain.tracing.span import Attributes, Service, Span, SpanEvent, Value

KINDS = {"internal": 1, "server": 2, "client": 3}
ERROR = 2
"""The number of `STATUS_CODE_ERROR` in the protocol."""

_SMALL = [bytes([number]) for number in range(128)]
_double = struct.Struct("<d").pack
_fixed64 = struct.Struct("<Q").pack


class EncodedSpan(NamedTuple):
    """A span in the binary form of an export request, and the process that the span belongs to."""

    service: Service
    data: bytes


def encode_request(spans: Iterable[EncodedSpan], resources: Mapping[Service, Attributes], version: str) -> bytes:
    """Return the body of a request that exports spans.

    resources: the attributes of each process whose spans there are.
    version: the version of the product.
    """
    scope = _message(1, _text(1, SCOPE) + _text(2, version))
    by_service: dict[Service, list[bytes]] = {}
    for service, data in spans:
        by_service.setdefault(service, []).append(data)
    parts = []
    for service, encoded in by_service.items():
        resource = _message(1, b"".join(_attributes(1, resources[service])))
        of_scope = _message(2, b"".join((scope, *encoded, _text(3, SCHEMA_URL))))
        parts.append(_message(1, b"".join((resource, of_scope, _text(3, SCHEMA_URL)))))
    return b"".join(parts)


def encode_span(span: Span) -> EncodedSpan:
    """Return the binary form, in the OpenTelemetry protocol, of a span that has ended."""
    parts = [b"\x0a\x10", bytes.fromhex(span.trace_id), b"\x12\x08", bytes.fromhex(span.span_id)]
    if span.parent_id:
        parts += (b"\x22\x08", bytes.fromhex(span.parent_id))
    parts += (
        _text(5, span.name),
        b"\x30",  # the kind
        _SMALL[KINDS[span.kind]],
        b"\x39",  # the start
        _fixed64(span.start_ns),
        b"\x41",  # the end
        _fixed64(max(span.end_ns, span.start_ns)),
        *_attributes(9, span.attributes),
        *(_message(11, _event(each)) for each in span.events),
    )
    if span.is_error:
        parts.append(_message(15, b"\x18" + _SMALL[ERROR]))
    return EncodedSpan(span.service, _message(2, b"".join(parts)))


def _event(event: SpanEvent) -> bytes:
    return b"".join((b"\x09", _fixed64(event.at_ns), _text(2, event.name), *_attributes(3, event.attributes)))


def _attributes(field: int, attributes: Attributes) -> Sequence[bytes]:
    return [_message(field, _key(name) + _message(2, _any_value(value))) for name, value in attributes.items()]


def _any_value(value: Value) -> bytes:
    match value:
        case str():
            return _text(1, value)
        case bool():
            return b"\x10" + _SMALL[value]
        case int():
            return b"\x18" + _varint(value & (1 << 64) - 1)  # two's complement, as Protocol Buffers has it
        case float():
            return b"\x21" + _double(value)
        case _:
            return _message(5, b"".join(_message(1, _text(1, each)) for each in value))


@functools.lru_cache(maxsize=1024)
def _key(name: str) -> bytes:
    """Return the encoded name of an attribute. The result is cached, since attributes have few different names."""
    return _text(1, name)


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode(errors="replace"))


def _message(field: int, content: bytes) -> bytes:
    return _SMALL[field << 3 | 2] + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    if number < 128:
        return _SMALL[number]
    parts = bytearray()
    while number >= 128:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)
