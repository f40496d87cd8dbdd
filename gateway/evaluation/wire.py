"""Feedback as clients send and read it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.domain.experiments.feedback.votes import Source

MAX_VOTES = 1_000
MAX_COMMENT_CHARS = 2_000
MAX_UNIT_CHARS = 512

Id = Annotated[str, Meta(min_length=1, max_length=128)]
ClientId = Annotated[str, Meta(min_length=1, max_length=64)]
Label = Annotated[str, Meta(max_length=64)]
Seconds = Annotated[float, Meta(ge=0, le=4_102_444_800)]
"""Unix time in seconds, before the year 2100."""


class Vote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A vote about a reply by `completion_id` or `request_id`, or about a unit by `unit`."""

    metric: Annotated[str, Meta(min_length=1, max_length=64)]
    """The name of one of the project's own metrics."""
    value: bool | int | float | Label
    """True or false, a number, or a label, by the type of the metric."""
    completion_id: Id | None = None
    """The `id` of a reply."""
    request_id: Id | None = None
    """The `x-request-id` of a reply."""
    unit: Annotated[str, Meta(min_length=1, max_length=MAX_UNIT_CHARS)] | None = None
    """The experiment's unit, such as an end user. Needs `occurred_at`."""
    occurred_at: Seconds | None = None
    """Unix time in seconds at which the vote was cast; without it, when it arrives."""
    id: ClientId | None = None
    """An id of your own, unique in the project: the same vote sent again under it changes nothing."""
    source: Source = "user"
    """The kind of source that the vote comes from. Votes of different sources are kept apart."""
    comment: Annotated[str, Meta(max_length=MAX_COMMENT_CHARS)] | None = None
    """The vote in words, which are stored redacted and encrypted."""


class CreateFeedback(Vote, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A vote, or up to 1,000 in `data`."""

    metric: Annotated[str, Meta(min_length=1, max_length=64)] | None = None  # type: ignore[assignment]
    value: bool | int | float | Label | None = None  # type: ignore[assignment]
    data: Annotated[list[Vote], Meta(min_length=1, max_length=MAX_VOTES)] | None = None
    """Many votes: all of them are kept, or none. No other field may stand beside it."""


class FeedbackAccepted(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="feedback"):
    """A vote that is on disk."""

    id: str
    replaced: bool
    """True if an earlier vote of the same source about the same thing, by the same metric, counts no more."""


class FeedbackAcceptedList(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """Votes that are on disk, in the order in which they were sent."""

    data: list[FeedbackAccepted]


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """A vote that counts."""

    id: str
    metric: str
    value: bool | float | str
    source: Source
    request_id: str | None
    """The request that the vote is about; null where it is about a unit."""
    unit_digest: str | None
    """The digest of the unit that the vote is about, in hexadecimal; null where it is about a request."""
    comment: str | None
    """The comment, redacted."""
    occurred_at: float
    received_at: float
    object: Literal["feedback"] = "feedback"


class FeedbackList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of feedback."""

    object: Literal["list"] = "list"
    data: list[Feedback]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FeedbackDeleted(msgspec.Struct, frozen=True):
    """The reply to a deletion of feedback."""

    id: str
    deleted: bool = True
    object: Literal["feedback.deleted"] = "feedback.deleted"
