"""The row of an attempt in the ledger, made from the usage that a backend reported.

Knows neither prices nor how usage and rows are stored. A field of the meter tag or of a backend's usage that has the
name of a field of `UsageEvent` becomes that field.
"""

from __future__ import annotations

import datetime
from operator import attrgetter

import msgspec

from engine.protocol import Usage, UsageRecord
from gateway.db.ledger.usage import REFUSED, SUPERSEDED, UsageEvent
from gateway.metering.format import Ended
from gateway.metering.tag import MeterTag

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


def usage_event(ended: Ended, tag: MeterTag) -> UsageEvent:
    """Return the ledger's event of an attempt's end. tag: the tag in the meter of its record."""
    values = (
        *_of_tag(tag),
        *_of_ended(ended),
        *_of_record(ended.record),
        *_of_usage(ended.record.usage),
        _time(tag.created_at_ns),
        _time(ended.finished_at_ns),
    )
    event = UsageEvent(**dict(zip(_NAMES, values, strict=True)))
    if ended.superseded:
        return _unbilled(event)
    return msgspec.structs.replace(event, finish_reason=REFUSED) if ended.refused else event


def _unbilled(event: UsageEvent) -> UsageEvent:
    """Return the event of an attempt that the operator pays for: all its tokens count as discarded."""
    return msgspec.structs.replace(
        event,
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        discarded_tokens=event.completion_tokens + event.discarded_tokens,
        finish_reason=SUPERSEDED,
        ttft_ms=None,
        latency_ms=None,
    )


def _shared(source: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of the fields that a struct has in common with `UsageEvent`."""
    return tuple(name for name in source.__struct_fields__ if name in UsageEvent.__struct_fields__)


_OF_TAG, _OF_ENDED = _shared(MeterTag), _shared(Ended)
_OF_RECORD, _OF_USAGE = _shared(UsageRecord), _shared(Usage)
_of_tag, _of_ended = attrgetter(*_OF_TAG), attrgetter(*_OF_ENDED)
_of_record, _of_usage = attrgetter(*_OF_RECORD), attrgetter(*_OF_USAGE)
_NAMES = (*_OF_TAG, *_OF_ENDED, *_OF_RECORD, *_OF_USAGE, "created_at", "finished_at")


def _time(unix_ns: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(microseconds=unix_ns // 1000)
