"""Batches as their projects see them: made, shown, listed and cancelled, by their own project alone."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import msgspec

from gateway.db.batches import batches as db
from gateway.db.batches.batches import BatchRow, NewBatch
from gateway.db.files import files as files_db
from gateway.db.ids import new_id
from gateway.db.organization import audit
from gateway.db.pool import Database
from gateway.domain.batches.line import BatchWait
from gateway.domain.errors import Conflict, InvalidRequest, QuotaExceeded
from gateway.files.service import BATCH_SECONDS
from gateway.support.cipher import Cipher, Place, Sealed

WINDOW_SECONDS = 86_400
MAX_OPEN = 200
"""The most batches of a project that have not ended."""


class BatchError(msgspec.Struct, frozen=True):
    """A fault of an input file, at a line or of the whole file."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as it is shown."""

    row: BatchRow
    metadata: dict[str, str]
    errors: list[BatchError]
    failures: dict[str, int]
    """The numbers of failed lines, by the code of their error."""

    @property
    def waits_for(self) -> BatchWait | None:
        """Return the reason why no line can run now; None while lines run, and before and after."""
        row = self.row
        if row.status != "in_progress" or row.waits_code is None:
            return None
        return BatchWait(row.waits_code, row.waits_message or "")


class BatchPage(msgspec.Struct, frozen=True):
    """Some batches, and whether there are more."""

    batches: list[Batch]
    has_more: bool


class Batches:
    """The batches of projects. A gateway process has one.

    Methods raise the database's errors, and ContentUnreadable; None stands for a batch that does not exist.
    """

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database = database
        self._cipher = cipher

    async def create(
        self,
        project_id: str,
        author: audit.Author,
        *,
        api_key_id: str,
        endpoint: str,
        input_file_id: str,
        metadata: Mapping[str, str],
        keep_seconds: int | None,
    ) -> Batch:
        """Make a batch of an input file.

        api_key_id: the key of the project as which the batch's lines run. keep_seconds: seconds after which the output
        expires; None: the output expires after 30 days.

        Raises InvalidRequest: when there is no such file, or the file is not meant for a batch.
        Raises QuotaExceeded: when too many batches have not ended.
        """
        batch_id = new_id("batch")
        sealed = self._cipher.seal(msgspec.json.encode(dict(metadata)), place_of(project_id, batch_id, "metadata"))
        new = NewBatch(
            project_id=project_id,
            id=batch_id,
            api_key_id=api_key_id,
            endpoint=endpoint,
            input_file_id=input_file_id,
            output_file_id=new_id("file"),
            error_file_id=new_id("file"),
            keep_seconds=BATCH_SECONDS if keep_seconds is None else keep_seconds,
            window_seconds=WINDOW_SECONDS,
            content_key=sealed.key_id,
            sealed_metadata=sealed.data,
        )
        async with self._database.transaction() as conn:
            file = await files_db.get_file(conn, project_id, input_file_id)
            if file is None or file.purpose != "batch":
                why = "has no such file" if file is None else "has this file for another purpose than 'batch'"
                raise InvalidRequest(f"The project {why}.", param="input_file_id", code="invalid_value")
            if not await db.insert_batch(conn, new, max_open=MAX_OPEN):
                raise QuotaExceeded(
                    f"This project has {MAX_OPEN} batches that have not ended. Wait for some to end, or cancel them.",
                    code="too_many_batches",
                )
            after = {"id": batch_id, "endpoint": endpoint, "input_file_id": input_file_id}
            await audit.record(conn, author, "batch.created", batch_id, project_id=project_id, after=after)
            row = await db.get_batch(conn, project_id, batch_id)
        assert row is not None, "the transaction made it"
        return self._batch_of_row(project_id, row)

    async def get(self, project_id: str, batch_id: str) -> Batch | None:
        """Return a batch."""
        async with self._database.acquire() as conn:
            row = await db.get_batch(conn, project_id, batch_id)
        return None if row is None else self._batch_of_row(project_id, row)

    async def page(self, project_id: str, *, after: str | None, limit: int) -> BatchPage | None:
        """Return a page of batches, the newest first; None where there is no batch `after`."""
        async with self._database.acquire() as conn:
            if after is not None and await db.get_batch(conn, project_id, after) is None:
                return None
            rows = await db.list_batches(conn, project_id, after=after, limit=limit + 1)
        return BatchPage([self._batch_of_row(project_id, row) for row in rows[:limit]], len(rows) > limit)

    async def cancel(self, project_id: str, batch_id: str, author: audit.Author) -> Batch | None:
        """Cancel a batch: it ends as soon as possible, and results so far stay. A cancelled batch stays so.

        Raises Conflict: when it has ended otherwise, or is about to.
        """
        async with self._database.transaction() as conn:
            cancelled = await db.cancel_batch(conn, project_id, batch_id)
            row = await db.get_batch(conn, project_id, batch_id)
            if row is None:
                return None
            if cancelled:
                await audit.record(
                    conn, author, "batch.cancelled", batch_id, project_id=project_id, before={"id": batch_id}
                )
        if row.status not in ("cancelling", "cancelled"):
            raise Conflict(f"Cannot cancel a batch with status '{row.status}'.", param="batch_id")
        return self._batch_of_row(project_id, row)

    def _batch_of_row(self, project_id: str, row: BatchRow) -> Batch:
        def opened(data: bytes, part: str) -> bytes:
            return self._cipher.open(Sealed(row.content_key, data), place_of(project_id, row.id, part))

        metadata = msgspec.json.decode(opened(row.sealed_metadata, "metadata"), type=dict[str, str])
        errors: list[BatchError] = []
        if row.sealed_errors is not None:
            errors = msgspec.json.decode(opened(row.sealed_errors, "errors"), type=list[BatchError])
        failures = msgspec.json.decode(row.failures, type=dict[str, int])
        return Batch(row=row, metadata=metadata, errors=errors, failures=failures)


def place_of(project_id: str, batch_id: str, part: str) -> Place:
    """Return the place to which a sealed column of a batch is bound."""
    return Place(project_id, f"batches.{part}", batch_id)


def result_place(project_id: str, batch_id: str, number: int) -> Place:
    """Return the place to which the sealed result of a line is bound."""
    return Place(project_id, "batch_lines.result", f"{batch_id}/{number}")


def ended_time(row: BatchRow, status: str) -> datetime.datetime | None:
    """Return when a batch ended with this status; None if it did not."""
    return row.ended_at if row.status == status else None
