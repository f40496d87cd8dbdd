"""Compares the counts that engines report with those that the ledger has, and names usage that nobody can bill.

Knows neither journals nor the way of usage: it is there to find out when that went wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import structlog

from gateway.backends.pool import Pool
from gateway.db.ledger.journals import LostJournal, engine_usage, forget_old_engines, lost_journals
from gateway.db.pool import FAILURES, Database
from gateway.observability.journal_metrics import JournalMetrics
from gateway.support.worker import Background

log = structlog.get_logger(__name__)

EVERY_S = 10.0
TIMEOUT_S = 5.0


class EngineBalance(msgspec.Struct, frozen=True):
    """The tokens of one engine since it started, and the tokens of the ledger."""

    model: str
    replica_id: str
    """The replica of the pool whose process the engine is."""
    engine_id: str
    ended_prompt_tokens: int
    """Prompt tokens of requests that have ended, as of the engine's last heartbeat."""
    ended_completion_tokens: int
    """Completion tokens of requests that have ended, as of the engine's last heartbeat, discarded tokens included."""
    ledger_prompt_tokens: int
    """Prompt tokens of the engine that the ledger has."""
    ledger_completion_tokens: int
    """Completion tokens of the engine that the ledger has."""
    num_unacknowledged: int
    """Final counts of requests that no gateway has on disk yet."""
    num_dropped: int
    """Final counts of requests for which the engine had no room. Nobody is billed for them."""
    difference_tokens: int
    """0 once the ledger has all ended requests; more while some are on their way, or were lost."""

    @property
    def ended_tokens(self) -> int:
        """Prompt and completion tokens of ended requests, as the engine counts."""
        return self.ended_prompt_tokens + self.ended_completion_tokens

    @property
    def ledger_tokens(self) -> int:
        """Prompt and completion tokens of these requests in the ledger."""
        return self.ledger_prompt_tokens + self.ledger_completion_tokens


class Reconciliation(msgspec.Struct, frozen=True):
    """The comparison of engines with the ledger."""

    engines: list[EngineBalance]
    lost_journals: list[LostJournal]
    """Journals of gateways that are gone, with requests that have no row; a journal that turns up is replayed."""


class Reconciler(Background):
    """Compares at any time with `reconcile`; the metric follows between `start` and `stop`."""

    def __init__(self, database: Database, pools: Mapping[str, Pool], metrics: JournalMetrics) -> None:
        self._before: dict[str, EngineBalance] = {}  # by engine, as they were exported last
        self._database = database
        self._pools = pools
        self._metrics = metrics

    async def reconcile(self) -> Reconciliation:
        """Compare the counts of the engines to which this gateway is connected with the ledger.

        Raises what the database raises.
        """
        healths = [
            (name, replica.id, health)
            for name, pool in self._pools.items()
            for replica in pool.replicas
            for health in [replica.backend.health()]
            if health.stats is not None
        ]
        async with asyncio.timeout(TIMEOUT_S), self._database.acquire() as conn:
            taken = await engine_usage(conn, [health.engine_id for _, _, health in healths])
            lost = await lost_journals(conn)
        engines = []
        for name, replica_id, health in healths:
            assert health.stats is not None
            stats, (prompt, completion) = health.stats, taken.get(health.engine_id, (0, 0))
            ended = stats.ended_prompt_tokens_total + stats.ended_completion_tokens_total
            balance = EngineBalance(
                name,
                replica_id,
                health.engine_id,
                stats.ended_prompt_tokens_total,
                stats.ended_completion_tokens_total,
                prompt,
                completion,
                stats.unacked_usage,
                stats.dropped_usage_total,
                ended - prompt - completion,
            )
            engines.append(balance)
        return Reconciliation(engines, lost)

    async def _run(self) -> None:
        while True:
            try:
                found = await self.reconcile()
                self.export(found)
                async with asyncio.timeout(TIMEOUT_S), self._database.acquire() as conn:
                    await forget_old_engines(conn, {balance.engine_id for balance in found.engines})
            except FAILURES as error:
                log.warning("not_reconciled", error=repr(error))
            await asyncio.sleep(EVERY_S)

    def export(self, found: Reconciliation) -> None:
        """Set the metrics of lost journals and of engines whose counts differ from those of the ledger.

        Counts of one moment always differ while requests end. So each side is held against what the other one had the
        last time.
        """
        self._metrics.unbilled.set(sum(journal.open_requests for journal in found.lost_journals))
        self._metrics.difference.set(
            {
                (balance.model, balance.replica_id): settled_difference(self._before.get(balance.engine_id), balance)
                for balance in found.engines
            }
        )
        self._before = {balance.engine_id: balance for balance in found.engines}


def settled_difference(before: EngineBalance | None, now: EngineBalance) -> int:
    """Return the tokens that an engine had counted before and the ledger still lacks; negative: the other way round.

    before: the engine's balance some seconds ago; None: it is not known.
    """
    if before is None:
        return 0
    missing = before.ended_tokens - now.ledger_tokens
    return missing if missing > 0 else min(now.ended_tokens - before.ledger_tokens, 0)
