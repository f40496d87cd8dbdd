"""A database of the schema before numbering began anew is exported like any other once it is upgraded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from gateway.cli import main
from gateway.db.migrate import migrate
from gateway.db.pool import Database
from tests.gateway.db.old import build_old_schema
from tests.gateway.exports.ledger import Books
from tests.gateway.exports.reading import export, json_rows

_OLD_USAGE = """
    INSERT INTO organizations (id, name) VALUES ('org_1', 'default');
    INSERT INTO projects (id, organization_id, name) VALUES ('proj_1', 'org_1', 'acme');
    INSERT INTO usage_events (
        request_id, attempt, organization_id, project_id, api_key_id, endpoint, model, adapter_id, adapter_version,
        adapter_digest, stream, prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
        queue_ms, prefill_ms, decode_ms, ttft_ms, latency_ms, adapter_load_bytes, created_at, finished_at)
    SELECT 'req_' || n, 0, 'org_1', 'proj_1', 'key_1', '/v1/completions', 'base', NULL, NULL, NULL, true, n, 0, 2 * n,
           0, 'stop', 1, 1, 1, NULL, 5, 0, '2025-03-01T00:00:00Z'::timestamptz + n * interval '7 hours', now()
    FROM generate_series(1, 100) n
"""


@pytest.fixture
async def upgraded_dsn(empty_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    conn = await asyncpg.connect(empty_dsn)
    await build_old_schema(conn)
    await conn.execute(_OLD_USAGE)
    await conn.close()
    environ = {"DATABASE_URL": empty_dsn, "LORIKEET_DATA_DIR": str(tmp_path / "data")}
    assert await asyncio.to_thread(main, ["backup", str(tmp_path / "too early")], environ) == 1
    assert "run `lorikeet migrate`" in capsys.readouterr().err
    await migrate(empty_dsn)
    return empty_dsn


async def test_usage_of_the_old_schema_is_exported_to_the_token(upgraded_dsn: str) -> None:
    async with await Database.connect(upgraded_dsn) as database:
        books = Books(database, "org_1", "proj_1", "")
        content, manifest = await export(books, "usage", "jsonl", "2025-03")
        costs, _ = await export(books, "costs", "focus", "2025-03")
    rows = json_rows(content)
    assert len(rows) == 100 and {row["revision"] for row in rows} == {0}
    assert (manifest.totals.input_tokens, manifest.totals.output_tokens) == (5050, 10100)
    assert (manifest.totals.cost_nanos, manifest.state) == (0, "open")
    assert b"acme" in costs
