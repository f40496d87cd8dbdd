"""An export's memory does not grow with the ledger: rows pass through, and at most a row group of Parquet waits."""

from __future__ import annotations

import time as clock
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.db.pool import Database
from gateway.exports.place import Folder, put_export
from gateway.exports.produce import open_export
from gateway.exports.request import Format, make_request
from tests.gateway.exports.ledger import MONTH, Books, make_books

FORMATS: tuple[Format, ...] = ("csv", "parquet")
MAX_PEAK_BYTES = 128 << 20
"""The most memory in bytes: mostly the Parquet library, and a row group of 32,768 rows with 38 columns."""

# A thousand times as fast as writing usage, for numbers that only have to be many: rows of one day, copied to others.
_MULTIPLY = """
    INSERT INTO ledger SELECT request_id || '_' || copy, attempt, revision, kind, organization_id, project_id,
        api_key_id, endpoint, model, adapter_id, adapter_version, adapter_digest, adapter_class, service_tier, stream,
        prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason, queue_ms, prefill_ms,
        decode_ms, ttft_ms, latency_ms, adapter_load_bytes, created_at, finished_at, period, corrects_period,
        corrects_request_id, reason, price_version, input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos,
        list_cost_nanos
    FROM ledger CROSS JOIN generate_series($1::integer, $2::integer) copy
    WHERE period = '2025-10-01' AND kind = 'usage' AND position('_late_' IN request_id) = 0
        AND position('_' IN substr(request_id, 13)) = 0
"""


@pytest.fixture
async def large(database: Database, full: bool) -> AsyncIterator[Books]:
    """Give a database of 45,000 rows, so that a Parquet row group is full; of ten million rows with --full."""
    books = await make_books(database, num_rows=3000)
    num_copies, step = (3333, 30) if full else (14, 14)
    for first in range(1, num_copies + 1, step):
        async with database.transaction() as conn:
            await conn.execute("SET LOCAL session_replication_role = replica")  # without triggers: no limits, no sums
            await conn.execute(_MULTIPLY, first, min(first + step - 1, num_copies), timeout=600)
    yield books


def resident_bytes(name: str) -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) << 10


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def test_memory_is_bounded_whatever_the_number_of_rows(large: Books, tmp_path: Path, full: bool) -> None:
    for format in FORMATS:
        request = make_request(large.organization_id, "usage", format, MONTH)
        started, before = clock.monotonic(), resident_bytes("VmRSS")
        forget_peak()
        async with open_export(large.database, request) as export:
            manifest = await put_export(export, Folder(tmp_path))
        peak = resident_bytes("VmHWM") - before
        assert manifest.num_rows >= (10_000_000 if full else 45_000)
        print(f"{format}: {manifest.num_rows:,} rows, {manifest.files[0].num_bytes:,} bytes,", end=" ")
        print(f"peak {peak >> 10:,} KiB, {clock.monotonic() - started:.0f} s")
        assert peak < MAX_PEAK_BYTES, format
