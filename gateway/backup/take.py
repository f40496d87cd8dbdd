"""Takes a backup while everything runs, in the order of steps that the package's docstring gives."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import msgspec

from adapters.store import AdapterStore
from gateway.backup.files import (
    copy_adapters,
    copy_pieces,
    make_folder,
    removed_on_failure,
    sync_folders,
    write_durably,
)
from gateway.backup.journals import copy_journals
from gateway.backup.manifest import (
    DATABASE,
    FORMAT_VERSION,
    KEYS,
    MANIFEST,
    BackupError,
    BackupManifest,
    hash_file,
)
from gateway.db.schema_files import schema_names
from gateway.files.pieces import Pieces
from gateway.postgres.dump import DumpFailed, Snapshot, database_snapshot, dump
from gateway.support.process import write_private


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """The places of the parts of one installation."""

    data_dir: Path
    store: AdapterStore
    pieces: Pieces
    journal_dir: Path
    key_files: tuple[Path, ...]
    """Files with the operator's key and other secrets; a backup copies those that exist."""


async def take_backup(
    installation: Installation, dsn: str, folder: Path, *, version: str, report: Callable[[str], None]
) -> BackupManifest:
    """Back everything up into a folder that does not exist or is empty; without its manifest it is no backup.

    Blocks its event loop: a process of its own does nothing else.

    version: the version of Lorikeet that the manifest names. report: called with a sentence at each step.

    Raises BackupError: when the folder is not empty, or something of the installation is missing.
    Raises OSError: when a file cannot be read or written.
    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    _check_folder(folder)
    with removed_on_failure(folder):
        return await _take(installation, dsn, folder, version=version, report=report)


async def _take(
    installation: Installation, dsn: str, folder: Path, *, version: str, report: Callable[[str], None]
) -> BackupManifest:
    store = installation.store
    report("journals")
    copy_journals(installation.journal_dir, folder)
    report("adapters")
    copy_adapters(store, store.digests(), folder)
    report("files")
    copy_pieces(installation.pieces, folder)
    report("database")
    async with database_snapshot(dsn) as moment:
        _dump(moment, dsn, folder)
    missing = copy_adapters(store, moment.contents.digests, folder)
    copy_pieces(installation.pieces, folder)
    _copy_keys(installation, folder)
    report("digests")
    manifest = BackupManifest(
        format_version=FORMAT_VERSION,
        version=version,
        made_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        contents=moment.contents,
        missing_digests=tuple(missing),
        files=tuple([hash_file(folder, path) for path in _files(folder)]),
    )
    sync_folders(folder)
    write_private(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode())
    return manifest


def _dump(moment: Snapshot, dsn: str, folder: Path) -> None:
    if moment.contents.migrations != schema_names():
        raise BackupError("the database's schema is not this version's: run `lorikeet migrate` first")
    try:
        dump(dsn, moment.id, folder / DATABASE)
    except DumpFailed as error:
        raise BackupError(str(error)) from None
    (folder / DATABASE).chmod(0o600)


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise BackupError(f"{folder} is not a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise BackupError(f"{folder} is not empty: name a new folder for each backup")


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _copy_keys(installation: Installation, folder: Path) -> None:
    for path in installation.key_files:
        if path.is_file():
            with path.open("rb") as file:
                write_durably(file, make_folder(folder / KEYS) / path.name)
