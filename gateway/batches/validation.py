"""Checks a batch's input file by a separate process (`validator`), and stores its lines as rows.

The event loop passes bytes on and parses none of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import msgspec
import structlog

from gateway.batches.service import BatchError
from gateway.db.batches import work as db
from gateway.db.batches.work import LeasedBatch, NewLine
from gateway.db.pool import Database
from gateway.domain.batches.line import MAX_FILE_BYTES
from gateway.support.process import end_module, start_module

log = structlog.get_logger(__name__)

MAX_LINE_BYTES = 4 << 20
"""The longest line that the process writes."""

SLICE_BYTES = 1 << 16
PAUSE_S = 0.004
"""Seconds of pause after each slice of a file, which spreads out the work in this process and the database."""


class CheckerLine(msgspec.Struct, frozen=True):
    """A line of the process's output."""

    lines: list[NewLine] = []
    errors: list[BatchError] = []
    total: int | None = None
    """The number of lines without a fault, in the last line of the output; None before that."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of a check: the number of lines, or the faults."""

    num_lines: int
    errors: list[BatchError]


_LINE = msgspec.json.Decoder(CheckerLine)


async def check_file(
    database: Database, batch: LeasedBatch, pieces: AsyncIterator[bytes], *, num_bytes: int, max_line_bytes: int
) -> Verdict | None:
    """Check the input file of a batch and store its lines; return None if another gateway has the batch by then.

    pieces: the content of the file. num_bytes: the size of the file. max_line_bytes: the most bytes of a line.

    Raises RuntimeError: when the process dies.
    """
    if num_bytes > MAX_FILE_BYTES:
        too_large = BatchError("file_too_large", f"The file has more than {MAX_FILE_BYTES} bytes.")
        return Verdict(0, [too_large])
    process = await start_module(
        "gateway.batches.validator", batch.endpoint, str(max_line_bytes), max_line_bytes=MAX_LINE_BYTES
    )
    _lower_priority(process.pid)
    feeding = asyncio.create_task(_write_pieces(process, pieces))
    try:
        verdict = await _store(database, batch, process)
        if verdict is not None and verdict.num_lines < 0:
            await feeding  # raises where the file could not be read
            raise RuntimeError("the process that checks input files died")
        return verdict
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        await end_module(process)


def _lower_priority(pid: int) -> None:
    """Let every other process go before this one, whose start alone would hold them up for a tenth of a second."""
    with contextlib.suppress(OSError):  # it has ended already, or a sandbox refuses it
        os.setpriority(os.PRIO_PROCESS, pid, 19)
    if hasattr(os, "SCHED_IDLE"):  # Linux: whoever wakes takes the processor at once, not after its slice
        with contextlib.suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


async def _write_pieces(process: asyncio.subprocess.Process, pieces: AsyncIterator[bytes]) -> None:
    assert process.stdin is not None
    try:
        async for piece in pieces:
            for start in range(0, len(piece), SLICE_BYTES):
                process.stdin.write(piece[start : start + SLICE_BYTES])
                await process.stdin.drain()
                if len(piece) > SLICE_BYTES:
                    await asyncio.sleep(PAUSE_S)
        process.stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        return  # it has read enough
    except BaseException:
        process.kill()
        raise


async def _store(database: Database, batch: LeasedBatch, process: asyncio.subprocess.Process) -> Verdict | None:
    assert process.stdout is not None
    async with database.transaction() as conn:
        if await db.lock_batch(conn, batch) != "validating":
            return None
        await db.drop_lines(conn, batch)  # of a check that was cut off
    errors: list[BatchError] = []
    while line := await process.stdout.readline():
        found = _LINE.decode(line)
        errors += found.errors
        if found.total is not None:
            return Verdict(found.total, errors)
        if found.lines:
            async with database.transaction() as conn:
                if await db.lock_batch(conn, batch) != "validating":
                    return None
                await db.add_lines(conn, batch, found.lines)
    return Verdict(-1, [])
