"""The values that votes may have for a metric, and the digests by which a project's tables know votes. Pure, no I/O."""

from __future__ import annotations

import base64
import datetime
import math
from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal, NoReturn

import msgspec

from gateway.domain.errors import InvalidRequest
from gateway.domain.experiments.definition import Goal
from gateway.domain.experiments.effects import Kind

MILLION = 1_000_000
"""The factor by which numbers are stored as integers, in millionths, so that sums are exact."""

MAX_NUMBER = 1_000_000_000.0
"""The largest absolute number of a vote, whatever the bounds of its metric."""

Source = Literal["user", "judge", "code", "human"]
ValueType = Literal["boolean", "number", "label"]


class FeedbackMetric(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of the project's own."""

    name: str
    type: ValueType
    goal: Goal
    kind: Kind
    least: int | None = None
    """The least value of a number, in millionths."""
    most: int | None = None
    """The largest value of a number, in millionths."""
    labels: Mapping[str, int] | None = None
    """The value of each label, in millionths."""


class Value(msgspec.Struct, frozen=True):
    """The value of a vote in the form in which tables store it."""

    value: int
    """0 or 1 for a boolean; millionths for a number or a label."""
    label: str | None = None


class Subject(msgspec.Struct, frozen=True):
    """The one thing that a vote is about: a request or a unit."""

    request_id: str | None = None
    digest: bytes | None = None
    """The digest of the unit (`assignment.unit_digest`)."""


def checked_value(metric: FeedbackMetric, value: bool | int | float | str, param: str) -> Value:
    """Return the value of a vote in the terms of its metric. param: the path of the field, for messages.

    Raises InvalidRequest: for a value of another type or outside of the bounds, or for a label that the metric does not
    have.
    """
    if metric.type == "boolean":
        if not isinstance(value, bool):
            _refuse(param, f"the metric '{metric.name}' takes true or false")
        return Value(int(value))
    if metric.type == "label":
        labels = metric.labels or {}
        if not isinstance(value, str) or value not in labels:
            _refuse(param, f"the metric '{metric.name}' takes one of {', '.join(map(repr, sorted(labels)))}")
        return Value(labels[value], value)
    if isinstance(value, bool | str) or not math.isfinite(value) or abs(value) > MAX_NUMBER:
        _refuse(param, f"the metric '{metric.name}' takes a number")
    millionths = round(value * MILLION)
    if metric.least is not None and millionths < metric.least:
        _refuse(param, f"the metric '{metric.name}' takes {metric.least / MILLION:g} at least")
    if metric.most is not None and millionths > metric.most:
        _refuse(param, f"the metric '{metric.name}' takes {metric.most / MILLION:g} at most")
    return Value(millionths)


def feedback_id(project_key: bytes, subject: Subject, metric: str, source: Source) -> str:
    """Return the id of a source's vote about a subject by a metric.

    A vote that replaces an earlier one has the same id.

    project_key: the secret of the project, without which nobody can tell the subject from the id.
    """
    digest = _digest(project_key, b"lorikeet fb id", (subject.request_id, subject.digest, metric, source), 15)
    return f"fb_{base64.b32encode(digest).decode().lower()}"


def fingerprint(
    project_key: bytes, feedback: str, value: Value, comment: str | None, occurred_at: datetime.datetime | None
) -> bytes:
    """Return 16 bytes that are equal for two votes only if both say the same.

    feedback: the vote's id by `feedback_id`.
    occurred_at: the time by the client; None where it gave none.
    comment: the text of the vote; None without one.
    """
    at = None if occurred_at is None else occurred_at.timestamp()
    return _digest(project_key, b"lorikeet fb body", (feedback, value.value, value.label, comment, at), 16)


def _digest(key: bytes, person: bytes, parts: tuple[object, ...], size: int) -> bytes:
    return blake2b(msgspec.msgpack.encode(parts), key=key, person=person, digest_size=size).digest()


def _refuse(param: str, why: str) -> NoReturn:
    raise InvalidRequest(f"Invalid value for '{param}': {why}.", param=param, code="invalid_value")
