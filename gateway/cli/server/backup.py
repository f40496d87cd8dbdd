"""`lorikeet backup` and `lorikeet restore`: all data of an installation, to a folder and back."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.version import VERSION
from gateway.cli.errors import CommandFailed, ServerUnreachable
from gateway.cli.output import add_json_flag, print_result
from gateway.settings import Settings, load_settings

if TYPE_CHECKING:
    from gateway.backup.manifest import BackupManifest
    from gateway.backup.take import Installation
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet backup` and `lorikeet restore` to the command line."""
    backup = verbs.add_parser(
        "backup",
        help="back up database, journals and adapters",
        description="Back up the database, the journals and the adapter store into a new folder, while "
        "everything runs. The backup holds secrets, so protect the folder like the data folder. "
        "The backup contains encrypted stored completions and the data folder's content.key that "
        "decrypts stored completions, but no replies kept for an Idempotency-Key. Gateways on "
        "other machines have journals of their own: run the backup on each machine.",
    )
    backup.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="new or empty folder for the backup; with --verify, folder of an existing backup",
    )
    backup.add_argument(
        "--verify",
        action="store_true",
        help="take no backup, but read every file of an existing backup and check the SHA-256 of each",
    )
    add_json_flag(backup)
    backup.set_defaults(run=_backup)
    restore = verbs.add_parser(
        "restore",
        help="restore a backup",
        description="Restore a backup into the data folder, and into DATABASE_URL if that is set. The server "
        "and all gateways must be stopped. Usage in restored journals, and in journals that are "
        "already in the data folder, is billed at the next start.",
    )
    restore.add_argument("folder", type=Path, metavar="FOLDER", help="folder of a complete backup")
    restore.add_argument("--force", action="store_true", help="replace the existing database and keys")
    add_json_flag(restore)
    restore.set_defaults(run=_restore)


def _backup(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    if arguments.verify:
        return _verify(arguments)
    from gateway.backup.take import take_backup
    from gateway.cli.server.processes import both_dsns

    settings = load_settings(environ)
    dsn = both_dsns(settings).owner
    with _failures():
        backup = take_backup(_installation(settings), dsn, arguments.folder, version=VERSION, report=_report)
        manifest = asyncio.run(backup)
    missing = "".join(f"\nmissing in the store: adapter {digest}" for digest in manifest.missing_digests)
    text = f"backed up {_summary(manifest)} to {arguments.folder}{missing}"
    return print_result(arguments, _shown(manifest), text)


def _verify(arguments: argparse.Namespace) -> int:
    from gateway.backup.restore import check_backup

    with _failures():
        manifest = check_backup(arguments.folder)
    return print_result(arguments, _shown(manifest), f"{arguments.folder} is whole: {_summary(manifest)}")


def _restore(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.backup.restore import check_backup, marked, restore_backup
    from gateway.cli.server.processes import both_dsns
    from gateway.db.roles import Dsns
    from gateway.postgres.embedded import EmbeddedPostgres
    from gateway.serve.lock import data_folder_lock

    settings = load_settings(environ)
    folder, lock = arguments.folder, data_folder_lock(settings.data_dir, settings.base_url)
    with _failures(), lock, marked(settings.data_dir, _key_files(settings), folder) as mark:
        manifest = check_backup(folder)
        installation = _installation(settings)
        postgres = EmbeddedPostgres(settings.data_dir, report=_report) if settings.database_url is None else None
        try:
            if postgres is None:
                dsns = both_dsns(settings)
            else:
                owner = _started(postgres)
                dsns = Dsns(owner, owner)  # the gateways' role is made, with its rights, by the server's next start
            asyncio.run(
                restore_backup(folder, manifest, installation, dsns, mark, force=arguments.force, report=_report)
            )
        finally:
            if postgres is not None:
                postgres.stop()
    return print_result(arguments, _shown(manifest), f"restored {_summary(manifest)} to {settings.data_dir}")


@contextmanager
def _failures() -> Iterator[None]:
    """Turn what can go wrong into one line."""
    from adapters.errors import StoreFailure
    from gateway.backup.manifest import BackupError
    from gateway.db.pool import UNAVAILABLE, UNUSABLE, in_words
    from gateway.postgres.embedded import EmbeddedPostgresError
    from gateway.postgres.placement import PlacementError
    from gateway.serve.lock import DataFolderInUse, DataFolderUnusable

    try:
        yield
    except (
        BackupError,
        DataFolderInUse,
        DataFolderUnusable,
        EmbeddedPostgresError,
        PlacementError,
        StoreFailure,
    ) as error:
        raise CommandFailed(str(error)) from None
    except UNUSABLE as error:
        raise CommandFailed(in_words(error)) from None
    except OSError as error:
        if error.filename is None:
            raise ServerUnreachable(in_words(error)) from None
        raise CommandFailed(f"{error.filename}: {error.strerror}") from None
    except UNAVAILABLE as error:
        raise ServerUnreachable(in_words(error)) from None


def _installation(settings: Settings) -> Installation:
    from adapters.stores import open_store
    from gateway.backup.take import Installation
    from gateway.files.stores import open_pieces

    return Installation(
        data_dir=settings.data_dir,
        store=open_store(
            settings.engine.adapter_store, settings.adapter_cache_dir, settings.engine.adapter_cache_bytes
        ),
        pieces=open_pieces(settings.file_store),
        journal_dir=settings.journal_dir,
        key_files=_key_files(settings),
    )


def _key_files(settings: Settings) -> tuple[Path, ...]:
    return (
        settings.operator_key_path,
        settings.demo_env_path,
        settings.content_key_path,
        settings.admin_login_path,
    )


def _started(postgres: Any) -> str:
    dsn: str = postgres.start()
    return dsn


def _shown(manifest: BackupManifest) -> dict[str, Any]:
    import msgspec

    shown: dict[str, Any] = msgspec.to_builtins(manifest)
    return shown | {"files": len(manifest.files), "num_bytes": manifest.num_bytes}


def _summary(manifest: BackupManifest) -> str:
    holds = manifest.contents
    return (
        f"{holds.num_ledger_rows} rows of the ledger, {holds.num_api_keys} keys, {len(manifest.digests)} adapters "
        f"({manifest.num_bytes} bytes)"
    )


def _report(line: str) -> None:
    print(f"lorikeet: {line}", file=sys.stderr)
