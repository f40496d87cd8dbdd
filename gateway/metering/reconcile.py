"""Compares the counts that engines report with those that the ledger has, and names usage that nobody can bill.

Knows neither journals nor how usage gets from engines to the ledger, so that a fault on that way does not hide itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from gateway.backends.pool import Pool
from gateway.db.ledger.journals import LostJournal, engine_usage, forget_old_engines, lost_journals
from gateway.db.pool import Database
from gateway.observability.journal_metrics import JournalMetrics
from gateway.support.worker import Worker

log = structlog.get_logger(__name__)

EVERY_S = 10.0
SETTLE_S = 3.0
"""The seconds within which usage is usually in the ledger, and heartbeats have come."""

NUM_COMPARISONS = 12
"""The number of latest comparisons from which a difference is computed: those of two minutes."""

TIMEOUT_S = 5.0


class EngineBalance(msgspec.Struct, frozen=True):
    """The tokens that one engine has counted since it started, and the tokens of the same requests in the ledger."""

    model: str
    replica_id: str
    """The replica of the pool whose process the engine is."""
    engine_id: str
    """The engine's process."""
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
        """Prompt and completion tokens of the engine's requests in the ledger."""
        return self.ledger_prompt_tokens + self.ledger_completion_tokens


class Bounds(msgspec.Struct, frozen=True):
    """The least and the most tokens of an engine that the ledger lacks; negative: that the ledger has in excess."""

    least: int
    most: int


class Reconciliation(msgspec.Struct, frozen=True):
    """The result of comparing engines' counts with the ledger."""

    engines: list[EngineBalance]
    lost_journals: list[LostJournal]
    """Journals of gateways that are gone, with requests that have no row; a journal that turns up is replayed."""


class Reconciler(Worker):
    """Compares engines' counts with the ledger: in `reconcile` and, for metrics, between `start` and `stop`."""

    def __init__(
        self, database: Database, pools: Mapping[str, Pool], metrics: JournalMetrics, *, settle_s: float = SETTLE_S
    ) -> None:
        """Make the reconciler. settle_s: the time between the two balances of a comparison."""
        super().__init__(self._compare, EVERY_S - settle_s, name="reconciliation")
        self._settle_s = settle_s
        self._bounds: dict[str, deque[Bounds]] = {}  # by engine, the last comparison last
        self._database = database
        self._pools = pools
        self._metrics = metrics

    async def reconcile(self) -> Reconciliation:
        """Compare the counts of the engines to which this gateway is connected with the ledger.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
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

    async def _compare(self) -> None:
        """Compare twice with a pause, so that usage in transit can be told from lost usage, and set the metrics."""
        before = await self.reconcile()
        await asyncio.sleep(self._settle_s)
        found = await self.reconcile()
        self.export(before, found)
        async with asyncio.timeout(TIMEOUT_S), self._database.acquire() as conn:
            await forget_old_engines(conn, {balance.engine_id for balance in found.engines})

    def export(self, before: Reconciliation, found: Reconciliation) -> None:
        """Set the metrics of lost journals and of engines whose counts differ from those of the ledger.

        before: the comparison a few seconds ago, by which usage that is on its way is told from lost usage.
        """
        self._metrics.unbilled.set(sum(journal.open_requests for journal in found.lost_journals))
        earlier = {balance.engine_id: balance for balance in before.engines}
        self._bounds = {
            now.engine_id: self._bounds.get(now.engine_id, deque(maxlen=NUM_COMPARISONS))
            for now in found.engines
            if now.engine_id in earlier
        }
        differences = {}
        for now in found.engines:
            if (then := earlier.get(now.engine_id)) is not None:
                self._bounds[now.engine_id].append(missing_token_bounds(then, now))
                differences[now.model, now.replica_id] = settled_difference(self._bounds[now.engine_id])
        self._metrics.difference.set(differences)


def missing_token_bounds(before: EngineBalance, now: EngineBalance) -> Bounds:
    """Return bounds on the tokens that the ledger lacks, from an engine's balances at two moments.

    Counts of one moment always differ under load: usage is on its way to the ledger, and the engine's heartbeat is
    older than the ledger. So the engine's earlier count is compared with the later ledger, and the other way round. The
    number of tokens lost, or written twice, is between both differences. They are apart by the tokens that the engine
    counted and the ledger took within these seconds: by 0 for an engine of whose requests none ends meanwhile.
    """
    return Bounds(before.ended_tokens - now.ledger_tokens, now.ended_tokens - before.ledger_tokens)


def settled_difference(kept: Sequence[Bounds]) -> int:
    """Return the tokens that an engine has counted and the ledger lacks, at least; negative: the other way round.

    kept: the bounds of the comparisons of the last minutes, one or more, the last one last. Lost tokens are in all of
    them, so the narrowest one tells: a loss is hidden by no more than what ends in the quietest seconds of these
    minutes. The least of the differences of one moment would not do: it is never 0 under constant load. Tokens that
    were late and have come since are above the most that a later comparison allows, and are left out.
    """
    missing, surplus, least, most = 0, 0, kept[-1].least, kept[-1].most
    for each in reversed(kept):
        least, most = max(least, each.least), min(most, each.most)
        missing, surplus = max(missing, min(each.least, most)), min(surplus, max(each.most, least))
    return missing or surplus
