"""Restores an archive to a moment, in place of the embedded database of a data folder.

Journals, adapters and files of the data folder stay as they are. The journals bill what the ledger of that moment
lacks, as far back as they reach. The database that was there is set aside.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from pathlib import Path

import msgspec

from gateway.backup.journals import journals_owned
from gateway.backup.manifest import KEYS, BackupError
from gateway.backup.restore import RestoreMark, bring_up_to_date
from gateway.backup.take import Installation
from gateway.db.pool import Database
from gateway.db.roles import Dsns
from gateway.metering.rebilling import RebilledUsage, bill_again, difference_tokens, held_usage
from gateway.postgres.archive import ArchiveError
from gateway.postgres.dump import forget_what_ran, last_change
from gateway.postgres.embedded import EmbeddedPostgresError
from gateway.postgres.placement import PlacementError, home_of
from gateway.postgres.point_in_time import EMBEDDED, RecoveredPostgres, as_of, checked_base
from gateway.support.accounts import as_root, other_owner
from gateway.support.process import write_private

FAILURES = (ArchiveError, BackupError, EmbeddedPostgresError, PlacementError)
"""The errors of a restore whose messages are shown as they are."""


class Rewound(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a restore to a moment."""

    restored_to: str | None
    """The time of the last change in the restored database."""
    num_attempts: int
    """The number of attempts in the journals."""
    num_billed_again: int
    """The number of attempts that journals held and the restored ledger lacked, billed again."""
    refused: list[str]
    """A line for each request whose usage the database refused."""
    difference_tokens: int
    """Tokens by which the ledger differs from the journals now."""
    set_aside: str | None
    """The folder of the database that was there."""


async def rewind(
    archive: Path,
    at: datetime.datetime | None,
    installation: Installation,
    mark: RestoreMark,
    *,
    force: bool,
    report: Callable[[str], None],
) -> Rewound:
    """Restore an archive into a data folder whose lock the caller holds.

    at: None: the last moment that the archive has.
    force: True: a database that is there already is set aside. It is put back if the restore fails.
    report: called with a sentence at each step.

    Blocks its event loop: a process of its own does nothing else.

    Raises ArchiveError: when the archive is not whole, or ends before the moment.
    Raises BackupError: when a database is there and `force` is False, or a gateway writes to a journal.
    Raises EmbeddedPostgresError or PlacementError: when the restored database does not start.
    Raises OSError: when a file cannot be written.
    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    cluster = home_of(installation.data_dir) / "cluster"
    if cluster.exists() and not force:
        raise BackupError(f"{cluster} holds a database; --force sets it aside")
    base = checked_base(archive, at)
    with journals_owned(installation.journal_dir):
        mark.set()
        mark.keep()
        owner = other_owner(cluster if cluster.exists() else installation.data_dir)
        set_aside = _set_aside(cluster) if cluster.exists() else None
        server = RecoveredPostgres(installation.data_dir, report, owner)
        try:
            _restore_keys(archive, installation)
            report(f"database {as_of(at)}")
            dsn = server.start(archive, at, EMBEDDED, base)
            restored_to = await last_change(dsn)
            await bring_up_to_date(Dsns(dsn, dsn))  # gateways' role gets its rights by the server's next start
            await forget_what_ran(dsn)
            report("journals")
            billed, difference = await replay_journals(dsn, installation.journal_dir)
            await server.take_password()
            server.stop()
        except BaseException as error:
            server.stop()
            if set_aside is None:
                raise
            server.clean_up()
            failed = _put_back(set_aside, cluster)
            mark.let_go()
            left = "" if failed is None else f"; what the restore made of the archive is in {failed}"
            line = f"the restore failed, and the database that was there is back in {cluster}{left}"
            if isinstance(error, FAILURES):
                raise BackupError(f"{error}; {line}") from None
            report(line)
            raise
        server.clean_up()
    return Rewound(
        restored_to=restored_to,
        num_attempts=billed.num_attempts,
        num_billed_again=billed.num_missing,
        refused=billed.refused,
        difference_tokens=difference,
        set_aside=None if set_aside is None else str(set_aside),
    )


async def replay_journals(dsn: str, journals: Path) -> tuple[RebilledUsage, int]:
    """Bill all that journals hold and the ledger lacks.

    Return what was billed, and the number of tokens by which ledger and journals differ afterwards.

    journals: a folder of journals that nobody writes to.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    async with await Database.connect(dsn) as database:
        async with database.acquire() as conn:
            installation_id = await conn.fetchval("SELECT id FROM installation")
        held = await asyncio.to_thread(held_usage, journals, installation_id)
        billed = await bill_again(database, held.ended)
        return billed, await difference_tokens(database, held.ended)


def _set_aside(cluster: Path) -> Path:
    aside = cluster.with_name(f"cluster.until-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S.%fZ}")
    with as_root():
        cluster.rename(aside)
    return aside


def _put_back(aside: Path, cluster: Path) -> Path | None:
    """Move a database that was set aside back. Return the folder to which the one in its place was moved, if any."""
    failed = aside.with_name(aside.name.replace("cluster.until-", "cluster.failed-"))
    with as_root():
        has_failed = cluster.exists()
        if has_failed:
            cluster.rename(failed)
        aside.rename(cluster)
    return failed if has_failed else None


def _restore_keys(archive: Path, installation: Installation) -> None:
    """Put the keys that lie beside the archive into a data folder that has none."""
    for path in installation.key_files:
        if not path.exists() and (archive / KEYS / path.name).is_file():
            write_private(path, (archive / KEYS / path.name).read_text())
