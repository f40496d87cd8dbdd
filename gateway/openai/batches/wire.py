"""Batches as OpenAI's clients send and expect them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.batches.service import BatchError
from gateway.domain.batches.endpoints import BatchEndpoint
from gateway.domain.batches.line import BatchWait
from gateway.http.fields import Metadata
from gateway.openai.files.wire import ExpiresAfter


class CreateBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/batches."""

    input_file_id: Annotated[str, Meta(min_length=1, max_length=64)]
    """The file with a request on each line, of the purpose `batch`."""
    endpoint: BatchEndpoint
    """The endpoint of all requests."""
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None
    """The time after which the output and the error file expire; without it, 30 days."""


class BatchErrors(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons why a batch failed as a whole."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class BatchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of lines of a batch."""

    total: int
    completed: int
    failed: int


class BatchInputDetails(msgspec.Struct, frozen=True):
    """The part of a batch's prompt tokens that engines found in their caches."""

    cached_tokens: int


class BatchOutputDetails(msgspec.Struct, frozen=True):
    """The part of a batch's completion tokens that were thinking."""

    reasoning_tokens: int


class BatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of all lines that have a result."""

    input_tokens: int
    input_tokens_details: BatchInputDetails
    output_tokens: int
    output_tokens_details: BatchOutputDetails
    total_tokens: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    """The faults of the input file, for which the batch failed."""
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: BatchUsage
    metadata: dict[str, str]
    waits_for: BatchWait | UnsetType = UNSET
    """The reason why no line could run lately, such as a limit that is reached; absent once a line has a result.

    OpenAI's batches have no such field.
    """


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of batches."""

    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
