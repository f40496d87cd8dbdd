"""The journal's records, and their form in a file: one after another, each with its length and a checksum.

Bytes in, records out, and back. Knows neither files nor the records' use.
"""

from __future__ import annotations

import struct
import zlib

import msgspec

from engine.protocol import UsageRecord
from gateway.backends.usage import Count

VERSION = 1

MAGIC = b"\xf5LJ\x01"
"""The first bytes of every frame. The first one cannot occur in UTF-8; it marks the next frame after a damaged one."""

MAX_RECORD_BYTES = 16 << 20

_HEAD = struct.Struct("<4sII")  # magic, length of the payload, its CRC-32

EndedKey = tuple[str, int, str]
"""The identity of a count: the request, the attempt, and who recorded it, as `Ended.key` says."""

SUPERSEDED = "superseded"
"""In the place of an engine in an `EndedKey`: the count is a gateway's own, of an attempt that is superseded."""


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """The first record of every segment, which names the database and the journal that the segment belongs to."""

    version: int
    """The version of the format."""
    database_id: str
    """The id of the database whose ledger the segment's usage belongs to."""
    journal_id: str
    """The id of the journal of the process that wrote the segment."""


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """The record that a request was sent to an engine.

    At worst the request costs prompt_tokens and max_completion_tokens.
    """

    request_id: str
    attempt: int
    meter: bytes
    """The content of `GenerateRequest.meter`: the request's meter tag."""
    engine_id: str
    """The engine that the request was sent to."""
    prompt_tokens: int
    max_completion_tokens: int
    """The most completion tokens over all choices."""


class Progressed(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """The record of the token counts that one message of an engine raised; they replace earlier ones."""

    counts: list[Count]


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="final"):
    """The record of a request's end, with its whole usage."""

    record: UsageRecord
    engine_id: str
    """The engine that recorded the usage itself; "" for a record that a gateway made of the counts that it saw."""
    ttft_ms: float | None
    """Milliseconds to the first token; None where none came, or where the gateway that knew the time died."""
    latency_ms: float | None
    """Milliseconds to the end; None where the gateway that knew the time died."""
    finished_at_ns: int
    """The time of the end in Unix nanoseconds."""
    superseded: bool = False
    """True: another attempt took the place of this one after its engine was lost; the operator pays for this one."""
    refused: bool = False
    """True: the engine or server refused the request, and did not fail. Older gateways wrote no such field."""

    @property
    def attempt(self) -> tuple[str, int]:
        """The key of the record's row in the ledger: request id and attempt."""
        return self.record.request_id, self.record.attempt

    @property
    def key(self) -> EndedKey:
        """The identity of the record: the attempt, and the source of the count.

        All reports of one engine about an attempt have one key, so that a repeated report is recognized. A gateway's
        own count of the attempt has another key. A gateway's record that the attempt is superseded has a third one: it
        is often made while the gateway's own count is still to be copied, and must not be taken for a repetition.
        """
        source = self.engine_id or (SUPERSEDED if self.superseded else "")
        return self.record.request_id, self.record.attempt, source


class Copied(msgspec.Struct, frozen=True, array_like=True, tag="copied"):
    """The record that the ledger has the usages with these keys."""

    keys: list[EndedKey]


class Adopted(msgspec.Struct, frozen=True, array_like=True, tag="adopted"):
    """The record that this journal includes all records of other journals."""

    journal_ids: list[str]


class Released(msgspec.Struct, frozen=True, array_like=True, tag="released"):
    """The record that the database knows that nothing is lost with certain journals."""

    journal_ids: list[str]


Record = Begun | Opened | Progressed | Ended | Copied | Adopted | Released

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


class Contents(msgspec.Struct, frozen=True):
    """The records that a segment's bytes hold."""

    records: list[Record]
    num_torn_bytes: int
    """The number of bytes at the end of a record whose write was not completed."""
    damaged: list[tuple[int, int]]
    """The (start, end) of ranges of bytes before the last good record that are not valid records."""


def frame(record: Record) -> bytes:
    """Return the bytes of one record in the journal's file."""
    payload = _encode(record)
    return _HEAD.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def read_frames(data: bytes) -> Contents:
    """Return every record that is whole, in order.

    Reading goes on after a bad one with the next good one, if there is one.
    """
    records: list[Record] = []
    damaged: list[tuple[int, int]] = []
    position = 0
    while position < len(data):
        found = _next_frame(data, position)
        if found is None:
            break
        start, end, record = found
        if start > position:
            damaged.append((position, start))
        records.append(record)
        position = end
    return Contents(records, len(data) - position, damaged)


def _next_frame(data: bytes, position: int) -> tuple[int, int, Record] | None:
    """Return the first good frame from position on: where it starts and ends, and its record."""
    start = data.find(MAGIC, position)
    while start >= 0:
        if start + _HEAD.size <= len(data):
            _, length, checksum = _HEAD.unpack_from(data, start)
            end = start + _HEAD.size + length
            if length <= MAX_RECORD_BYTES and end <= len(data):
                payload = data[start + _HEAD.size : end]
                if zlib.crc32(payload) == checksum and (record := _decoded_record(payload)) is not None:
                    return start, end, record
        start = data.find(MAGIC, start + 1)
    return None


def _decoded_record(payload: bytes) -> Record | None:
    try:
        record: Record = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return record
