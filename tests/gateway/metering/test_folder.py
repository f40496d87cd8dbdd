"""A folder has one owner, whatever happens to it, and the usage that a dead gateway left is recovered once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gateway.metering.folder import JournalFolder
from gateway.metering.format import Progressed, Record, frame
from gateway.metering.journal import Journal
from gateway.metering.recovery import JournalUnusable, Recovery, claim_folder
from gateway.metering.replay import Unreadable, replay
from gateway.observability.journal_metrics import JournalMetrics
from tests.gateway.metering.records import BEGUN, count, ended_record, opened_record
from tests.patience import PATIENCE_S

HOLDER = """
import pathlib, sys
from gateway.metering.folder import JournalFolder
folder = JournalFolder.try_claim(pathlib.Path(sys.argv[1]))
print("owned" if folder else "refused", flush=True)
sys.stdin.read()
"""


async def ignore(position: int) -> None:
    pass


def leave(path: Path, records: list[Record], tail: bytes = b"") -> Path:
    """Write a journal as a dead gateway leaves it; return its folder."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "000000000007.journal").write_bytes(b"".join(map(frame, records)) + tail)
    return path


def test_a_folder_is_owned_by_one_process_and_free_once_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "0")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "owned\n"
        assert JournalFolder.try_claim(tmp_path / "0") is None
        folder, _ = claim_folder(tmp_path, "database")
        assert folder.path == tmp_path / "1"
        folder.release()
        holder.kill()
    assert JournalFolder.try_claim(tmp_path / "0") is not None


def test_without_a_folder_there_is_no_start(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("not a folder")
    with pytest.raises(JournalUnusable, match=f"the journal of usage cannot be written in {tmp_path}/journal"):
        claim_folder(tmp_path / "journal", "database")


def test_a_folder_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "0" / "lock").mkdir(parents=True)
    (tmp_path / "1" / "000000000001.journal").mkdir(parents=True)
    folder, _ = claim_folder(tmp_path, "database")
    assert folder.path == tmp_path / "2"
    folder.release()


def test_the_next_owner_of_a_folder_finds_the_usage_of_its_predecessor(tmp_path: Path) -> None:
    leave(
        tmp_path / "0", [BEGUN, opened_record("a"), ended_record("b"), opened_record("c"), Progressed([count("c", 3)])]
    )
    folder, replayed = claim_folder(tmp_path, "database")
    assert folder.path == tmp_path / "0"
    assert {each.record.request_id: each.record.usage.completion_tokens for each in replayed.ended} == {
        "a": 0,
        "b": 4,
        "c": 3,
    }
    assert (replayed.num_made_up, replayed.num_unseen, replayed.journal_ids) == (2, 1, ["journal"])


@pytest.mark.parametrize("begun", [{"database_id": "another"}, {"version": 2}])
def test_usage_of_another_database_or_format_is_left_alone(tmp_path: Path, begun: dict[str, object]) -> None:
    left = leave(tmp_path / "0", [msgspec.structs.replace(BEGUN, **begun), ended_record("a")])
    before = {path.name: path.read_bytes() for path in left.glob("*.journal")}
    folder, replayed = claim_folder(tmp_path, "database")
    assert (folder.path.name, replayed.ended) == ("1", [])
    assert {path.name: path.read_bytes() for path in left.glob("*.journal")} == before
    with pytest.raises(Unreadable):
        replay(JournalFolder(left, -1), "database")


def test_a_damaged_segment_is_reported_and_kept_and_costs_only_what_was_damaged(tmp_path: Path) -> None:
    data = bytearray(b"".join(map(frame, [BEGUN, ended_record("a"), ended_record("b")])))
    data[len(frame(BEGUN)) + 40] ^= 1
    (tmp_path / "000000000001.journal").write_bytes(data)
    replayed = replay(JournalFolder(tmp_path, -1), "database")
    assert [each.record.request_id for each in replayed.ended] == ["b"]
    assert replayed.num_damaged == 1
    (kept,) = tmp_path.glob("*.damaged")
    assert kept.read_bytes() == bytes(data)


def test_a_tail_that_was_torn_is_cut(tmp_path: Path) -> None:
    left = leave(tmp_path / "0", [BEGUN, ended_record("a")], tail=frame(ended_record("b"))[:-5])
    replayed = replay(JournalFolder(left, -1), "database")
    assert [each.record.request_id for each in replayed.ended] == ["a"]
    assert (replayed.num_damaged, list(left.glob("*.damaged"))) == (0, [])


class Copier:
    """A fake copier beside a recovery, which counts its wakes."""

    num_wakes = 0

    def wake(self) -> None:
        self.num_wakes += 1


async def test_a_living_gateway_takes_over_what_others_left_and_removes_it_once_it_is_durable(tmp_path: Path) -> None:
    folder, _ = claim_folder(tmp_path, "database")
    left = leave(
        tmp_path / "1", [msgspec.structs.replace(BEGUN, journal_id="gone"), ended_record("a"), opened_record("b")]
    )
    owned = leave(tmp_path / "2", [BEGUN, ended_record("of one that lives")])
    owner = JournalFolder.try_claim(owned)
    (tmp_path / "0-broken" / "000000000001.journal").mkdir(parents=True)  # comes before the others
    foreign = leave(tmp_path / "3", [msgspec.structs.replace(BEGUN, database_id="another"), ended_record("foreign")])
    registry, copier = CollectorRegistry(), Copier()
    journal = Journal(folder, BEGUN, max_bytes=1 << 20, on_durable=ignore)
    journal.start()
    recovery = Recovery(tmp_path, folder.path, "database", journal, JournalMetrics(registry), copier)
    recovery.start()
    async with asyncio.timeout(PATIENCE_S):
        while list(left.glob("*.journal")):  # noqa: ASYNC110 - files have no event
            await asyncio.sleep(0.01)
    await recovery.stop()
    assert [each.record.request_id for each in journal.unsettled.ended.values()] == ["a", "b"]
    assert (list(journal.unsettled.adopted), copier.num_wakes) == (["gone"], 1)
    assert list(owned.glob("*.journal")) and list(foreign.glob("*.journal"))
    assert registry.get_sample_value("lorikeet_usage_recovered_total", {"known": "end"}) == 1
    assert registry.get_sample_value("lorikeet_usage_recovered_total", {"known": "sent"}) == 1
    await journal.stop(5)
    assert owner is not None
    owner.release()
    # All usage came into this folder, for the next process to find, since nothing was copied.
    _, replayed = claim_folder(tmp_path, "database")
    assert [each.record.request_id for each in replayed.ended] == ["a", "b"]
    assert replayed.journal_ids == ["journal", "gone"], "nobody has told the database that nothing is lost with it"
