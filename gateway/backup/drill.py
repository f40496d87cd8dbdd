"""Tries a restore: into a folder of its own, compared with what should be in it, and thrown away.

Nothing of the installation is changed. A backup is restored with all that it holds, as `lorikeet restore` does. An
archive brings back the database alone, up to a moment; journals, adapters, files and keys are then the installation's
own, and the journals bill what the ledger of that moment lacks, in the copy.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from adapters.errors import AdapterDamaged, AdapterMissing, StoreFailure
from gateway.backup.content import CONTENT_KEY_NAME, open_newest, read_cipher
from gateway.backup.journals import copy_journals
from gateway.backup.manifest import JOURNAL, MANIFEST, BackupError, BackupManifest, read_manifest
from gateway.backup.restore import bring_up_to_date, check_backup, restore_backup, restore_marker
from gateway.backup.take import Installation
from gateway.db.content.sealed import whole_parts
from gateway.db.organization import audit
from gateway.db.pool import Database
from gateway.db.roles import Dsns
from gateway.db.schema_files import schema_names
from gateway.domain.content.keys import BadContentKey
from gateway.domain.errors import ContentUnreadable
from gateway.files.content import PIECE_BYTES
from gateway.metering.rebilling import JournalUsage, bill_again, difference_tokens, held_usage
from gateway.postgres.dump import content_digests, last_change, read_contents
from gateway.postgres.embedded import EmbeddedPostgres
from gateway.postgres.point_in_time import RecoveredPostgres, as_of, remove_database
from gateway.support.cipher import Cipher, Place, Sealed
from gateway.support.process import make_data_folder

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_NAMED = 3
"""The most faults that a finding names; the others are counted."""


class Finding(msgspec.Struct, frozen=True):
    """The outcome of one check."""

    check: str
    """The name of the check."""
    is_good: bool
    what: str
    """The figures of the check and, where it found a fault, the first faults."""


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a drill."""

    source: str
    """The folder that was restored."""
    restored_to: str | None
    """The time of the last change in the restored database, or the time at which the backup was made."""
    database_s: float
    """Seconds until the database took connections, with all of its rows."""
    checked_s: float
    """Seconds that all checks took."""
    num_ledger_rows: int
    """Rows of the ledger once the journals were billed."""
    num_ledger_tokens: int
    """Tokens of all of these rows."""
    num_billed_again: int
    """Attempts that the restored ledger lacked, and that the journals held."""
    difference_tokens: int
    """Tokens by which the ledger then differs from the journals."""
    findings: list[Finding]

    @property
    def is_good(self) -> bool:
        """True if no check found a fault."""
        return all(finding.is_good for finding in self.findings)


def newest_backup(folder: Path) -> Path:
    """Return the folder itself where it is a backup, else the newest of the backups in it.

    Raises BackupError: when there is none.
    """
    if (folder / MANIFEST).is_file():
        return folder
    paths = folder.iterdir() if folder.is_dir() else ()
    found = [(read_manifest(path).made_at, path) for path in paths if (path / MANIFEST).is_file()]
    if not found:
        raise BackupError(f"{folder} is neither a whole backup or archive, nor a folder with backups")
    return max(found)[1]


