"""Puts a backup back: into an empty data folder, or over the data that it holds.

Adapters and journals are added to those that are there; only the database and the keys are replaced, and only if that
is forced. A marker stands in the data folder while this goes on; no server starts over half a restore. In an empty data
folder it stands from the very beginning, since a server would begin a new installation there.

The database that is replaced is set aside within the server until the restored one is known to be the backup's, at this
version's schema, with content that the keys at hand open. If any step until then fails, the database that was there is
put back, under the keys that were there. Then it is dropped, and only then the first key is written: a former database
under the restored keys could open nothing. If a key cannot be written, the marker stays until a restore is whole.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from adapters.errors import AdapterRejected
from gateway.backup.content import CONTENT_KEY_NAME, open_newest, read_cipher
from gateway.backup.files import restore_pieces
from gateway.backup.journals import add_journals, journals_owned
from gateway.backup.manifest import ADAPTERS, DATABASE, KEYS, BackupError, BackupManifest, verify
from gateway.backup.take import Installation
from gateway.db.conversion import LAST, is_convertible, is_too_old
from gateway.db.migrate import MigrationRefused, migrate
from gateway.db.pool import Database
from gateway.db.roles import Dsns, runtime_role
from gateway.db.schema_files import schema_names
from gateway.domain.content.keys import BadContentKey
from gateway.postgres.dump import (
    Contents,
    DumpFailed,
    cancel_batches,
    check_dump,
    content_digests,
    is_empty,
    named_parts,
    num_sessions,
    restore,
)
from gateway.postgres.former import SET_ASIDE, drop_former, has_former, put_back
from gateway.serve.lock import RESTORE_MARKER
from gateway.support.process import write_private

LAST_SESSIONS_S = 1.0


def check_backup(folder: Path) -> BackupManifest:
    """Read a whole backup, check that this version can restore it, and return its manifest.

    Raises BackupError: when a file is missing or changed, the backup's schema is too old or not known, or its database
    is in a format that this version's `pg_restore` cannot read.
    """
    manifest = verify(folder)
    names, known = manifest.contents.migrations, schema_names()
    if is_too_old(names):
        raise BackupError(
            f"{folder} is at migration {names[-1]}: restore it with the version that made it, run `lorikeet migrate` "
            f"of the version that ends with {LAST}, and back up again"
        )
    if names != known[: len(names)] and not is_convertible(names):
        raise BackupError(f"{folder} was made by Lorikeet {manifest.version}, whose schema this version does not know")
    try:
        check_dump(folder / DATABASE)
    except DumpFailed as error:
        raise BackupError(f"{folder} cannot be restored: {error}") from None
    return manifest


def key_in_the_way(folder: Path, installation: Installation) -> Path | None:
    """Return the first key file that the backup would replace with another; None if there is none."""
    for path in installation.key_files:
        restored = folder / KEYS / path.name
        if path.is_file() and restored.is_file() and path.read_bytes() != restored.read_bytes():
            return path
    return None


class RestoreMark:
    """The marker file that keeps servers from starting with a data folder while a restore is not whole."""

    def __init__(self, data_dir: Path, backup: Path) -> None:
        self._path = data_dir / RESTORE_MARKER
        self._backup = backup
        self._was_there = self._stays = self._path.exists()

    def set(self) -> None:
        """Write the marker, which names the backup."""
        write_private(self._path, f"{self._backup}\n")

    def keep(self) -> None:
        """Keep the marker from now on until a whole restore removes it, since data is about to be changed."""
        self._stays = True

    def let_go(self) -> None:
        """Undo `keep`, once all that the restore changed is as it was before."""
        self._stays = self._was_there

    def withdraw(self) -> None:
        """Remove the marker of a restore that was refused or failed, unless data was changed.

        Changes by an earlier restore count as well.
        """
        if not self._stays:
            self._path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete the marker."""
        self._path.unlink()


@contextmanager
def restore_marker(data_dir: Path, key_files: Collection[Path], backup: Path) -> Iterator[RestoreMark]:
    """Put the marker around all steps of a restore, in a data folder whose lock the caller holds.

    key_files: the files that a first start makes.

    Raises OSError: when the marker cannot be written.
    """
    mark = RestoreMark(data_dir, backup)
    if not any(path.exists() for path in key_files):
        mark.set()
    try:
        yield mark
    except BaseException:
        mark.withdraw()
        raise
    mark.clear()


