"""Usage that the ledger has taken stays on disk within bounds, and is billed again if the ledger was put back."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gateway.db.pool import Database
from gateway.metering.folder import put_aside, segments_in, spent_segments_in
from gateway.metering.format import Begun, Copied, Ended, Record, frame
from gateway.metering.journal import Journal
from gateway.metering.rebilling import JournalUsage, bill_again, difference_tokens, held_usage
from tests.gateway.metering.records import BEGUN, ended_record, record
from tests.gateway.metering.test_journal import DurablePositions, claim


async def _use(folder: Path, request_ids: list[str], **options: int) -> None:
    """Record the ends of requests, which the ledger takes at once, in a process that then stops gracefully."""
    journal = Journal(claim(folder), BEGUN, on_durable=DurablePositions(), **{"max_bytes": 1 << 20, **options})
    journal.start()
    for request_id in request_ids:
        journal.end(ended_record(request_id))
        journal.copied([ended_record(request_id).key])
    await journal.stop(5)


async def test_ends_that_the_ledger_has_are_still_held(tmp_path: Path) -> None:
    await _use(tmp_path / "0", ["req_1", "req_2"], spent_bytes=1 << 20)
    await _use(tmp_path / "0", ["req_3"], spent_bytes=1 << 20, segment_bytes=1)
    assert segments_in(tmp_path / "0") == [], "nothing is left to replay"
    held = held_usage(tmp_path, "database")
    assert sorted(end.record.request_id for end in held.ended) == ["req_1", "req_2", "req_3"]
    assert held.num_journals == 1 and held.since_ns == ended_record().finished_at_ns
    await _use(tmp_path / "1", ["req_4"])
    assert len(held_usage(tmp_path, "database").ended) == 3, "without room for them, none are held"
    assert held_usage(tmp_path, "another").ended == []


def test_the_oldest_spent_segments_go_first(tmp_path: Path) -> None:
    for number in range(1, 5):
        (tmp_path / f"{number:012}.journal").write_bytes(bytes(100))
    for segment in segments_in(tmp_path):
        put_aside(segment, 250)
    assert [path.name for path in spent_segments_in(tmp_path)] == ["000000000003.spent", "000000000004.spent"]
    put_aside(tmp_path / "000000000009.journal", 250)  # gone already
    assert len(spent_segments_in(tmp_path)) == 2


def _leave(path: Path, records: list[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(frame, records)))


async def test_the_ledger_gets_what_it_lacks_and_nothing_twice(database: Database, tmp_path: Path) -> None:
    known = [ended_record(f"req_{number}") for number in range(3)]
    assert (await bill_again(database, known)).num_missing == 3
    since = [ended_record(f"req_{number}") for number in range(3, 6)]
    keys = [end.key for end in known + since]
    _leave(tmp_path / "0/000000000001.spent", [BEGUN, *known, *since, Copied(keys)])
    _leave(tmp_path / "0/000000000002.journal", [BEGUN, ended_record("req_6")])
    _leave(tmp_path / "1/000000000001.spent", [Begun(1, "another", "journal"), ended_record("req_7")])
    held = held_usage(tmp_path, "database")
    assert held.num_foreign == 1
    assert await difference_tokens(database, held.ended) == 4 * 7
    billed = await bill_again(database, held.ended)
    assert (billed.num_attempts, billed.num_missing, billed.refused) == (7, 4, [])
    assert await difference_tokens(database, held.ended) == 0
    assert (await bill_again(database, held.ended)).num_missing == 0
    async with database.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM ledger") == 7
        assert await conn.fetchval("SELECT sum(completion_tokens) FROM engine_usage") == 7 * 4
        assert await conn.fetchval("SELECT count(*) FROM journals") == 0


async def test_a_gateways_count_is_a_lower_bound_and_an_engines_is_exact(database: Database) -> None:
    assert (await bill_again(database, [ended_record("req_1"), ended_record("req_2")])).num_missing == 2
    seen = [ended_record("req_1", "error", engine_id="", completion_tokens=2)]
    assert await difference_tokens(database, seen) == 0
    assert await difference_tokens(database, [ended_record("req_1", "error", engine_id="", completion_tokens=6)]) == 2
    assert await difference_tokens(database, [ended_record("req_2", completion_tokens=3)]) == 1
    assert await difference_tokens(database, [ended_record("req_3", prompt_tokens=0, completion_tokens=0)]) == 1


async def test_usage_that_the_database_refuses_is_named_and_does_not_hold_up_other_usage(database: Database) -> None:
    strange = msgspec.structs.replace(record("req_2"), meter=b"no tag")
    held: JournalUsage = JournalUsage(
        [ended_record("req_1"), Ended(strange, "engine", None, None, 1), ended_record("req_3")], 1, 0, None
    )
    billed = await bill_again(database, held.ended)
    assert billed.num_missing == 2
    assert len(billed.refused) == 1 and billed.refused[0].startswith("req_2: ")
