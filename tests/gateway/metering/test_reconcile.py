"""A difference between the engines' counts and the ledger is seen, whichever gateway wrote the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest
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
from gateway.metering.reconcile import NUM_COMPARISONS, Reconciler, Reconciliation
from gateway.observability.journal_metrics import JournalMetrics
from tests.gateway.admin_server import serve_admin
from tests.patience import PATIENCE_S

STATS = EngineStats(ended_prompt_tokens_total=30, ended_completion_tokens_total=70, unacked_usage=1)


class Transcript:
    """A fake backend with given heartbeats and nothing else."""

    capabilities = None

    def __init__(self, stats: EngineStats | None) -> None:
        self.stats = stats

    def health(self) -> Health:
        return Health(ready=False, detail="", stats=self.stats, engine_id="engine")

    def watch(self, changed: Callable[[], None], has_other: Callable[[], bool]) -> None:
        """Ignore the watcher, since this backend never changes."""


def pools(stats: EngineStats | None = STATS) -> dict[str, Pool]:
    """Return one pool whose only replica reports these statistics.

    stats: None: the replica has reported none.
    """
    replica = Replica("replica_1", cast("ManagedBackend", Transcript(stats)))
    return {"tiny": Pool("tiny", PoolRevision("tiny", cast("Model", None), [replica]), created=0)}


async def run_reconciliation(database: Database, stats: EngineStats | None = STATS) -> Reconciliation:
    return await Reconciler(database, pools(stats), JournalMetrics(CollectorRegistry())).reconcile()


async def test_the_difference_is_what_no_gateway_has_brought_to_the_ledger(database: Database) -> None:
    (balance,) = (await run_reconciliation(database)).engines
    assert (balance.engine_id, balance.num_unacknowledged, balance.difference_tokens) == ("engine", 1, 100)
    async with database.acquire() as conn:
        await add_engine_usage(conn, "one", {"engine": (10, 20), "another": (5, 5)})
        await add_engine_usage(conn, "two", {"engine": (20, 10)})
        await add_engine_usage(conn, "two", {"engine": (0, 30)})
    (balance,) = (await run_reconciliation(database)).engines
    assert (balance.ledger_prompt_tokens, balance.ledger_completion_tokens) == (30, 60)
    assert balance.difference_tokens == 10


async def test_the_difference_and_lost_requests_are_metrics(database: Database) -> None:
    async with database.acquire() as conn:
        await report_journal(conn, "lost", 3)
        await conn.execute("UPDATE journals SET heard_at = heard_at - interval '2 minutes'")
    registry = CollectorRegistry()
    reconciler = Reconciler(database, pools(), JournalMetrics(registry), settle_s=0.01)
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
    before = await reconciler.reconcile()
    reconciler.export(before, await reconciler.reconcile())
    difference = ("lorikeet_reconciliation_difference_tokens", {"model_name": "tiny", "engine": "replica_1"})
    assert registry.get_sample_value(*difference) == 100
    served["tiny"].serving.remove("replica_1")
    reconciler.export(before, await reconciler.reconcile())
    assert registry.get_sample_value(*difference) is None


async def test_an_engine_that_is_not_there_has_no_balance(database: Database) -> None:
    assert (await run_reconciliation(database, None)).engines == []


async def test_a_silent_journal_is_lost_until_its_requests_have_rows_or_it_is_replayed(database: Database) -> None:
    async with database.acquire() as conn:
        for journal_id, num_open in (("settled", 2), ("replayed", 2), ("lost", 3), ("idle", 0), ("living", 5)):
            await report_journal(conn, journal_id, num_open)
        await conn.execute("UPDATE journals SET heard_at = heard_at - interval '2 minutes' WHERE id <> 'living'")
        await settle_journals(conn, {"settled": 2, "lost": 1, "idle": 1})
        await forget_journals(conn, ["replayed"])
    lost = (await run_reconciliation(database)).lost_journals
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


class Traffic:
    """An engine and its ledger, whose comparisons are exported one after another."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._registry = CollectorRegistry()
        self._backend = Transcript(EngineStats())
        replica = Replica("replica_1", cast("ManagedBackend", self._backend))
        pool = Pool("tiny", PoolRevision("tiny", cast("Model", None), [replica]), created=0)
        self._reconciler = Reconciler(database, {"tiny": pool}, JournalMetrics(self._registry))
        self._ended = 0

    async def move(self, ended: int, written: int) -> Reconciliation:
        """Add tokens to the engine's and to the ledger's counts, and compare both."""
        self._ended += ended
        self._backend.stats = EngineStats(ended_completion_tokens_total=self._ended)
        async with self._database.acquire() as conn:
            await add_engine_usage(conn, "one", {"engine": (0, written)})
        return await self._reconciler.reconcile()

    async def shown(self, *moves: tuple[int, int]) -> float | None:
        """Return the metric after a comparison.

        moves: the tokens that the engine ends and that the ledger takes before the first balance of the comparison,
        and between the two.
        """
        (first, second) = moves
        self._reconciler.export(await self.move(*first), await self.move(*second))
        labels = {"model_name": "tiny", "engine": "replica_1"}
        return self._registry.get_sample_value("lorikeet_reconciliation_difference_tokens", labels)


@pytest.mark.parametrize("on_its_way", [100, -100], ids=["the ledger follows", "the heartbeat follows"])
async def test_usage_on_its_way_to_the_ledger_is_no_difference(database: Database, on_its_way: int) -> None:
    traffic = Traffic(database)
    await traffic.move(500, 500 - on_its_way)
    for _ in range(2 * NUM_COMPARISONS):
        assert await traffic.shown((700, 700), (300, 300)) == 0


async def test_a_loss_shows_while_requests_end_all_the_time(database: Database) -> None:
    """The loss is less than what ends from one comparison to the next, and stays when traffic goes on."""
    traffic = Traffic(database)
    await traffic.move(100, 0)
    assert await traffic.shown((700, 700), (300, 300)) == 0
    assert await traffic.shown((1600, 700), (300, 300)) == 700, "at least: 900 are lost, 300 ended just now"
    assert await traffic.shown((600, 700), (0, 0)) == 900, "in quiet seconds it is seen to the token"
    for _ in range(NUM_COMPARISONS - 1):
        assert await traffic.shown((700, 700), (300, 300)) == 900
    for _ in range(NUM_COMPARISONS):
        assert await traffic.shown((700, 700), (300, 300)) == 600


async def test_late_usage_that_arrives_is_no_difference(database: Database) -> None:
    traffic = Traffic(database)
    assert await traffic.shown((100, 0), (0, 93)) == 7, "late, or lost"
    assert await traffic.shown((0, 7), (0, 0)) == 0
    assert await traffic.shown((5000, 0), (1000, 1000)) == 4000
    assert await traffic.shown((0, 5000), (0, 0)) == 0


async def test_usage_written_twice_is_a_difference_even_under_load(database: Database) -> None:
    traffic = Traffic(database)
    assert await traffic.shown((700, 1600), (300, 300)) == -600, "at least: 900 are too many"
    assert await traffic.shown((700, 700), (0, 0)) == -900
