"""Journals of running gateways are copied so that nothing is missing, and put back so that nothing is overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gateway.backup.journals import add_journals, copy_journals, journals_owned
from gateway.backup.manifest import JOURNAL, BackupError
from gateway.metering.folder import JournalFolder
from tests.demo import REPOSITORY


class BusyJournals:
    """Two journal folders to which a thread writes the numbers from 0 on.

    A new segment begins with all that still matters, here the last 50 numbers; then older segments are removed, as in a
    gateway that takes requests. Each new segment is in the other folder, as if another gateway had taken over.
    """

    def __init__(self, root: Path) -> None:
        folders = [JournalFolder.try_claim(root / str(number)) for number in range(2)]
        self._folders = [folder for folder in folders if folder is not None]
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.written = 0
        """The number from which on nothing is written yet; smaller numbers are in the journal or no longer matter."""

    def __enter__(self) -> BusyJournals:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self._thread.join()
        for folder in self._folders:
            folder.release()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            old = [path for folder in self._folders for path in folder.segments()]
            self._folders.reverse()
            segment = self._folders[0].new_segment()
            for number in range(max(0, self.written - 50), self.written):
                segment.append(b"%d\n" % number)
            for path in old:
                path.unlink()
            for number in range(self.written, self.written + 20):
                segment.append(b"%d\n" % number)
                self.written = number + 1
            segment.close()


def test_journals_are_copied_whole_while_usage_moves_between_segments_and_folders(tmp_path: Path) -> None:
    with BusyJournals(tmp_path / "journal") as journals:
        for attempt in range(100):
            before = journals.written
            backup = tmp_path / f"backup-{attempt}"
            copy_journals(tmp_path / "journal", backup)
            segments = sorted((backup / JOURNAL).glob("*/*"))
            found = {int(line) for segment in segments for line in segment.read_bytes().split(b"\n")[:-1]}
            newest = max(found, default=-1)
            assert newest + 1 >= before, f"attempt {attempt} lost what was there when it began"
            assert found >= set(range(max(0, newest - 49), newest + 1)), f"attempt {attempt} lost some in between"
    assert journals.written > 1000


def test_an_installation_without_journals_is_backed_up_and_restored(tmp_path: Path) -> None:
    copy_journals(tmp_path / "nowhere", tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    with journals_owned(tmp_path / "nowhere"):
        add_journals(tmp_path / "backup", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def contents(root: Path) -> dict[str, str]:
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.journal")}
    return {name: path.read_text() for name, path in files.items()}


COPY_WITH_FEW_FILES = """
import resource, sys
from pathlib import Path
from gateway.backup.journals import copy_journals

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]), hard))
copy_journals(Path(sys.argv[1]), Path(sys.argv[2]), with_spent=True)
"""
"""Program for a new process, since all threads of a process share the limit."""


def test_spent_segments_are_copied_whatever_their_number(tmp_path: Path) -> None:
    num_files = 40
    for number in range(2 * num_files):
        write(tmp_path / f"root/0/{number:012}.spent", str(number))
    write(tmp_path / "root/0/000000009999.journal", "living")
    folders = [str(tmp_path / "root"), str(tmp_path / "backup")]
    subprocess.run([sys.executable, "-c", COPY_WITH_FEW_FILES, *folders, str(num_files)], cwd=REPOSITORY, check=True)
    copied = {path.read_text() for path in (tmp_path / "backup/journal/0").iterdir()}
    assert copied == {"living", *map(str, range(2 * num_files))}


def test_a_backup_folder_that_vanishes_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "root/0/000000000001.spent", "billed")
    (tmp_path / "backup").mkdir()
    descriptor = os.open(tmp_path / "backup", os.O_RDONLY)
    (tmp_path / "backup").rmdir()
    with pytest.raises(FileNotFoundError):
        copy_journals(tmp_path / "root", Path(f"/proc/self/fd/{descriptor}"), with_spent=True)
    os.close(descriptor)


def test_journals_are_put_beside_those_that_are_there(tmp_path: Path) -> None:
    write(tmp_path / "backup/journal/0/000000000001.journal", "of the backup")
    write(tmp_path / "backup/journal/1/000000000003.journal", "of another gateway")
    write(tmp_path / "root/0/000000000001.journal", "since then")
    for _ in range(2):  # again, as where the first try was cut off
        add_journals(tmp_path / "backup", tmp_path / "root")
    assert contents(tmp_path / "root") == {
        "0/000000000001.journal": "since then",
        "1/000000000001.journal": "of the backup",
        "2/000000000003.journal": "of another gateway",
        "3/000000000001.journal": "of the backup",
        "4/000000000003.journal": "of another gateway",
    }


def test_a_restore_is_refused_while_a_gateway_writes_to_a_journal(tmp_path: Path) -> None:
    write(tmp_path / "0/000000000001.journal", "")
    owner = JournalFolder.try_claim(tmp_path / "1")
    assert owner is not None
    with (
        pytest.raises(BackupError, match="a gateway writes to the journal"),
        journals_owned(tmp_path),
    ):
        pass
    owner.release()
    with journals_owned(tmp_path):
        assert JournalFolder.try_claim(tmp_path / "0") is None
