"""`lorikeet backup` and `lorikeet restore`: all data of an installation, to a folder and back."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.version import VERSION
from gateway.cli.errors import EXIT_FAILED, EXIT_OK, CommandFailed, ServerUnreachable
from gateway.cli.output import print_result
from gateway.cli.verbs import add_command
from gateway.settings import Settings, load_settings

if TYPE_CHECKING:
    from gateway.backup.manifest import BackupManifest
    from gateway.backup.take import Installation
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet backup` and `lorikeet restore` to the command line."""
    backup = add_command(
        verbs,
        "backup",
        _backup,
        "Back up the database, the journals and the adapter store into a new folder, while "
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
    restore = add_command(
        verbs,
        "restore",
        _restore,
        "Restore a backup into the data folder, and into DATABASE_URL if that is set; or an archive, to a "
        "moment, into the data folder. The server and all gateways must be stopped. Usage in restored journals, "
        "and in journals that are already in the data folder, is billed at the next start, or at once where an archive "
        "is restored.",
    )
    restore.add_argument("folder", type=Path, metavar="FOLDER", help="folder of a complete backup, or of an archive")
    restore.add_argument("--force", action="store_true", help="replace the existing database and keys")
    restore.add_argument(
        "--at",
        type=parse_moment,
        metavar="TIME",
        help="moment to restore from an archive, e.g. 2026-11-28T16:04:05Z; without a zone it is in UTC (default: the "
        "last one that it has)",
    )


def _backup(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    if arguments.verify:
        return _verify(arguments)
    from gateway.backup.take import take_backup
    from gateway.cli.server.processes import owner_and_gateway_dsns

    settings = load_settings(environ)
    dsn = owner_and_gateway_dsns(settings).owner
    with as_command_failures():
        backup = take_backup(installation_of(settings), dsn, arguments.folder, version=VERSION, report=print_progress)
        manifest = asyncio.run(backup)
    missing = "".join(f"\nmissing in the store: adapter {digest}" for digest in manifest.missing_digests)
    text = f"backed up {_summary(manifest)} to {arguments.folder}{missing}"
    return print_result(arguments, _manifest_fields(manifest), text)


def _verify(arguments: argparse.Namespace) -> int:
    from gateway.backup.restore import check_backup

    with as_command_failures():
        manifest = check_backup(arguments.folder)
    return print_result(arguments, _manifest_fields(manifest), f"{arguments.folder} is whole: {_summary(manifest)}")


def _restore(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.backup.restore import check_backup, restore_backup, restore_marker
    from gateway.cli.server.processes import owner_and_gateway_dsns
    from gateway.db.roles import Dsns
    from gateway.postgres.archive import is_archive
    from gateway.postgres.embedded import EmbeddedPostgres
    from gateway.serve.lock import data_folder_lock
    from gateway.support.accounts import other_owner

    settings = load_settings(environ)
    if is_archive(arguments.folder):
        return _rewind(arguments, settings)
    if arguments.at is not None:
        raise CommandFailed(f"{arguments.folder} is no archive: only an archive can be restored to a moment")
    folder, lock = arguments.folder, data_folder_lock(settings.data_dir, settings.base_url)
    marker = restore_marker(settings.data_dir, key_files(settings), folder)
    with as_command_failures(), lock, _files_given_to_owners(settings), marker as mark:
        manifest = check_backup(folder)
        installation = installation_of(settings)
        postgres = None
        if settings.database_url is None:
            owner = other_owner(settings.data_dir)
            owner = owner if owner is not None and owner.is_known else None  # initdb asks for the user's name
            postgres = EmbeddedPostgres(settings.data_dir, report=print_progress, owner=owner)
        try:
            if postgres is None:
                dsns = owner_and_gateway_dsns(settings)
            else:
                dsn = _start(postgres)
                dsns = Dsns(dsn, dsn)  # the gateways' role is made, with its rights, by the server's next start
            asyncio.run(
                restore_backup(
                    folder,
                    manifest,
                    installation,
                    dsns,
                    mark,
                    content_key=settings.content_key,
                    force=arguments.force,
                    report=print_progress,
                )
            )
        finally:
            if postgres is not None:
                postgres.stop()
    return print_result(arguments, _manifest_fields(manifest), f"restored {_summary(manifest)} to {settings.data_dir}")


def _rewind(arguments: argparse.Namespace, settings: Settings) -> int:
    import msgspec

    from gateway.backup.restore import restore_marker
    from gateway.backup.rewind import rewind
    from gateway.serve.lock import data_folder_lock

    if settings.database_url is not None:
        raise CommandFailed(
            "an archive is restored into the embedded database: restore that of DATABASE_URL with PostgreSQL's own "
            "tools, then run `lorikeet journal replay`"
        )
    folder, lock = arguments.folder, data_folder_lock(settings.data_dir, settings.base_url)
    marker = restore_marker(settings.data_dir, key_files(settings), folder)
    with as_command_failures(), lock, _files_given_to_owners(settings), marker as mark:
        rewound = asyncio.run(
            rewind(folder, arguments.at, installation_of(settings), mark, force=arguments.force, report=print_progress)
        )
    aside = "" if rewound.set_aside is None else f"\nthe database that was there is in {rewound.set_aside}"
    refused = "".join(f"\nrefused: {line}" for line in rewound.refused)
    text = (
        f"restored the database as of {rewound.restored_to}; {rewound.num_attempts} requests in the journals, "
        f"{rewound.num_billed_again} of them billed now; the ledger differs from the journals by "
        f"{rewound.difference_tokens} tokens{refused}{aside}"
    )
    print_result(arguments, msgspec.to_builtins(rewound), text)
    return EXIT_FAILED if rewound.refused or rewound.difference_tokens else EXIT_OK


@contextmanager
def _files_given_to_owners(settings: Settings) -> Iterator[None]:
    """Give root's files in an installation's folders to the owners of the folders, when the `with` block ends."""
    from gateway.support.accounts import give_to_owner

    try:
        yield
    finally:
        for place in (settings.data_dir, settings.engine.adapter_store, settings.file_store):
            if "://" not in str(place) and Path(place).is_dir():
                give_to_owner(Path(place))


def parse_moment(text: str) -> datetime.datetime:
    """Return a moment in the format of RFC 3339; without a zone it is in UTC."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a time such as 2026-11-28T16:04:05Z, not {text!r}") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)


@contextmanager
def as_command_failures() -> Iterator[None]:
    """Turn the errors that a backup or a restore may raise within the `with` block into CommandFailed, in one line.

    Raises ServerUnreachable: when the database does not answer.
    """
    from adapters.errors import StoreFailure
    from gateway.backup.manifest import BackupError
    from gateway.db.pool import UNAVAILABLE, UNUSABLE, in_words
    from gateway.postgres.archive import ArchiveError
    from gateway.postgres.embedded import EmbeddedPostgresError
    from gateway.postgres.placement import PlacementError
    from gateway.serve.lock import DataFolderInUse, DataFolderUnusable

    try:
        yield
    except (
        ArchiveError,
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


def installation_of(settings: Settings) -> Installation:
    """Return the places of an installation that a backup is taken of."""
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
        key_files=key_files(settings),
    )


def key_files(settings: Settings) -> tuple[Path, ...]:
    """Return the files of the installation's keys."""
    return (
        settings.operator_key_path,
        settings.demo_env_path,
        settings.content_key_path,
        settings.admin_login_path,
    )


def _start(postgres: Any) -> str:
    dsn: str = postgres.start()
    return dsn


def _manifest_fields(manifest: BackupManifest) -> dict[str, Any]:
    import msgspec

    shown: dict[str, Any] = msgspec.to_builtins(manifest)
    return shown | {"files": len(manifest.files), "num_bytes": manifest.num_bytes}


def _summary(manifest: BackupManifest) -> str:
    holds = manifest.contents
    return (
        f"{holds.num_ledger_rows} rows of the ledger, {holds.num_api_keys} keys, {len(manifest.digests)} adapters "
        f"({manifest.num_bytes} bytes)"
    )


def print_progress(line: str) -> None:
    """Write a line of progress to standard error."""
    print(f"lorikeet: {line}", file=sys.stderr)
