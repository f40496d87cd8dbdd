"""From what a backend said of an attempt to its row in the ledger. Knows neither prices nor how either is stored."""

from __future__ import annotations

import datetime

from gateway.db.ledger.usage import UsageEvent
from gateway.metering.format import Ended
from gateway.metering.tag import MeterTag

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


def usage_event(ended: Ended, tag: MeterTag) -> UsageEvent:
    """tag: what its record's meter says."""
    record, usage = ended.record, ended.record.usage
    return UsageEvent(
        request_id=record.request_id,
        attempt=record.attempt,
        organization_id=tag.organization_id,
        project_id=tag.project_id,
        api_key_id=tag.api_key_id,
        endpoint=tag.endpoint,
        model=tag.model,
        adapter_id=tag.adapter_id,
        adapter_version=tag.adapter_version,
        adapter_digest=tag.adapter_digest,
        stream=tag.stream,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        discarded_tokens=usage.discarded_tokens,
        finish_reason=record.finish_reason,
        queue_ms=usage.queue_ms,
        prefill_ms=usage.prefill_ms,
        decode_ms=usage.decode_ms,
        ttft_ms=ended.ttft_ms,
        latency_ms=ended.latency_ms,
        adapter_load_bytes=usage.adapter_load_bytes,
        created_at=_time(tag.created_at_ns),
        finished_at=_time(ended.finished_at_ns),
        service_tier=tag.service_tier,
    )


def _time(unix_ns: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(microseconds=unix_ns // 1000)
