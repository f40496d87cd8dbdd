"""Records as gateways make them, for tests of journals and of the ledger."""

from __future__ import annotations

import msgspec

from engine.protocol import FinishReason, Usage, UsageRecord
from gateway.backends.usage import Count
from gateway.metering.format import Begun, Ended, Opened
from gateway.metering.tag import MeterTag, encode_tag

BEGUN = Begun(1, "database", "journal")
TAG = MeterTag("org", "proj", "key", "/v1/completions", "tiny:a", "adpt", 2, "d" * 64, 1_700_000_000_000_000_000, True)


def record(request_id: str = "req_1", finish_reason: FinishReason = "stop", **usage: int) -> UsageRecord:
    return UsageRecord(
        request_id, 0, finish_reason, Usage(**{"prompt_tokens": 3, "completion_tokens": 4, **usage}), encode_tag(TAG)
    )


def opened_record(request_id: str = "req_1", **changes: object) -> Opened:
    return msgspec.structs.replace(Opened(request_id, 0, encode_tag(TAG), "engine", 3, 10), **changes)


def count(request_id: str = "req_1", completion_tokens: int = 2) -> Count:
    return Count(request_id, 0, 3, completion_tokens)


def ended_record(
    request_id: str = "req_1", finish_reason: FinishReason = "stop", engine_id: str = "engine", **usage: int
) -> Ended:
    return Ended(record(request_id, finish_reason, **usage), engine_id, 1.5, 2.5, 1_700_000_001_000_000_000)
