"""The connection pool of a gateway process. Knows nothing about tables."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

import asyncpg

from gateway.db.priority import lower_priority

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

ACQUIRE_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 30.0
LOOKUP_TIMEOUT_S = 5.0
"""The most seconds that a tenant's request waits for an answer of the database."""
RELEASE_TIMEOUT_S = 1.0
"""Seconds in which a server stops a statement whose caller has given up, before the connection counts as lost."""
"""The timeout of each statement, also of a ROLLBACK over a connection that has gone silent."""

LISTENER_NAME = "lorikeet-changes"
SNAPSHOT_NAME = "lorikeet-export"
"""The names of listening connections and of long reads in pg_stat_activity."""

SNAPSHOT_IDLE_S = 120

UNAVAILABLE: tuple[type[Exception], ...] = (
    OSError,  # TimeoutError and refused connections are OSErrors
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that was cut amid an answer, and does not know it yet
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # shutting down, or the backend was terminated
    asyncpg.TooManyConnectionsError,
)
"""The errors that a query raises when the database is away, as opposed to refusing the query."""

CONFLICTS: tuple[type[Exception], ...] = (asyncpg.TransactionRollbackError, asyncpg.LockNotAvailableError)
"""The errors that a query raises when its transaction was ended for the sake of another, in a deadlock or where it
may not wait long. The transaction may be sent again."""

UNFIT: tuple[type[Exception], ...] = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,  # as where a value becomes longer than a value can be
)
"""The errors that a query raises because of its values, and would raise again."""

UNUSABLE: tuple[type[Exception], ...] = (
    asyncpg.InvalidAuthorizationSpecificationError,  # a wrong password is one
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.UndefinedTableError,
    asyncpg.exceptions.ClientConfigurationError,  # an InterfaceError, but waiting does not mend it
)
"""The errors that a first connection and its first query raise when DATABASE_URL names a database that cannot be
used as it is."""

FAILURES: tuple[type[Exception], ...] = (*UNAVAILABLE, asyncpg.PostgresError)
"""All errors that a correct query may raise, those of a full disk and of a demoted primary included."""


def in_words(error: Exception) -> str:
    """Return one line about an error of `UNUSABLE` or `UNAVAILABLE`, for the person that set DATABASE_URL."""
    why = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, asyncpg.UndefinedTableError):
        return f"the database has no tables of Lorikeet ({why}): run `lorikeet migrate`"
    if isinstance(error, UNUSABLE):
        return f"the database cannot be used: {why}"
    return f"the database cannot be reached: {why}"


MIN_LOCKS_PER_TRANSACTION = 1024
"""The least value of the server's setting max_locks_per_transaction.

The ledger has a partition for each day, each with five locks or more for a query that reads all of it: a report over
years, a backup, a restore.
"""

_LOCKS = "SELECT current_setting('max_locks_per_transaction')::integer"


async def lock_table_warning(conn: Connection) -> str | None:
    """Return the advice for a server that will run out of locks as the ledger grows; None for others."""
    locks: int = await conn.fetchval(_LOCKS)
    if locks >= MIN_LOCKS_PER_TRANSACTION:
        return None
    return (
        f"max_locks_per_transaction is {locks}: after some months of usage, reports and backups will fail with "
        f"'out of shared memory'; set it to {MIN_LOCKS_PER_TRANSACTION} or more and restart PostgreSQL"
    )


_REPLAN = "SET LOCAL plan_cache_mode = force_custom_plan"


async def replan(conn: Connection) -> None:
    """Have the server plan each statement of this transaction for its own values, such as the days that it reads.

    After some repetitions the server makes a plan for any values, which locks the ledger's partitions of all days.
    """
    if conn.is_in_transaction():
        await conn.execute(_REPLAN)


async def read_whole_numbers(conn: Connection) -> None:
    """Have a connection return numeric values as ints.

    Sums of money are numeric, since one month's may exceed a bigint, and never a fraction.
    """
    await conn.set_type_codec("numeric", schema="pg_catalog", encoder=str, decoder=int)


SESSION = {"jit": "off"}
"""PostgreSQL's settings of every session.

Its queries are short: a plan whose cost was estimated too high would be compiled for a hundred times as long as it
runs.
"""


_SET = "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS wanted (name, value)"


async def _begin_session(settings: Mapping[str, str], niceness: int, conn: asyncpg.Connection[asyncpg.Record]) -> None:
    """Set PostgreSQL's settings by statements: a pooler in between refuses those that come with a connection.

    niceness: as for `Database.connect`.
    """
    await read_whole_numbers(conn)
    await conn.execute(_SET, list(settings), list(settings.values()))
    if niceness:
        await lower_priority(conn, niceness)


