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
from tests.gateway.billing.generator import GeneratedUsage, generate_usage

NUM_EVENTS = 10_000_000
KEPT = Path(__file__).parents[3] / "build" / "long-usage"
NOTE = KEPT / "generated.json"


@contextmanager
def shared_ledger_server() -> Iterator[str]:
    """Run the server of the shared ledger until the context is left; give its DSN.

    A ledger that an earlier run filled only in part is deleted.
    """
    if not NOTE.exists():
        shutil.rmtree(KEPT, ignore_errors=True)  # half filled
    server = EmbeddedPostgres(KEPT / "postgres")
    try:
        yield server.start()
    finally:
        server.stop()


async def fill_shared_ledger(dsn: str) -> GeneratedUsage:
    """Fill the shared ledger, which takes over ten minutes, unless an earlier run has; return what it contains."""
    await migrate(dsn)
    if not NOTE.exists():
        conn = await asyncpg.connect(dsn)
        try:
            made = await generate_usage(conn, NUM_EVENTS)
            await conn.execute("CHECKPOINT")
        finally:
            await conn.close()
        NOTE.write_bytes(msgspec.json.encode(made))
    return msgspec.json.decode(NOTE.read_bytes(), type=GeneratedUsage)
