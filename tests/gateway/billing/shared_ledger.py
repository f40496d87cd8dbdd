"""A ledger of ten million events that tests at full size share: filled once, and reused by the next run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import msgspec

from gateway.db.migrate import migrate
from gateway.postgres.embedded import EmbeddedPostgres
from tests.gateway.billing.generator import Generated, generate

NUM_EVENTS = 10_000_000
KEPT = Path(__file__).parents[3] / "build" / "long-usage"
NOTE = KEPT / "generated.json"


@contextmanager
def kept_server() -> Iterator[str]:
    """Give the DSN of the server, which runs until the context is left."""
    if not NOTE.exists():
        shutil.rmtree(KEPT, ignore_errors=True)  # half filled
    server = EmbeddedPostgres(KEPT / "postgres")
    try:
        yield server.start()
    finally:
        server.stop()


async def fill_kept(dsn: str) -> Generated:
    """Fill the kept database in over ten minutes, unless an earlier run has, and return its content."""
    await migrate(dsn)
    if not NOTE.exists():
        conn = await asyncpg.connect(dsn)
        try:
            made = await generate(conn, NUM_EVENTS)
            await conn.execute("CHECKPOINT")
        finally:
            await conn.close()
        NOTE.write_bytes(msgspec.json.encode(made))
    return msgspec.json.decode(NOTE.read_bytes(), type=Generated)