class Drill:
    """One drill, in a folder that is empty, and that the caller removes.

    content_key: the keys of LORIKEET_CONTENT_KEY; None: those in `content.key`, of the backup or the data folder.
    report: gets a line for each step.
    """

    def __init__(self, scratch: Path, content_key: str | None, report: Callable[[str], None]) -> None:
        self._scratch = scratch
        self._content_key = content_key
        self._report = report

    async def try_backup(self, folder: Path, places: Callable[[Path], Installation]) -> DrillReport:
        """Restore a backup and check it. Blocks its event loop.

        places: returns the places of an installation in a data folder.

        Raises BackupError: when the backup is not whole.
        Raises as `restore_backup`.
        """
        manifest = check_backup(folder)
        data_dir = self._scratch / "data"
        make_data_folder(data_dir)
        installation = places(data_dir)
        began_s = time.monotonic()
        postgres = EmbeddedPostgres(data_dir, report=self._report)
        dsn = postgres.start()
        try:
            with restore_marker(data_dir, installation.key_files, folder) as mark:
                await restore_backup(
                    folder,
                    manifest,
                    installation,
                    Dsns(dsn, dsn),
                    mark,
                    content_key=self._content_key,
                    force=False,
                    report=self._report,
                )
            return await self._check(
                str(folder),
                manifest.made_at,
                dsn,
                installation,
                time.monotonic() - began_s,
                [Finding("backup", True, f"{len(manifest.files)} files are as the manifest says")],
                manifest,
            )
        finally:
            postgres.stop()
            remove_database(data_dir)

    async def try_archive(
        self, folder: Path, at: datetime.datetime | None, source_dsn: str, installation: Installation
    ) -> DrillReport:
        """Restore an archive to a moment and check it. Blocks its event loop.

        at: None: the last moment that the archive has.
        source_dsn: the connection string of the archived database's owner; only its role and database are used.
        installation: the installation in force, which is only read.

        Raises ArchiveError: when the archive is not whole, or ends before the moment.
        Raises EmbeddedPostgresError or PlacementError: when no database can be started in the scratch folder.
        """
        copied = self._scratch / "journals"
        copied.mkdir(mode=0o700)
        self._report("journals")
        copy_journals(installation.journal_dir, copied, with_spent=True)
        server = RecoveredPostgres(self._scratch / "data", self._report)
        self._report(f"database {as_of(at)}")
        began_s = time.monotonic()
        try:
            dsn = server.start(folder, at, source_dsn)
            return await self._check(
                str(folder),
                await last_change(dsn),
                dsn,
                msgspec.structs.replace(installation, journal_dir=copied / JOURNAL),
                time.monotonic() - began_s,
                [Finding("base backup", True, "its files are as its own manifest says")],
                None,
            )
        finally:
            server.stop()
            remove_database(self._scratch / "data")

    async def _check(
        self,
        source: str,
        restored_to: str | None,
        dsn: str,
        installation: Installation,
        database_s: float,
        findings: list[Finding],
        manifest: BackupManifest | None,
    ) -> DrillReport:
        self._report("checks")
        began_s = time.monotonic()
        before = await content_digests(dsn)
        migrations = before.migrations if manifest is None else manifest.contents.migrations
        findings.append(await _check_schema(dsn, migrations))
        async with await Database.connect(dsn) as database:
            async with database.acquire() as conn:
                installation_id = await conn.fetchval("SELECT id FROM installation")
            held = held_usage(installation.journal_dir, installation_id)
            num_billed, difference, found = await self._bill(database, held)
            findings += found
            async with database.acquire() as conn:
                findings.append(await _check_audit_log(conn))
                findings.append(_check_adapters(installation, before.digests, manifest))
                findings += await self._check_content(conn, installation)
                after = await read_contents(conn)
        return DrillReport(
            source=source,
            restored_to=restored_to,
            database_s=round(database_s, 2),
            checked_s=round(time.monotonic() - began_s, 2),
            num_ledger_rows=after.num_ledger_rows,
            num_ledger_tokens=after.prompt_tokens + after.completion_tokens,
            num_billed_again=num_billed,
            difference_tokens=difference,
            findings=findings,
        )

    async def _bill(self, database: Database, held: JournalUsage) -> tuple[int, int, list[Finding]]:
        billed = await bill_again(database, held.ended)
        difference = await difference_tokens(database, held.ended)
        since = (
            ""
            if held.since_ns is None
            else f" since {datetime.datetime.fromtimestamp(held.since_ns // 10**9, datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
        )
        read = f"{billed.num_attempts} requests{since} in {held.num_journals} journals"
        if held.num_foreign:
            read += f", and {held.num_foreign} files of another database"
        return (
            billed.num_missing,
            difference,
            [
                _finding("journals", f"{read}; {billed.num_missing} were not in the ledger", billed.refused),
                Finding("ledger", difference == 0, f"differs from the journals by {difference} tokens"),
            ],
        )

    async def _check_content(self, conn: Connection, installation: Installation) -> list[Finding]:
        path = installation.data_dir / CONTENT_KEY_NAME
        try:
            cipher = read_cipher(self._content_key, [path])
        except OSError as error:
            return [Finding("content", False, f"{path}: {error.strerror}")]
        except BadContentKey as error:
            return [Finding("content", False, f"the key is wrong: {error}")]
        if cipher is None:
            return [Finding("content", False, f"there is no key: neither LORIKEET_CONTENT_KEY nor {path}")]
        found = await open_newest(conn, cipher)
        what = f"opened {found.num_values} encrypted values, the newest of each kind"
        opened = _finding("content", what, found.wrong)
        return [opened, await _check_files(conn, cipher, installation)]


