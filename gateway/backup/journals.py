"""Journals in a backup: copied while gateways write and take over from each other, and put back beside present ones.

Replay writes nothing to the ledger twice, so a journal may be there more than once; a record that is in none is lost.
Knows nothing of the records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from gateway.backup.files import make_folder, sync_folders, write_durably
from gateway.backup.manifest import JOURNAL, BackupError
from gateway.metering.folder import LOCK_NAME, SPENT_SUFFIX, JournalFolder, folders_in

MAX_TRIES = 100


def copy_journals(root: Path, backup: Path, *, with_spent: bool = False) -> None:
    """Copy every journal under root, living ones included. A root that does not exist has none.

    with_spent: True: segments whose usage the ledger has are copied too. There may be thousands, so they are opened one
    at a time, after the others: a segment that becomes spent meanwhile is copied twice, and billed once.

    Raises BackupError: when the journals change faster than they can be copied.
    Raises OSError: when a file cannot be written.
    """
    for _ in range(MAX_TRIES):
        with ExitStack() as stack:
            opened = _open_all(root, stack)
            if all(path in opened and _is_same(path, opened[path]) for path in _files(root, is_spent=False)):
                for path, file in opened.items():
                    write_durably(file, make_folder(backup / JOURNAL / path.parent.name) / path.name)
                break
    else:
        raise BackupError(f"the journals in {root} change faster than they can be copied")
    for path in _files(root, is_spent=True) if with_spent else ():
        try:
            file = path.open("rb")
        except FileNotFoundError:  # the oldest are deleted
            continue
        with file:
            write_durably(file, make_folder(backup / JOURNAL / path.parent.name) / path.name)


def _open_all(root: Path, stack: ExitStack) -> dict[Path, IO[bytes]]:
    """Open all segments of a folder that may hold what the ledger lacks, so that they stay readable once removed.

    A segment is removed once a newer one, perhaps of another journal, has its records. If a listed segment is gone
    before it can be opened, its records are in a segment that is opened, or in one that did not exist when files were
    listed; the caller lists the files again to find such a one.
    """
    opened: dict[Path, IO[bytes]] = {}
    for path in _files(root, is_spent=False):
        try:
            opened[path] = stack.enter_context(path.open("rb"))
        except FileNotFoundError:
            continue
    return opened


def _files(root: Path, *, is_spent: bool) -> list[Path]:
    """Return the segments of all folders in root. is_spent: True: those that are spent; False: all others."""
    folders = folders_in(root) if root.is_dir() else []
    files = sorted(path for folder in folders for path in folder.iterdir() if path.name != LOCK_NAME)
    return [path for path in files if (path.suffix == SPENT_SUFFIX) == is_spent]


def _is_same(path: Path, file: IO[bytes]) -> bool:
    """Tell whether a file that was just listed is the one that is open.

    The names of segments are used again in a folder that was emptied.
    """
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


@contextmanager
def journals_owned(root: Path) -> Iterator[None]:
    """Own every journal in a folder, so that no gateway of this machine writes to one of them.

    Raises BackupError: when a gateway writes to a journal.
    Raises OSError: when a folder cannot be read or locked.
    """
    with ExitStack() as stack:
        for path in folders_in(root) if root.is_dir() else []:
            folder = JournalFolder.try_claim(path)
            if folder is None:
                raise BackupError(f"a gateway writes to the journal {path}: stop it first")
            stack.callback(folder.release)
        yield


def add_journals(backup: Path, root: Path) -> None:
    """Put a backup's journals into folders of their own.

    Journals that are there stay as they are: they may be all that is left of usage since the backup. If they belong to
    another database, gateways leave them alone.
    """
    taken = [int(path.name) for path in root.iterdir() if path.name.isdecimal()] if root.is_dir() else []
    sources = sorted((backup / JOURNAL).iterdir()) if (backup / JOURNAL).is_dir() else []
    for number, source in enumerate(sources, max(taken, default=-1) + 1):
        target = make_folder(root / str(number))
        for path in sorted(source.iterdir()):
            with path.open("rb") as file:
                write_durably(file, target / path.name)
    if sources:
        sync_folders(root)
