"""What is copied of an installation at work: of journals and adapters everything that was there at one moment."""

from __future__ import annotations

import threading
from pathlib import Path

from adapters.store import AdapterStore
from gateway.backup.files import copy_adapters, copy_journals
from gateway.backup.manifest import JOURNAL
from gateway.metering.folder import JournalFolder
from tests.gateway.admin_server import write_adapter


class BusyJournal:
    """Numbers from 0 on, each written once. A new segment begins with all that still matters, here the last 50; as
    soon as it is there, older ones go, as in a gateway that takes requests."""

    def __init__(self, root: Path) -> None:
        folder = JournalFolder.try_claim(root / "0")
        assert folder is not None
        self._folder = folder
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.written = 0
        """Numbers below are in the journal, or no longer matter."""

    def __enter__(self) -> BusyJournal:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self._thread.join()
        self._folder.release()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            old = self._folder.segments()
            segment = self._folder.new_segment()
            for number in range(max(0, self.written - 50), self.written):
                segment.append(b"%d\n" % number)
            for path in old:
                path.unlink()
            for number in range(self.written, self.written + 20):
                segment.append(b"%d\n" % number)
                self.written = number + 1
            segment.close()


def test_a_journal_is_copied_whole_while_its_segments_come_and_go(tmp_path: Path) -> None:
    with BusyJournal(tmp_path / "journal") as journal:
        for attempt in range(100):
            before = journal.written
            backup = tmp_path / f"backup-{attempt}"
            copy_journals(tmp_path / "journal", backup)
            segments = sorted((backup / JOURNAL / "0").iterdir())
            found = {int(line) for segment in segments for line in segment.read_bytes().split(b"\n")[:-1]}
            newest = max(found, default=-1)
            assert newest + 1 >= before, f"attempt {attempt} lost what was there when it began"
            assert found >= set(range(max(0, newest - 49), newest + 1)), f"attempt {attempt} lost some in between"
    assert journal.written > 1000


def test_there_may_be_no_journal_at_all(tmp_path: Path) -> None:
    copy_journals(tmp_path / "nowhere", tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_an_adapter_that_is_not_there_is_told_and_one_that_is_copied_is_not_copied_again(tmp_path: Path) -> None:
    store = AdapterStore(tmp_path / "store")
    first, second = [store.add(write_adapter(tmp_path / str(seed), seed=seed)) for seed in range(2)]
    assert copy_adapters(store, [first], tmp_path / "backup") == []
    store.remove(first)
    gone = "f" * 64
    assert copy_adapters(store, [first, second, gone], tmp_path / "backup") == [gone]
    assert AdapterStore(tmp_path / "other").add(tmp_path / "backup/adapters" / first) == first
