"""The worker process, for work that no request waits for: it keeps the sums of experiments. SIGTERM and SIGINT end it.

It shares metrics with the gateways of its machine, as they do among each other, and serves none itself.
"""

from __future__ import annotations

import asyncio
import signal
from functools import partial

import structlog
import uvloop
from prometheus_client import CollectorRegistry

from gateway.db.due_work import POLL_EVERY_S, POLL_TIMEOUT_S, DueWork
from gateway.db.pool import FAILURES, Database
from gateway.db.turns import BOOKS, Turn
from gateway.experiments.bookkeeper import ExperimentBookkeeper
from gateway.observability.experiment_metrics import ExperimentMetrics
from gateway.observability.metrics import configure_logging
from gateway.settings import Settings
from gateway.support.worker import Worker, stop_all

NUM_CONNECTIONS = 2

log = structlog.get_logger(__name__)


def run_worker(settings: Settings, dsn: str) -> None:
    """Work until a signal ends it.

    Raises one of `gateway.db.pool.UNUSABLE`: when the connection string or the schema is wrong.
    Raises one of `gateway.db.pool.UNAVAILABLE`: when the database cannot be reached.
    """
    configure_logging(settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run_worker(dsn))


async def _run_worker(dsn: str) -> None:
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    async with await Database.connect(dsn, max_size=NUM_CONNECTIONS) as database:
        due = DueWork()
        metrics, turn = ExperimentMetrics(CollectorRegistry()), Turn(database, BOOKS)
        books = ExperimentBookkeeper(database, metrics, turn=turn, wake=due.wake("experiments"))
        books.start()
        polling = Worker(partial(_poll, database, due), POLL_EVERY_S, name="due work")
        polling.start()
        await ending.wait()
        await stop_all(polling, books)
    log.info("worker_stopped")


async def _poll(database: Database, due: DueWork) -> None:
    try:
        async with asyncio.timeout(POLL_TIMEOUT_S), database.acquire() as conn:
            await due.poll(conn)
    except FAILURES:
        due.wake_all()
        raise
