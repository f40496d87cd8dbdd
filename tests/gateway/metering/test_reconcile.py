"""A difference between the engines' counts and the ledger is seen, whichever gateway wrote the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
from prometheus_client import CollectorRegistry

from engine.protocol import EngineStats
from gateway.backends.base import Health, Model
from gateway.backends.pool import ManagedBackend, Pool, PoolRevision, Replica
from gateway.db.ledger.journals import (
    add_engine_usage,
    engine_usage,
    forget_journals,
    forget_old_engines,
    report_journal,
    settle_journals,
)
from gateway.db.pool import Database
from gateway.metering.reconcile import Reconciler, Reconciliation
from gateway.observability.journal_metrics import JournalMetrics
from tests.gateway.admin_server import serve_admin
from tests.patience import PATIENCE_S

STATS = EngineStats(ended_prompt_tokens_total=30, ended_completion_tokens_total=70, unacked_usage=1)


class Transcript:
    """A backend of which only the heartbeats are known."""

    capabilities = None

    def __init__(self, stats: EngineStats | None) -> None:
        self.stats = stats

    def health(self) -> Health:
        return Health(ready=False, detail="", stats=self.stats, engine_id="engine")

    def watch(self, changed: Callable[[], None]) -> None:
        """Ignore the watcher, since this backend never changes."""


def pools(stats: EngineStats | None = STATS) -> dict[str, Pool]:
    """Return one pool whose only replica reports these statistics."""
    replica = Replica("replica_1", cast("ManagedBackend", Transcript(stats)))
    return {"tiny": Pool("tiny", PoolRevision("tiny", cast("Model", None), [replica]), created=0)}


async def reconciled(database: Database, stats: EngineStats | None = STATS) -> Reconciliation:
    return await Reconciler(database, pools(stats), JournalMetrics(CollectorRegistry())).reconcile()


async def test_the_difference_is_what_no_gateway_has_brought_to_the_ledger(database: Database) -> None:
    (balance,) = (await reconciled(database)).engines
    assert (balance.engine_id, balance.num_unacknowledged, balance.difference_tokens) == ("engine", 1, 100)
    async with database.acquire() as conn:
        await add_engine_usage(conn, "one", {"engine": (10, 20), "another": (5, 5)})
        await add_engine_usage(conn, "two", {"engine": (20, 10)})
        await add_engine_usage(conn, "two", {"engine": (0, 30)})
    (balance,) = (await reconciled(database)).engines
    assert (balance.ledger_prompt_tokens, balance.ledger_completion_tokens) == (30, 60)
    assert balance.difference_tokens == 10


async def test_both_are_metrics(database: Database) -> None:
    async with database.acquire() as conn:
        await report_journal(conn, "lost", 3)
        await conn.execute("UPDATE journals SET heard_at = heard_at - interval '2 minutes'")
    registry = CollectorRegistry()
    reconciler = Reconciler(database, pools(), JournalMetrics(registry))
    reconciler.export(await reconciler.reconcile())
    reconciler.start()
    difference = ("lorikeet_reconciliation_difference_tokens", {"model_name": "tiny", "engine": "replica_1"})
    async with asyncio.timeout(PATIENCE_S):
        while registry.get_sample_value(*difference) != 100:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    assert registry.get_sample_value("lorikeet_unbilled_requests") == 3
    await reconciler.stop()


async def test_an_engine_that_is_gone_leaves_no_difference(database: Database) -> None:
    registry, served = CollectorRegistry(), pools()
    reconciler = Reconciler(database, served, JournalMetrics(registry))
    reconciler.export(await reconciler.reconcile())
    difference = ("lorikeet_reconciliation_difference_tokens", {"model_name": "tiny", "engine": "replica_1"})
    assert registry.get_sample_value(*difference) == 0, "some of it may be on its way"
    reconciler.export(await reconciler.reconcile())
    assert registry.get_sample_value(*difference) == 100
    served["tiny"].serving.remove("replica_1")
    reconciler.export(await reconciler.reconcile())
    assert registry.get_sample_value(*difference) is None


async def test_an_engine_that_is_not_there_has_no_balance(database: Database) -> None:
    assert (await reconciled(database, None)).engines == []


async def test_a_silent_journal_is_lost_until_its_requests_have_rows_or_it_is_replayed(database: Database) -> None:
    async with database.acquire() as conn:
        for journal_id, num_open in (("settled", 2), ("replayed", 2), ("lost", 3), ("idle", 0), ("living", 5)):
            await report_journal(conn, journal_id, num_open)
        await conn.execute("UPDATE journals SET heard_at = heard_at - interval '2 minutes' WHERE id <> 'living'")
        await settle_journals(conn, {"settled": 2, "lost": 1, "idle": 1})
        await forget_journals(conn, ["replayed"])
    lost = (await reconciled(database)).lost_journals
    assert [msgspec.structs.astuple(journal)[:2] for journal in lost] == [("lost", 2)]


async def test_an_engine_that_is_connected_is_never_forgotten_however_idle(database: Database) -> None:
    async with database.acquire() as conn:
        await add_engine_usage(conn, "one", {"idle": (10, 20), "gone": (5, 5)})
        await conn.execute("UPDATE engine_usage SET updated_at = updated_at - interval '31 days'")
        for _ in range(2):
            await forget_old_engines(conn, ["idle"])
            assert await engine_usage(conn, ["idle", "gone"]) == {"idle": (10, 20)}
            await forget_old_engines(conn, [])  # by a gateway that is connected to no engine


async def test_a_lost_journal_is_written_off_on_record_and_a_living_one_is_not(
    database: Database, tmp_path: Path
) -> None:
    async with database.acquire() as conn:
        await report_journal(conn, "lost", 3, folder="gw-9:/journal")
        await report_journal(conn, "lost", 3)  # as the ledger's writer does
        await conn.execute("UPDATE journals SET heard_at = heard_at - interval '2 minutes'")
        await report_journal(conn, "living", 5)
    async with serve_admin(database, tmp_path) as server, server.client(server.operator_key) as operator:
        [lost] = (await operator.get("/reconciliation")).json()["lost_journals"]
        assert (lost["open_requests"], lost["folder"]) == (3, "gw-9:/journal")
        for journal_id, status in (("living", 404), ("unknown", 404), ("lost", 200), ("lost", 404)):
            path = f"/reconciliation/lost_journals/{journal_id}/write_off"
            assert (await operator.post(path, json={"reason": "its disk burned"})).status_code == status
        assert (await operator.get("/reconciliation")).json()["lost_journals"] == []
        (row,) = (await operator.get("/audit_logs")).json()["data"]
    assert row["type"] == "journal.written_off"
    assert "its disk burned" in str(row) and "lost" in str(row)


async def test_what_is_on_its_way_all_the_time_is_no_difference(database: Database) -> None:
    """Under a steady load some usage is always on its way; what stays away is found all the same."""
    registry, stats = CollectorRegistry(), Transcript(STATS)
    replica = Replica("replica_1", cast("ManagedBackend", stats))
    pool = Pool("tiny", PoolRevision("tiny", cast("Model", None), [replica]), created=0)
    reconciler = Reconciler(database, {"tiny": pool}, JournalMetrics(registry))
    difference = ("lorikeet_reconciliation_difference_tokens", {"model_name": "tiny", "engine": "replica_1"})

    async def shown(ended: int, written: int) -> float | None:
        stats.stats = EngineStats(ended_completion_tokens_total=ended)
        async with database.acquire() as conn:
            await add_engine_usage(conn, "one", {"engine": (0, written)})
        reconciler.export(await reconciler.reconcile())
        return registry.get_sample_value(*difference)

    assert [await shown(100 * step, 90 if step == 1 else 100) for step in range(1, 6)] == [0] * 5
    assert await shown(600, 93) == 0, "17 tokens are on their way"
    assert await shown(600, 10) == 7, "seven are late, or lost"
    assert await shown(600, 7) == 0
    assert await shown(600, 20) == 0 and await shown(600, 0) == -20, "20 are written twice"
