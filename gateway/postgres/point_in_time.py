"""Restores a PostgreSQL to a moment, from an archive, into a data folder that has no database yet.

The server replays the log up to the moment and then takes writes, on a new timeline. Until the caller stops it, it asks
for no password: whoever reaches its socket, which is private, may do anything. Knows nothing about tables.
"""

from __future__ import annotations

import datetime
import os
import re
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from gateway.db.pool import CONNECT_TIMEOUT_S
from gateway.postgres.archive import (
    PARTIAL_SUFFIX,
    WAL,
    ArchiveError,
    base_backups,
    base_before,
    first_segment,
    verify_base,
    wal_since,
)
from gateway.postgres.embedded import SERVER_SETTINGS, SUPERUSER, EmbeddedPostgres, EmbeddedPostgresError
from gateway.postgres.placement import Placement, home_of, place
from gateway.support.accounts import Account, as_root
from gateway.support.process import make_data_folder, make_private

PASSWORD_NAME = "postgres.password"  # noqa: S105 - the name of a file
LOG_COPY = "wal"
UNFINISHED = "cluster.new"
ACCESS_FILE = "recovery.hba"
EMBEDDED = f"postgresql://{SUPERUSER}@/postgres"
"""The role and the database of an embedded server, in the form that `RecoveredPostgres.start` takes."""

FALLBACK_ROOT = Path("/var/lib/lorikeet")
NOT_BELOW = (
    "max_connections",
    "max_locks_per_transaction",
    "max_prepared_transactions",
    "max_wal_senders",
    "max_worker_processes",
)
"""Parameters that must be at least as high as on the server that wrote the log."""

NEVER_COPIED = ("postmaster.pid", "postmaster.opts", "postgresql.auto.conf", "standby.signal")
TOO_LATE = "recovery ended before configured recovery target was reached"
_LAST_CHANGE = re.compile(r"last completed transaction was at log time (\S+ \S+?)\+00$", re.MULTILINE)
_CONTROL = re.compile(r"^(\w+) setting: +(\d+)$", re.MULTILINE)


# ALTER ROLE takes no parameters.
_SET_PASSWORD = "SELECT set_config('lorikeet.password', $1, true)"  # noqa: S105 - no password
_ALTER_ROLE = """
    DO $$
    BEGIN
        EXECUTE format('ALTER ROLE %I PASSWORD %L', current_user, current_setting('lorikeet.password'));
    END
    $$
"""


class RecoveredPostgres:
    """A server that an archive was restored to, until `stop`.

    owner: the account of the restored cluster, where this process is root; None: one of the system.
    """

    def __init__(
        self, data_dir: Path, report: Callable[[str], None] = lambda line: None, owner: Account | None = None
    ) -> None:
        self._data_dir = data_dir
        self._report = report
        self._owner = owner
        self._server: EmbeddedPostgres | None = None
        self._dsn = ""

    def start(self, archive: Path, at: datetime.datetime | None, source_dsn: str, checked: Path | None = None) -> str:
        """Restore an archive, and return the connection string of the role and the database that source_dsn names.

        at: the moment; None: the last one that the archive has.
        checked: the base backup that `checked_base` returned for archive and at; None: `checked_base` is called here.

        Raises ArchiveError: when the archive is not whole, or ends before the moment.
        Raises EmbeddedPostgresError: when the restored server does not start.
        Raises PlacementError: when the server's user cannot reach the data folder.
        """
        base = checked_base(archive, at) if checked is None else checked
        make_data_folder(self._data_dir)
        make_private(self._data_dir / PASSWORD_NAME, secrets.token_urlsafe(24))
        with as_root():
            placement = place(self._data_dir, FALLBACK_ROOT, self._report, owner=self._owner)
            settings = _recovery(placement, archive, base, at)
        self._server = EmbeddedPostgres(self._data_dir, report=self._report, settings=settings)
        try:
            host = urlsplit(self._server.start()).query
        except EmbeddedPostgresError as error:
            if at is not None and TOO_LATE in str(error):
                raise ArchiveError(_ends_before(archive, at, base, str(error))) from None
            raise ArchiveError(f"the archive {archive} could not be restored: {error}") from None
        parts = urlsplit(source_dsn)
        self._dsn = f"postgresql://{parts.username or 'postgres'}@/{parts.path.strip('/') or 'postgres'}?{host}"
        return self._dsn

    async def take_password(self) -> None:
        """Set the password of the data folder for the role that restored, so that regular starts work."""
        conn = await asyncpg.connect(self._dsn, timeout=CONNECT_TIMEOUT_S)
        try:
            async with conn.transaction():
                await conn.execute(_SET_PASSWORD, (self._data_dir / PASSWORD_NAME).read_text().strip())
                await conn.execute(_ALTER_ROLE)
        finally:
            await conn.close()

    def stop(self) -> None:
        """Stop the restored server, if it runs."""
        if self._server is not None:
            self._server.stop()

    def clean_up(self) -> None:
        """Delete the files that the restore needed beside the database, after the server was stopped."""
        home = home_of(self._data_dir.absolute())
        with as_root():
            for name in (LOG_COPY, UNFINISHED):
                shutil.rmtree(home / name, ignore_errors=True)
            (home / ACCESS_FILE).unlink(missing_ok=True)


