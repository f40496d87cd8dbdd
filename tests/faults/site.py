"""A whole site of processes over a database of its own, with prices and a month that was closed before it starts."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from gateway.db.migrate import migrate
from gateway.settings import Settings
from tests.faults.history import close_a_month
from tests.faults.processes import Engine, Gateway, Postgres
from tests.faults.received import Received
from tests.gateway.limits.fleet import Key, make_key, put_limit
from tests.gateway.live import BASE, make_operator_key
from tests.gateway.model_folder import make_model_folder
from tests.patience import PATIENCE_S

TOKENS_PER_S = 100
ENDLESS = 30_000
"""A number of tokens that no engine produces while a test runs: five minutes' worth."""
LIMIT = 10**9


class Site:
    """PostgreSQL, the fake engine and gateways as processes. The tenant `key` has limits, none of which is ever
    reached.

    folder: a folder that every user can pass through.
    seen: what each client saw.
    lost: ids of requests that nobody can bill, since a journal was lost.
    torn: ids of requests whose last record a dying machine lost in part.
    history: the closed month of another tenant.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_gateways: int = 1,
        journal_bytes: int = 64 << 20,
        tokens_per_s: int = TOKENS_PER_S,
    ) -> None:
        model_dir = make_model_folder(folder / "model", context=2 * ENDLESS)
        self.settings = Settings(
            data_dir=folder / "data",
            model=str(model_dir),
            model_name=BASE,
            journal_bytes=journal_bytes,
            drain_seconds=10,
        )
        self.settings.run_dir.mkdir(parents=True)
        self.postgres = Postgres(folder / "postgres")
        asyncio.run(migrate(self.postgres.dsn))
        self.key: Key = asyncio.run(make_key(self.postgres.dsn, "tenant"))
        asyncio.run(put_limit(self.postgres.dsn, self.key.limit("tokens", "month", LIMIT)))
        asyncio.run(put_limit(self.postgres.dsn, self.key.limit("requests", "day", LIMIT)))
        asyncio.run(put_limit(self.postgres.dsn, self.key.limit("cost_nanos", "month", LIMIT)))
        self._operator_key = asyncio.run(make_operator_key(self.postgres.dsn))
        self.history = asyncio.run(close_a_month(self.postgres.dsn))
        self.seen: list[Received] = []
        self.lost: set[str] = set()
        self.torn: set[str] = set()
        self._produced = folder / "produced"
        flags = f"--tokens-per-s {tokens_per_s} --max-num-seqs 256 --produced {self._produced}".split()
        self.engine = Engine(self.settings.engine.endpoint, model_dir, *flags, log=folder / "engine.log")
        self.gateways = [Gateway(self.settings, self.postgres.dsn, number) for number in range(num_gateways)]

    def start(self) -> None:
        self.engine.start()
        for gateway in self.gateways:
            gateway.start()
        for gateway in self.gateways:
            gateway.wait_ready()

    def settle(self) -> None:
        """Stop all processes gracefully, so that all usage is in the ledger and no lease is left."""
        assert [gateway.terminate() for gateway in self.gateways] == [0] * len(self.gateways)
        self.engine.kill()
        asyncio.run(_forget_the_dead(self.postgres.dsn))
        journals = [path for path in self.settings.journal_dir.rglob("*") if path.suffix in (".journal", ".damaged")]
        assert journals == [], "with the database there, a gateway that stops leaves nothing behind"

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.close()
        self.engine.kill()
        self.postgres.stop()

    def produced(self) -> Counter[str]:
        """Return the tokens that engines produced, by request id, however these engines ended."""
        return Counter(self._produced.read_text().splitlines())

    def reconciliation(self) -> dict[str, Any]:
        """Return the reconciliation report of the first gateway."""
        url = f"http://127.0.0.1:{self.gateways[0].port}/v1/organization/reconciliation"
        reply = httpx.get(url, headers={"authorization": f"Bearer {self._operator_key}"}, timeout=PATIENCE_S)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def lose_journals(self) -> None:
        shutil.rmtree(self.settings.journal_dir)


async def _forget_the_dead(dsn: str) -> None:
    """Delete all gateways from the table of limiters, as a gateway's heartbeat does with long silent ones."""
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute("DELETE FROM limit_gateways")
    finally:
        await conn.close()