async def _check_files(conn: Connection, cipher: Cipher, installation: Installation) -> Finding:
    """Open the first piece of every part of tenants' files, and look whether the others are there."""
    parts, wrong = await whole_parts(conn), []
    for part in parts:
        num_pieces = -(-part.num_bytes // PIECE_BYTES)
        try:
            found = installation.pieces.numbers(part.project_id, part.id)
            first = installation.pieces.read(part.project_id, part.id, 0) if num_pieces else None
        except StoreFailure as error:
            return Finding("files", False, str(error))
        if found != list(range(num_pieces)):
            wrong.append(f"{part.id} has {len(found)} of {num_pieces} pieces")
        elif first is not None:
            try:
                place = Place(part.project_id, "file_parts.piece", f"{part.id}/0")
                cipher.open(Sealed(part.content_key, first), place)
            except ContentUnreadable:
                wrong.append(f"{part.id} cannot be opened")
    return _finding("files", f"{len(parts)} parts of tenants' files are in the file store", wrong)


async def _check_schema(dsn: str, migrations: tuple[str, ...]) -> Finding:
    """Compare a copy's migrations with this version's, and update the copy as a restore does."""
    known = schema_names()
    try:
        await bring_up_to_date(Dsns(dsn, dsn))
    except BackupError as error:
        return Finding("schema", False, str(error))
    if migrations == known:
        return Finding("schema", True, f"is this version's, up to {known[-1]}")
    return Finding("schema", True, f"was older, up to {migrations[-1]}, and was brought up to date")


async def _check_audit_log(conn: Connection) -> Finding:
    rows = await conn.fetch("SELECT id FROM organizations ORDER BY id")
    num_rows, wrong = 0, []
    for row in rows:
        verdict = await audit.verify(conn, row["id"])
        num_rows += verdict.head.sequence
        if verdict.broken is not None:
            wrong.append(f"row {verdict.broken.sequence}: {verdict.broken.reason}")
    return _finding("audit log", f"the chain of {num_rows} rows is whole", wrong)


def _check_adapters(installation: Installation, digests: tuple[str, ...], manifest: BackupManifest | None) -> Finding:
    """Read the files of every adapter that a row names, and compare their digests.

    Adapters that were missing when a backup was made are missing in it, and named by it.

    manifest: the manifest of the restored backup; None where an archive was restored.
    """
    known_missing = set(manifest.missing_digests) if manifest is not None else set()
    wrong = []
    for digest in digests:
        try:
            installation.store.verify(digest)
        except AdapterMissing:
            if digest not in known_missing:
                wrong.append(f"{digest} is missing")
        except AdapterDamaged as error:
            wrong.append(str(error))
        except StoreFailure as error:
            return Finding("adapters", False, str(error))
    note = f", {len(known_missing)} were missing when the backup was made" if known_missing else ""
    return _finding("adapters", f"{len(digests)} adapters are what their rows say{note}", wrong)


def _finding(check: str, what: str, wrong: list[str]) -> Finding:
    if not wrong:
        return Finding(check, True, what)
    more = f" and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
    return Finding(check, False, f"{what}; wrong: {'; '.join(wrong[:MAX_NAMED])}{more}")