async def restore_backup(
    folder: Path,
    manifest: BackupManifest,
    installation: Installation,
    dsns: Dsns,
    mark: RestoreMark,
    *,
    content_key: str | None,
    force: bool,
    report: Callable[[str], None],
) -> None:
    """Restore a backup that was checked, into a data folder whose lock the caller holds.

    Blocks its event loop: a process of its own does nothing else.
    dsns: the owner restores; where gateways have another role, that role gets its rights.
    mark: the marker of `restore_marker`.
    content_key: the keys of LORIKEET_CONTENT_KEY; None: those in `content.key`, of the backup or the data folder.
    force: True: the present database and keys are replaced. They are put back if the restore fails before keys are
    written.
    report: called with a sentence at each step.

    Raises BackupError: when keys or a database are in the way and `force` is False, the backup cannot be restored, or
    the content keys open nothing of it while a database would be replaced.
    Raises OSError: when a file cannot be written.
    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    if not force and (there := key_in_the_way(folder, installation)) is not None:
        raise BackupError(f"{there} exists; --force replaces what is there")
    is_replaced = await has_former(dsns.owner) or not await is_empty(dsns.owner)
    if not force and is_replaced:
        raise BackupError("the database is not empty; --force replaces what it holds")
    mark.set()  # for gateways that start from now on
    with ExitStack() as stack:
        await _wait_until_unused(dsns.owner)
        stack.enter_context(journals_owned(installation.journal_dir))
        mark.keep()
        report("adapters")
        _restore_adapters(folder, manifest, installation)
        try:
            report("database")
            await _restore_database(folder, manifest, dsns, is_forced=force)
            await _try_keys(folder, installation, dsns, content_key, is_replaced=is_replaced, report=report)
            report("files")
            restore_pieces(folder, installation.pieces, await named_parts(dsns.owner))
            report("journals and keys")
            add_journals(folder, installation.journal_dir)
            await asyncio.sleep(0)  # an interruption during what blocks is raised here, while it can be undone
        except BaseException as error:
            if not is_replaced:
                raise
            await _finish(put_back(dsns.owner))
            mark.let_go()
            if isinstance(error, BackupError):
                raise BackupError(f"{error}; the database that was there is as it was") from None
            raise
        await _finish(drop_former(dsns.owner))
        for path in installation.key_files:
            if (folder / KEYS / path.name).is_file():
                write_private(path, (folder / KEYS / path.name).read_text())


async def _finish(work: Coroutine[None, None, None]) -> None:
    """Run work to its end, even if this task is cancelled before or meanwhile. The cancellation is swallowed.

    Ctrl-C during a step that blocks cancels the next wait, which may be that of putting the database back.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    task.result()


async def _restore_database(folder: Path, manifest: BackupManifest, dsns: Dsns, *, is_forced: bool) -> None:
    """Restore the database at this version's schema, in place of the one that is there.

    is_forced: True: what is there is set aside.
    """
    try:
        restore(dsns.owner, folder / DATABASE, first=SET_ASIDE if is_forced else "")
    except DumpFailed as error:
        raise BackupError(str(error)) from None
    _compare_contents(manifest.contents, await content_digests(dsns.owner))
    await bring_up_to_date(dsns)
    await cancel_batches(dsns.owner)


async def _try_keys(
    folder: Path,
    installation: Installation,
    dsns: Dsns,
    content_key: str | None,
    *,
    is_replaced: bool,
    report: Callable[[str], None],
) -> None:
    """Open encrypted values of the restored database with the keys that it will have.

    Raises BackupError: when a key is wrong; or none of the values can be opened and `is_replaced` is True.
    """
    files = (folder / KEYS / CONTENT_KEY_NAME, installation.data_dir / CONTENT_KEY_NAME)
    try:
        cipher = read_cipher(content_key, files)
    except BadContentKey as error:
        raise BackupError(f"the content key is wrong: {error}") from None
    async with await Database.connect(dsns.owner) as database, database.acquire() as conn:
        opened = await open_newest(conn, cipher)
    if not opened.wrong:
        return
    keys = "there is no content key" if cipher is None else "the content keys do not fit"
    line = f"{keys}: {len(opened.wrong)} of {opened.num_values} encrypted values cannot be opened"
    if is_replaced and len(opened.wrong) == opened.num_values:
        raise BackupError(f"{line}; set LORIKEET_CONTENT_KEY to the keys of the backup's installation")
    report(f"warning: {line}")


async def bring_up_to_date(dsns: Dsns) -> None:
    """Migrate a restored database to this version, and give the gateways' role its rights, which are in no backup.

    Raises BackupError: when the database's migrations are not those that this version has under the same names.
    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    try:
        await migrate(dsns.owner, runtime=await runtime_role(dsns))
    except MigrationRefused as error:
        raise BackupError(str(error)) from None


async def _wait_until_unused(dsn: str) -> None:
    """Wait until no gateway is connected: one that was stopped just now may still be for a moment.

    Raises BackupError: when gateways stay connected.
    """
    deadline = time.monotonic() + LAST_SESSIONS_S
    while (sessions := await num_sessions(dsn)) > 0:
        if time.monotonic() > deadline:
            raise BackupError(f"gateways have {sessions} connections to the database: stop them first")
        await asyncio.sleep(0.1)


def _restore_adapters(folder: Path, manifest: BackupManifest, installation: Installation) -> None:
    store = installation.store
    for digest in manifest.digests:
        try:
            found = store.add(folder / ADAPTERS / digest)
        except AdapterRejected as error:
            raise BackupError(f"the adapter {digest} is refused: {error}") from None
        if found != digest:
            raise BackupError(f"the folder of the adapter {digest} holds the content of another adapter, {found}")


def _compare_contents(expected: Contents, found: Contents) -> None:
    for name, value in msgspec.structs.asdict(expected).items():
        if getattr(found, name) != value:
            raise BackupError(
                f"the restored database differs from the backup: {name} is {getattr(found, name)}, not {value}"
            )