def checked_base(archive: Path, at: datetime.datetime | None) -> Path:
    """Return the base backup that a moment is restored from, once all of its files were read. Blocks.

    at: the moment; None: the end of the archive.

    Raises ArchiveError: when there is no such base backup, or one of its files is damaged.
    """
    base = base_before(archive, at)
    verify_base(base)
    return base


def remove_database(data_dir: Path) -> None:
    """Delete the database of a data folder whose server was stopped, wherever it is."""
    with as_root():
        shutil.rmtree(home_of(data_dir.absolute()), ignore_errors=True)


def _recovery(placement: Placement, archive: Path, base: Path, at: datetime.datetime | None) -> dict[str, str]:
    """Copy a base backup and the log into a folder, and return the settings with which a server recovers from them.

    at: the moment; None: the last one that the archive has.
    """
    unfinished, wal = placement.home / UNFINISHED, placement.home / LOG_COPY
    for path in (unfinished, wal):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(base, unfinished, symlinks=True)
    for name in NEVER_COPIED:
        (unfinished / name).unlink(missing_ok=True)
    (unfinished / "postgresql.conf").touch()  # which distributions keep elsewhere
    (unfinished / "pg_ident.conf").touch()
    (unfinished / "recovery.signal").touch()
    access = placement.home / ACCESS_FILE
    access.write_text("local all all trust\n")
    wal.mkdir(mode=0o700)
    for path in wal_since(archive, first_segment(base)):
        name = path.name.removesuffix(PARTIAL_SUFFIX)
        if name == path.name or not (archive / WAL / name).exists():
            shutil.copyfile(path, wal / name)
    for root, folders, files in [*os.walk(unfinished), *os.walk(wal)]:
        for name in (".", *folders, *files):
            os.chown(Path(root) / name, placement.account.uid, placement.account.gid, follow_symlinks=False)
    os.chown(access, placement.account.uid, placement.account.gid)
    unfinished.chmod(0o700)
    unfinished.rename(placement.cluster)
    settings = {
        "hba_file": str(access),
        "restore_command": f"cp {shlex.quote(str(wal))}/%f %p",
        "recovery_target_action": "promote",
        "hot_standby": "off",  # connections wait for the end of recovery
        "lc_messages": "C",
        "timezone": "UTC",
        "archive_mode": "off",
        "ssl": "off",
        "shared_preload_libraries": "",
    }
    if at is not None:
        settings["recovery_target_time"] = at.astimezone(datetime.UTC).isoformat(sep=" ")
    return settings | _least_server_settings(placement)


def as_of(at: datetime.datetime | None) -> str:
    """Return a moment in words with its time zone. at: None: the last moment of an archive."""
    return "of the archive's end" if at is None else f"as of {_utc_text(at)}"


def _utc_text(at: datetime.datetime) -> str:
    return f"{at.astimezone(datetime.UTC).replace(tzinfo=None)} UTC"


def _ends_before(archive: Path, at: datetime.datetime, base: Path, log: str) -> str:
    """Return the error message for an archive whose log ends before a moment.

    log: the server's own log of its recovery.
    """
    if found := _LAST_CHANGE.findall(log):
        last = f"its last change is of {found[-1]} UTC"
    else:
        whole_at = next(whole_at for whole_at, path in base_backups(archive) if path == base)
        last = f"it has no change since its base backup of {_utc_text(whole_at)}"
    return f"the archive {archive} ends before {_utc_text(at)}: {last}. Without --at all of it is restored"


def _least_server_settings(placement: Placement) -> dict[str, str]:
    command = [placement.bin_dir / "pg_controldata", placement.cluster]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, env={"LC_ALL": "C"}).stdout
    found = {name: int(value) for name, value in _CONTROL.findall(shown)}
    return {name: str(max(found.get(name, 0), int(SERVER_SETTINGS.get(name, "10")))) for name in NOT_BELOW}