async def _keep_session(conn: asyncpg.Connection[asyncpg.Record]) -> None:
    """Do nothing to the session of a connection that returns to the pool, in place of asyncpg's reset.

    Borrowers change nothing that outlives a transaction, and asyncpg rolls back a transaction that is still open. The
    four statements of asyncpg's reset would double the exchanges with the server.
    """


class Database:
    """A pool of connections to one database; make it with `Database.connect`, close it once."""

    def __init__(self, dsn: str, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self._dsn = dsn
        self._pool = pool

    @classmethod
    async def connect(
        cls,
        dsn: str,
        min_size: int = 1,
        max_size: int = 8,
        settings: Mapping[str, str] | None = None,
        *,
        niceness: int = 0,
    ) -> Self:
        """Open a pool of connections. settings: settings of PostgreSQL for each connection.

        niceness: the niceness of the server's processes behind the connections, where `lower_priority` can set it.
        min_size, max_size: the least and the most open connections.

        Raises one of `UNUSABLE`: when the connection string or the schema is wrong.
        Raises one of `UNAVAILABLE`: when the database cannot be reached.
        """
        pool = await asyncpg.create_pool(
            dsn,
            min_size=min_size,
            max_size=max_size,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=COMMAND_TIMEOUT_S,
            server_settings={"application_name": "lorikeet", "timezone": "UTC"},
            init=partial(_begin_session, {**SESSION, **(settings or {})}, niceness),
            reset=_keep_session,
        )
        return cls(dsn, pool)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        """Borrow a connection; raises TimeoutError when none is free within `ACQUIRE_TIMEOUT_S`.

        A user that is canceled, as by a timeout, waits only a moment for a server that may not answer.
        """
        connection = await self._pool.acquire(timeout=ACQUIRE_TIMEOUT_S)
        try:
            yield connection
        except asyncpg.InternalClientError:
            connection.terminate()  # nobody knows what it would answer next
            raise
        finally:
            with contextlib.suppress(TimeoutError):  # then the connection is closed
                await self._pool.release(connection, timeout=RELEASE_TIMEOUT_S)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Borrow a connection for one transaction.

        A user that is canceled in it, as by a timeout, does not wait for a server that may not answer: the connection
        is closed, and the server rolls back by itself.

        Raises as `acquire`.
        """
        async with self.acquire() as connection:
            transaction = connection.transaction()
            try:
                await transaction.start()
                try:
                    yield connection
                except Exception:
                    await transaction.rollback()
                    raise
                await transaction.commit()
            except asyncio.CancelledError:
                connection.terminate()
                raise

    def bounded(self, num_connections: int) -> Database:
        """Return the same pool with a bound on the connections that are borrowed through it at once.

        The bound is for parts of the process that have to leave connections to parts whose clients wait.
        num_connections: the bound.
        """
        return _Bounded(self._dsn, self._pool, num_connections)

    @asynccontextmanager
    async def snapshot(self, deadline_s: float | None = None) -> AsyncIterator[Connection]:
        """Run a read-only transaction that sees one state of the database, on a connection outside the pool.

        It may take long. It keeps the server from removing dead rows, so it ends when nothing is asked of it for
        `SNAPSHOT_IDLE_S`, and after deadline_s even while its user waits for something else.

        Raises one of `UNAVAILABLE`: when the database cannot be reached.
        """
        settings = {
            "application_name": SNAPSHOT_NAME,
            "timezone": "UTC",
            "idle_in_transaction_session_timeout": f"{SNAPSHOT_IDLE_S}s",
            "plan_cache_mode": "force_custom_plan",
        }
        connection = await asyncpg.connect(self._dsn, timeout=CONNECT_TIMEOUT_S, server_settings=settings)
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(deadline_s, connection.terminate) if deadline_s is not None else None
        try:
            await read_whole_numbers(connection)
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                yield connection
        finally:
            if deadline is not None:
                deadline.cancel()
            await connection.close(timeout=CONNECT_TIMEOUT_S)

    async def connect_alone(self) -> asyncpg.Connection[asyncpg.Record]:
        """Return a connection outside the pool, for a caller that listens on it. The caller closes it."""
        return await asyncpg.connect(
            self._dsn, timeout=CONNECT_TIMEOUT_S, server_settings={"application_name": LISTENER_NAME}
        )

    async def close(self) -> None:
        """Wait for borrowed connections to come back, then close them all; at most for `CLOSE_TIMEOUT_S`."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Bounded(Database):
    """A pool of which only some connections are borrowed at once."""

    def __init__(self, dsn: str, pool: asyncpg.Pool[asyncpg.Record], num_connections: int) -> None:
        super().__init__(dsn, pool)
        self._places = asyncio.Semaphore(num_connections)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        async with asyncio.timeout(ACQUIRE_TIMEOUT_S):
            await self._places.acquire()
        try:
            async with super().acquire() as connection:
                yield connection
        finally:
            self._places.release()
