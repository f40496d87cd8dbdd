"""One worker keeps the books while it lives; gateways go on without one, and where the worker stands still."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.db.experiments.events import count_waiting, counting_lag_s
from gateway.db.pool import Database
from gateway.db.turns import BOOKS, Turn
from gateway.experiments.bookkeeper import ExperimentBookkeeper
from gateway.experiments.books import GRACE
from gateway.experiments.turns import STAND_IN_AFTER_S, StandIn
from tests.gateway.experiments.books_rows import RunningExperiment, UnitRequest, make_experiment, send, unit
from tests.gateway.experiments.test_books import LONG_AGO, check_recount
from tests.installation.processes import ChildProcess
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_NUM_BUSY = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'
"""
_AGE = "UPDATE experiment_events SET queued_at = now() - make_interval(secs => $1)"


async def until_true(ask: Callable[[], Awaitable[bool]], answer: bool = True) -> None:
    """Wait until `ask` returns `answer`."""
    async with asyncio.timeout(PATIENCE_S):
        while await ask() != answer:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def is_waiting(conn: Connection) -> bool:
    return (await count_waiting(conn)).num > 0


async def ten_requests(conn: Connection, made: RunningExperiment, first: int) -> None:
    await send(conn, made, [UnitRequest(unit(n), n % 2, LONG_AGO) for n in range(first, first + 10)])


async def test_one_worker_of_several_has_the_turn_and_the_next_one_gets_it(database: Database) -> None:
    first, second, gateway = Turn(database, BOOKS), Turn(database, BOOKS), StandIn(database)
    assert await gateway.is_mine()
    assert await first.is_mine() and await first.is_mine()
    assert not await second.is_mine() and not await gateway.is_mine()
    first.release()
    await until_true(second.is_mine)
    assert not await gateway.is_mine()
    second.release()
    await until_true(gateway.is_mine)


async def test_gateways_leave_the_books_to_a_worker_unless_it_is_behind(database: Database) -> None:
    worker, gateway = Turn(database, BOOKS), ExperimentBookkeeper(database, turn=StandIn(database))
    assert await worker.is_mine()
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await ten_requests(conn, made, 0)
        await gateway.work()
        assert (await count_waiting(conn)).num == 10
        await conn.execute(_AGE, STAND_IN_AFTER_S + 1)
        await gateway.work()
        assert (await count_waiting(conn)).num == 0
    worker.release()
    await check_recount(database, made, 10)


async def test_a_window_that_is_due_and_not_closed_is_behind(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        assert await counting_lag_s(conn, GRACE) == 0
        await ten_requests(conn, made, 0)
        await ExperimentBookkeeper(database)._count()
        due = await counting_lag_s(conn, GRACE)
        assert due > STAND_IN_AFTER_S
        assert 0 < await counting_lag_s(conn, GRACE + datetime.timedelta(seconds=due - 1)) < due
        await ExperimentBookkeeper(database).work()
        assert await counting_lag_s(conn, GRACE) == 0


async def freeze(conn: Connection, pid: int) -> None:
    """Freeze a process (SIGSTOP) between two of its transactions, since within one it would hold its locks."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        if not await conn.fetchval(_NUM_BUSY):
            return
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.01)


async def test_a_worker_that_stands_still_or_dies_is_stood_in_for(database: Database, dsn: str, tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LORIKEET_")}
    variables |= {"DATABASE_URL": dsn, "LORIKEET_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "gateway.cli", "worker"]
    worker = ChildProcess(command, log=tmp_path / "worker.log", env=variables)
    turn = StandIn(database)
    gateway = ExperimentBookkeeper(database, turn=turn)
    worker.start()
    try:
        async with database.acquire() as conn:
            await until_true(turn.is_mine, False)
            made = await make_experiment(conn)
            await ten_requests(conn, made, 0)
            await until_true(partial(is_waiting, conn), False)
            await freeze(conn, worker.pid)
            await ten_requests(conn, made, 10)
            await conn.execute(_AGE, STAND_IN_AFTER_S + 1)
            await gateway.work()
            assert (await count_waiting(conn)).num == 0
            os.kill(worker.pid, signal.SIGKILL)
            await until_true(turn.is_mine)
            await ten_requests(conn, made, 20)
            await gateway.work()
            assert (await count_waiting(conn)).num == 0
    finally:
        worker.kill()
    await check_recount(database, made, 30)


async def test_a_worker_ends_by_a_signal_and_gives_its_turn_up(database: Database, dsn: str, tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LORIKEET_")}
    variables |= {"DATABASE_URL": dsn, "LORIKEET_DATA_DIR": str(tmp_path)}
    worker = ChildProcess([sys.executable, "-m", "gateway.cli", "worker"], log=tmp_path / "worker.log", env=variables)
    worker.start()
    try:
        await until_true(StandIn(database).is_mine, False)
        assert worker.terminate() == 0
        assert await StandIn(database).is_mine()
    finally:
        worker.kill()
