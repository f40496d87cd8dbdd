"""Keeps the sums of experiments in the background: counts events, closes windows, judges guardrails, opens enrolment.

The worker and every gateway have one. Only one works at a time, and any may take over (`turns`). Knows no SQL.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterable

import structlog

from gateway.db.experiments.events import count_waiting, drop_old_requests, drop_oldest, try_lock
from gateway.db.experiments.looks import drop_old_looks
from gateway.db.experiments.notes import drop_silent_gateways, note_late_units
from gateway.db.experiments.scopes import guarded_experiments, next_reweighting, write_reweighted
from gateway.db.experiments.units import OlderRequest
from gateway.db.pool import CONFLICTS, FAILURES, UNFIT, Database
from gateway.domain.experiments.allocation import exposed_units, with_weights
from gateway.domain.experiments.assignment import Split
from gateway.domain.experiments.definition import DEFAULT_ANALYSIS
from gateway.experiments.books import MAX_CLOSED, MAX_EVENTS, close_windows, count_events
from gateway.experiments.guardrail import pause_if_harmed
from gateway.experiments.turns import HasTurn
from gateway.observability.experiment_metrics import ExperimentMetrics
from gateway.support.worker import Worker

_LATER: tuple[type[Exception], ...] = (OlderRequest, *CONFLICTS)
"""Errors after which a transaction may be begun anew."""

log = structlog.get_logger(__name__)

INTERVAL_S = 0.5
"""Seconds between the starts of two rounds: sums follow the ledger by this and the time of a transaction."""
IDLE_S = 5.0
"""Seconds between two rounds of a bookkeeper that is woken when something waits."""
JUDGE_EVERY_S = 1.0
"""The least seconds between two judgements of one experiment."""
JUDGE_ALL_EVERY_S = 30.0
"""Seconds between two judgements of all experiments, also those whose last events were counted by a gateway that has
ended since."""
TIDY_EVERY_S = 60.0
CLOSED_FOR = datetime.timedelta(seconds=5)
"""The least time for which enrolment is closed before new weights apply."""
KNOWN_AFTER = datetime.timedelta(seconds=2)
"""The time after which every gateway knows that enrolment is closed.

