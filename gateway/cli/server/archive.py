"""`lorikeet archive`, `lorikeet drill restore` and `lorikeet journal replay`: restores to a moment, and their trial."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.errors import EXIT_FAILED, EXIT_OK, CommandFailed
from gateway.cli.output import print_json, print_table
from gateway.cli.server.backup import as_command_failures, installation_of, key_files, parse_moment, print_progress
from gateway.cli.verbs import add_command, add_group, add_verb
from gateway.settings import load_settings

if TYPE_CHECKING:
    from gateway.backup.drill import DrillReport
    from gateway.backup.take import Installation
    from gateway.cli.output import Verbs

MAX_BASE_HOURS = 24 * 366
MAX_BASES = 1000


def register(verbs: Verbs) -> None:
    """Add `lorikeet archive`, `lorikeet drill` and `lorikeet journal` to the command line."""
    archive = add_command(
        verbs,
        "archive",
        _archive,
        "Archive the database without end: a base backup at once and each day, and PostgreSQL's "
        "write-ahead log as it is written, a second behind at most. `lorikeet restore --at` restores any moment "
        "since the oldest base backup. Run this beside the server, and keep the folder on another machine's disk. "
        "The keys of the data folder are copied too; adapters, files and journals are not.",
        has_json=False,
    )
    archive.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the archive")
    archive.add_argument(
        "--base-every-hours",
        type=_hours,
        default=24.0,
        metavar="HOURS",
        help="hours between two base backups (default: 24)",
    )
    archive.add_argument(
        "--bases",
        type=_num_bases,
        default=7,
        metavar="N",
        help="number of base backups that stay; older ones are deleted with the log from before them (default: 7)",
    )
    restore = add_verb(
        add_group(verbs, "drill", "Try, without changing anything, what an outage would need."),
        "restore",
        _drill,
        "restore a backup or an archive into a scratch folder, and check it",
        "Restore a backup or an archive into a scratch folder with a database of its own, and check "
        "what it holds: the ledger against the journals, adapters against their digests, encrypted content against "
        "the keys, the audit log's chain. The running server is not touched. Exits with 1 if a check fails.",
    )
    restore.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="folder of a backup, folder with backups, of which the newest is taken, or folder of an archive",
    )
    restore.add_argument(
        "--at",
        type=parse_moment,
        metavar="TIME",
        help="moment to restore from an archive, e.g. 2026-11-28T16:04:05Z; without a zone it is in UTC (default: the "
        "last one that it has)",
    )
    restore.add_argument(
        "--in",
        dest="place",
        type=Path,
        metavar="FOLDER",
        help="folder with room for the scratch folder (default: the system's folder for temporary files)",
    )
    replay = add_verb(
        add_group(verbs, "journal", "Act on the journals of this machine's gateways."),
        "replay",
        _replay,
        "bill all usage that journals hold and the ledger lacks",
        "Bill the usage that the journals of this machine hold and the ledger lacks, after DATABASE_URL "
        "was restored to an earlier moment. Journals hold usage that the ledger once had up to "
        "LORIKEET_JOURNAL_SPENT_BYTES. Rows of the ledger stay as they are, so this may run at any time, and again.",
    )
    replay.add_argument(
        "--cancel-work",
        action="store_true",
        help="cancel the batches, and delete the background responses, that have not ended by the restored database: "
        "some may have ended since. For the first machine, before gateways start",
    )


def _archive(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.backup.files import copy_keys
    from gateway.cli.server.processes import owner_and_gateway_dsns
    from gateway.postgres.archive import keep_archive

    settings = load_settings(environ)
    dsn = owner_and_gateway_dsns(settings).owner
    stop = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: stop.set())
    with as_command_failures():
        keep_archive(
            dsn,
            arguments.folder,
            base_every_s=arguments.base_every_hours * 3600,
            num_bases=arguments.bases,
            report=print_progress,
            stop=stop,
            on_poll=lambda: copy_keys(key_files(settings), arguments.folder),
        )
    return EXIT_OK


def _drill(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    import msgspec

    from gateway.backup.drill import Drill, newest_backup
    from gateway.postgres.archive import is_archive
    from gateway.postgres.point_in_time import EMBEDDED

    settings = load_settings(environ)
    with as_command_failures():
        scratch = Path(tempfile.mkdtemp(prefix="lorikeet-drill-", dir=arguments.place))
        scratch.chmod(0o711)  # the database has a user of its own where this one is root
        try:
            drill = Drill(scratch, settings.content_key, print_progress)
            if is_archive(arguments.folder):
                dsn = settings.database_owner_url or settings.database_url or EMBEDDED
                trial = drill.try_archive(arguments.folder, arguments.at, dsn, installation_of(settings))
            elif arguments.at is not None:
                raise CommandFailed(f"{arguments.folder} is no archive: only an archive can be restored to a moment")
            else:
                trial = drill.try_backup(newest_backup(arguments.folder), lambda at: _scratch_places(environ, at))
            found = asyncio.run(trial)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    if arguments.json:
        print_json(msgspec.to_builtins(found) | {"is_good": found.is_good})
    else:
        _show(found)
    return EXIT_OK if found.is_good else EXIT_FAILED


def _show(found: DrillReport) -> None:
    print_table(
        ("CHECK", "RESULT", "WHAT"),
        [(each.check, "good" if each.is_good else "WRONG", each.what) for each in found.findings],
    )
    moment_of = f" as of {found.restored_to}" if found.restored_to is not None else ""
    print(
        f"{found.source}{moment_of}: database back after {found.database_s} s, checked in {found.checked_s} s, "
        f"{found.num_ledger_rows} rows of the ledger"
    )


def _replay(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.backup.journals import copy_journals
    from gateway.backup.manifest import JOURNAL
    from gateway.backup.rewind import replay_journals
    from gateway.cli.server.processes import owner_and_gateway_dsns
    from gateway.postgres.dump import forget_what_ran

    settings = load_settings(environ)
    dsn = owner_and_gateway_dsns(settings).runtime
    with as_command_failures(), tempfile.TemporaryDirectory(prefix="lorikeet-journals-") as folder:
        if arguments.cancel_work:
            asyncio.run(forget_what_ran(dsn))
        copy_journals(settings.journal_dir, Path(folder), with_spent=True)
        billed, difference = asyncio.run(replay_journals(dsn, Path(folder) / JOURNAL))
    if arguments.json:
        print_json(
            {
                "num_attempts": billed.num_attempts,
                "num_billed_again": billed.num_missing,
                "refused": billed.refused,
                "difference_tokens": difference,
            }
        )
    else:
        for line in billed.refused:
            print(f"refused: {line}")
        print(
            f"{billed.num_attempts} requests in the journals, {billed.num_missing} of them billed now; the ledger "
            f"differs from the journals by {difference} tokens"
        )
    return EXIT_FAILED if difference or billed.refused else EXIT_OK


def _scratch_places(environ: Mapping[str, str], data_dir: Path) -> Installation:
    """Return the places of an installation that has everything in one folder, whatever the environment says."""
    names = {"DATABASE_URL", "LORIKEET_DATABASE_OWNER_URL", "LORIKEET_ADAPTER_STORE", "LORIKEET_FILE_STORE"}
    names |= {f"{name}_FILE" for name in names}
    kept = {name: value for name, value in environ.items() if name not in names}
    return installation_of(load_settings(kept | {"LORIKEET_DATA_DIR": str(data_dir)}))


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours <= MAX_BASE_HOURS:
        raise argparse.ArgumentTypeError(f"must be a number of hours up to {MAX_BASE_HOURS}, not {text!r}")
    return hours


def _num_bases(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_BASES:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {MAX_BASES}, not {text!r}")
    return int(text)
