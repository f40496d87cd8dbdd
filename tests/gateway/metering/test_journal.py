"""No recorded usage is lost: not by a killed process, a full disk, a failed sync, nor the end of a segment."""

from __future__ import annotations

import asyncio
import errno
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from gateway.metering.folder import JournalFolder, Segment, segments_in
from gateway.metering.journal import Journal
from gateway.metering.replay import replay
from tests.gateway.metering.records import BEGUN, count, ended_record, opened_record
from tests.patience import PATIENCE_S


class DurablePositions:
    """The record of the positions that a journal reported as durable."""

    def __init__(self) -> None:
        self.position = 0
        self._changed = asyncio.Event()

    async def __call__(self, position: int) -> None:
        self.position = position
        self._changed.set()

    async def wait_for(self, position: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.position < position:
                self._changed.clear()
                await self._changed.wait()


class OneBadSync(Segment):
    """A segment whose sync fails as when the disk reports an error: written bytes may be on disk or not."""

    def sync(self) -> None:
        raise OSError(errno.EIO, "the disk says no")


class BadFirstSegment(JournalFolder):
    """A journal folder whose first segment cannot be synced, while later ones can."""

    num_begun = 0

    def new_segment(self) -> Segment:
        self.num_begun += 1
        if self.num_begun == 1:
            return OneBadSync(self.path / "000000000001.journal")
        return super().new_segment()


def claim(path: Path, kind: type[JournalFolder] = JournalFolder) -> JournalFolder:
    folder = kind.try_claim(path)
    assert folder is not None
    return folder


@asynccontextmanager
async def running_journal(
    folder: JournalFolder, durable: DurablePositions | None = None, **options: int
) -> AsyncIterator[tuple[Journal, DurablePositions]]:
    durable = durable or DurablePositions()
    journal = Journal(folder, BEGUN, on_durable=durable, **{"max_bytes": 1 << 20, **options})
    journal.start()
    try:
        yield journal, durable
    finally:
        await journal.stop(5)


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Limit the size of files of this process to that of the largest one in the folder, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(file.stat().st_size for file in path.iterdir()) + 10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def tokens_left_in(path: Path) -> dict[str, int]:
    """Return completion tokens by request id, as the next owner of a journal's folder would bill them."""
    replayed = replay(JournalFolder(path, -1), "database")
    return {each.record.request_id: each.record.usage.completion_tokens for each in replayed.ended}


async def test_a_record_is_in_the_file_when_the_call_returns(tmp_path: Path) -> None:
    async with running_journal(claim(tmp_path)) as (journal, _):
        journal.open(opened_record("a"))
        journal.open(opened_record("b"))
        journal.progress([count("a", 1), count("b", 2)])
        journal.end(ended_record("a", completion_tokens=6))
        assert tokens_left_in(tmp_path) == {"a": 6, "b": 2}
        journal.copied([("a", 0, "engine")])
        assert tokens_left_in(tmp_path) == {"b": 2}


async def test_a_record_is_durable_only_once_it_is_synced(tmp_path: Path) -> None:
    async with running_journal(claim(tmp_path)) as (journal, durable):
        journal.end(ended_record())
        assert durable.position < journal.position
        await durable.wait_for(journal.position)


async def test_a_usage_that_is_told_twice_is_recorded_once_and_told_to_be_durable_twice(tmp_path: Path) -> None:
    async with running_journal(claim(tmp_path)) as (journal, durable):
        journal.end(ended_record())
        await durable.wait_for(journal.position)
        position, durable.position = journal.position, 0
        journal.end(ended_record())
        assert journal.position == position
        await durable.wait_for(position)


async def test_old_segments_are_removed_and_running_requests_move_to_the_new_one(tmp_path: Path) -> None:
    async with running_journal(claim(tmp_path), segment_bytes=3000) as (journal, _):
        journal.open(opened_record("long"))
        for number in range(300):
            name = f"req_{number}"
            journal.open(opened_record(name))
            journal.progress([count("long", number), count(name, 1)])
            journal.end(ended_record(name))
            journal.copied([(name, 0, "engine")])
        assert await journal.flush(5)
        assert len(segments_in(tmp_path)) == 1
        assert tokens_left_in(tmp_path) == {"long": 299}
        journal.end(ended_record("long"))
        journal.copied([("long", 0, "engine")])
    assert segments_in(tmp_path) == [], "with nothing left to tell, nothing is left"


async def test_usage_that_the_ledger_does_not_have_stays_after_a_clean_end(tmp_path: Path) -> None:
    async with running_journal(claim(tmp_path)) as (journal, _):
        journal.end(ended_record("kept", completion_tokens=9))
    assert tokens_left_in(tmp_path) == {"kept": 9}


async def test_a_full_disk_refuses_the_new_keeps_the_old_and_mends_by_itself(tmp_path: Path) -> None:
    async with running_journal(claim(tmp_path)) as (journal, durable):
        journal.open(opened_record("a"))
        journal.open(opened_record("b"))
        journal.end(ended_record("z", completion_tokens=1))
        await durable.wait_for(journal.position)
        before = durable.position
        with full_disk(tmp_path):
            journal.progress([count("a", 3), count("b", 4)])
            assert not journal.has_room
            journal.end(ended_record("a", completion_tokens=5))
            await asyncio.sleep(0.6)  # the journal tries again, and fails again
            assert not journal.has_room
            assert durable.position == before
        await durable.wait_for(journal.position)
        assert journal.has_room
        assert tokens_left_in(tmp_path) == {"z": 1, "a": 5, "b": 4}
        assert len(segments_in(tmp_path)) == 1


async def test_after_a_failed_sync_all_that_matters_is_written_anew(tmp_path: Path) -> None:
    async with running_journal(claim(tmp_path, BadFirstSegment)) as (journal, durable):
        journal.open(opened_record("a"))
        journal.end(ended_record("b"))
        await durable.wait_for(journal.position)
        assert [path.name for path in segments_in(tmp_path)] == ["000000000002.journal"]
        assert tokens_left_in(tmp_path) == {"b": 4, "a": 0}


async def test_beyond_its_bound_no_new_request_should_run(tmp_path: Path) -> None:
    async with running_journal(claim(tmp_path), max_bytes=2000) as (journal, _):
        names = [f"req_{number}" for number in range(5)]
        for name in names:
            assert journal.has_room
            journal.end(ended_record(name))
            if not journal.has_room:
                break
        assert not journal.has_room
        journal.end(ended_record("what runs is kept all the same"))
        assert len(tokens_left_in(tmp_path)) == len(journal.unsettled.ended)
        journal.copied(list(journal.unsettled.ended))
        assert journal.has_room


async def test_a_count_is_written_in_one_piece_however_many_requests_it_is_of(tmp_path: Path) -> None:
    async with running_journal(claim(tmp_path)) as (journal, _):
        counts = [count(f"req_{number}", number) for number in range(500)]
        for each in counts:
            journal.open(opened_record(each.request_id))
        journal.progress(counts)
        assert journal.unsettled.num_strays == 0
        assert tokens_left_in(tmp_path) == {each.request_id: each.completion_tokens for each in counts}
