"""The usage event: one row per attempt of a request, and the tag that travels through the engine to make it."""

from __future__ import annotations

import datetime

import msgspec


class MeterTag(msgspec.Struct, frozen=True):
    """Everything of an event that the engine does not know. It travels as opaque bytes in `GenerateRequest.meter`,
    so that whichever gateway receives the usage can write the event. created_at_ns: Unix time in ns."""

    organization_id: str
    project_id: str
    api_key_id: str
    endpoint: str
    model: str
    adapter_id: str | None
    adapter_version: int | None
    adapter_digest: str | None
    created_at_ns: int
    stream: bool


class UsageEvent(msgspec.Struct, frozen=True):
    """One row of the ledger. Times in ms; ttft_ms is None when no token came or its gateway died."""

    request_id: str
    attempt: int
    organization_id: str
    project_id: str
    api_key_id: str
    endpoint: str
    model: str
    adapter_id: str | None
    adapter_version: int | None
    adapter_digest: str | None
    stream: bool
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    discarded_tokens: int
    finish_reason: str
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    ttft_ms: float | None
    latency_ms: float | None
    adapter_load_bytes: int
    created_at: datetime.datetime
    finished_at: datetime.datetime


encode_tag = msgspec.msgpack.Encoder().encode
decode_tag = msgspec.msgpack.Decoder(MeterTag).decode
