"""Ends a batch: writes the results of its lines to the output and the error file, and sets its last status.

The files and the status appear together, or not at all.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from gateway.batches.lines import LineReader
from gateway.batches.output import CANCELLED, EXPIRED, line_id, read_line, unrun_line
from gateway.batches.service import result_place
from gateway.batches.services import BatchServices
from gateway.db.batches import work as db
from gateway.db.batches.work import LeasedBatch, StoredResult
from gateway.domain.batches.line import request_id_of
from gateway.files.content import PartWriter
from gateway.support.cipher import Sealed

AT_ONCE = 200
DISOWNED_AT_ONCE = 500


async def end_batch(tools: BatchServices, batch: LeasedBatch, reader: LineReader, ending: str) -> bool:
    """Write the files of a batch and end it. Return False if another gateway has the batch by then.

    Raises one of `gateway.db.pool.FAILURES`: when the database fails.
    Raises GatewayError: when files can be neither read nor written.
    """
    output = await tools.output.begin(batch.project_id)
    errors = await tools.output.begin(batch.project_id)
    begun = []
    try:
        after = 0
        while True:
            async with tools.database.acquire() as conn:
                found = await db.results_after(conn, batch, after, AT_ONCE)
            if not found:
                break
            for result in found:
                if result.sealed_result is None:
                    if result.attempt and result.begun_at is not None:
                        begun.append((request_id_of(batch.id, result.number), result.begun_at))
                    await errors.write(await _never_ran(batch, reader, result, ending))
                else:
                    sealed = Sealed(result.content_key or "", result.sealed_result)
                    text = tools.cipher.open(sealed, result_place(batch.project_id, batch.id, result.number))
                    await (output if result.state == "completed" else errors).write(text)
            after = found[-1].number
        for part in (output, errors):
            await part.flush()
        if begun and not await _disown(tools, batch, begun):
            return False
        return await _end_batch(tools, batch, ending, output, errors)
    finally:
        for part in (output, errors):
            await part.give_up()  # does nothing to a part that a file has


async def _disown(tools: BatchServices, batch: LeasedBatch, begun: Sequence[tuple[str, datetime.datetime]]) -> bool:
    """Ensure that nobody is billed for lines that were begun and have no result. Return False if the batch is lost.

    The gateway that ran those lines may have died with their results, or be too slow to store them. While such a
    transaction lasts, no usage of anybody can be written, so each has DISOWNED_AT_ONCE lines at most.
    """
    for start in range(0, len(begun), DISOWNED_AT_ONCE):
        async with tools.database.transaction() as conn:
            if await db.lock_batch(conn, batch) is None:
                return False
            await db.disown_lines(conn, batch, begun[start : start + DISOWNED_AT_ONCE])
    return True


async def _never_ran(batch: LeasedBatch, reader: LineReader, result: StoredResult, ending: str) -> bytes:
    custom_id, _ = read_line(await reader.read(result.first_byte, result.num_bytes))
    return unrun_line(line_id(batch.id, result.number), custom_id, EXPIRED if ending == "expired" else CANCELLED)


async def _end_batch(
    tools: BatchServices, batch: LeasedBatch, ending: str, output: PartWriter, errors: PartWriter
) -> bool:
    async with tools.database.transaction() as conn:
        if await db.lock_batch(conn, batch) is None:
            return False
        for part, file_id, kind in ((output, batch.output_file_id, "output"), (errors, batch.error_file_id, "error")):
            if part.num_bytes:
                new = tools.files.new_file(
                    batch.project_id,
                    name=f"{batch.id}_{kind}.jsonl",
                    purpose="batch_output",
                    num_bytes=part.num_bytes,
                    keep_seconds=batch.keep_seconds,
                    file_id=file_id,
                )
                await tools.files.insert(conn, new, part)
        has_output, has_errors = bool(output.num_bytes), bool(errors.num_bytes)
        await db.end_batch(conn, batch, ending, has_output=has_output, has_errors=has_errors)
        await db.drop_lines(conn, batch)
        await db.announce_end(conn, batch)
    tools.metrics.ended(ending)
    return True