New weights wait for all notes up to then.
"""


class ExperimentBookkeeper(Worker):
    """Keeps the sums of all experiments between `start` and `stop`.

    turn: tells when to work; None: always. wake: set when something waits; None: works each INTERVAL_S.
    """

    def __init__(
        self,
        database: Database,
        metrics: ExperimentMetrics | None = None,
        *,
        turn: HasTurn | None = None,
        wake: asyncio.Event | None = None,
    ) -> None:
        super().__init__(self.work, self._interval_s, name="experiments' books", wake=wake, by_starts=True)
        self._is_woken = wake is not None
        self._database = database
        self._metrics = metrics
        self._turn = turn
        self._to_judge: set[str] = set()
        self._judged_s: dict[str, float] = {}
        self._judge_all_s = self._tidy_s = float("-inf")
        self._num_waiting = 0  # as last shown in the metrics

    def _interval_s(self) -> float:
        """Return the seconds until the next round if nothing waits before."""
        return INTERVAL_S if not self._is_woken or self._to_judge or self._num_waiting else IDLE_S

    async def stop(self) -> None:
        """Stop, and leave the turn to another bookkeeper."""
        await super().stop()
        if self._turn is not None:
            self._turn.release()

    async def work(self) -> None:
        """Bring the sums of all experiments up to date, if it is this bookkeeper's turn.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        if self._turn is None or await self._turn.is_mine():
            await self._work()
        if self._metrics is not None:
            async with self._database.acquire() as conn:
                now = await count_waiting(conn)
            self._metrics.observe(now)
            self._num_waiting = now.num

    async def _work(self) -> None:
        await self._count()
        await self._close()
        await self._open_enrolment()
        now_s = asyncio.get_running_loop().time()
        if now_s - self._judge_all_s >= JUDGE_ALL_EVERY_S:
            self._judge_all_s = now_s
            async with self._database.acquire() as conn:
                guarded = await guarded_experiments(conn)
            self._to_judge |= guarded
            self._judged_s = {each: at_s for each, at_s in self._judged_s.items() if each in guarded}
        await self._judge()
        if now_s - self._tidy_s >= TIDY_EVERY_S:
            self._tidy_s = now_s
            async with self._database.acquire() as conn:
                await drop_old_requests(conn, DEFAULT_ANALYSIS.outcome_window_seconds)
                await drop_old_looks(conn)
                await drop_silent_gateways(conn)

    async def _count(self) -> None:
        """Count events in transactions, until few are left or another gateway counts."""
        most = MAX_EVENTS
        while True:
            try:
                async with self._database.transaction() as conn:
                    counted = await count_events(conn, most)
            except _LATER as error:
                log.info("experiments_counted_later", error=repr(error))
                return
            except Exception as error:
                if isinstance(error, FAILURES) and not isinstance(error, UNFIT):
                    raise
                log.exception("experiment_events_not_counted", num=most)
                most = await self._without_uncountable(most)
                continue
            if counted is not None and counted.new_units:
                async with self._database.acquire() as conn:
                    await note_late_units(conn, counted.new_units)
            if counted is None or counted.num < most:
                self._to_judge |= counted.experiment_ids if counted is not None else set()
                return
            most = min(MAX_EVENTS, 2 * most)
            self._to_judge |= counted.experiment_ids
            await self._judge()

    async def _without_uncountable(self, most: int) -> int:
        """Skip the event that cannot be counted, once it is alone in its batch; return how many to take next.

        Other events, of other tenants, wait behind it.

        most: the number of events that the failed batch was allowed to have.
        """
        if most > 1:
            return most // 2
        async with self._database.transaction() as conn:
            if await try_lock(conn):
                log.error("experiment_event_dropped", experiment=await drop_oldest(conn))
                if self._metrics is not None:
                    self._metrics.dropped.inc()
        return 1

    async def _close(self) -> None:
        """Close outcome windows in transactions, until few are due or another gateway changes units."""
        num = MAX_CLOSED
        while num >= MAX_CLOSED:
            async with self._database.transaction() as conn:
                closed = await close_windows(conn)
            num = 0 if closed is None else closed.num
            self._to_judge |= set() if closed is None else closed.experiment_ids

    async def _judge(self) -> None:
        """Judge the guardrails of experiments whose sums changed, each at most once in JUDGE_EVERY_S."""
        now_s = asyncio.get_running_loop().time()
        for each in self._due_experiments(now_s):
            self._to_judge.discard(each)
            self._judged_s[each] = now_s
            try:
                async with self._database.transaction() as conn:
                    why = await pause_if_harmed(conn, each)
            except FAILURES:
                raise
            except Exception:  # others are judged all the same
                log.exception("experiment_not_judged", experiment=each)
                continue
            if why is not None:
                log.warning("experiment_paused", experiment=each, metric=why.metric, arm=why.arm)
                if self._metrics is not None:
                    self._metrics.paused.inc()

    def _due_experiments(self, now_s: float) -> Iterable[str]:
        never = float("-inf")
        return sorted(each for each in self._to_judge if now_s - self._judged_s.get(each, never) >= JUDGE_EVERY_S)

    async def _open_enrolment(self) -> None:
        """Give experiments their new weights once every gateway has kept new units out for long enough."""
        while True:
            async with self._database.transaction() as conn:
                found = await next_reweighting(conn, CLOSED_FOR, KNOWN_AFTER)
                if found is None:
                    return
                split = Split(found.seed, b"", found.slots, tuple(found.tables), ended=tuple(found.ended))
                changed = with_weights(split, found.next_weights, exposed_units({}))
                await write_reweighted(conn, found.id, changed.tables, changed.slots)
