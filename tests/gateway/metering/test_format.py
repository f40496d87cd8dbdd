"""Records are read as they were written, a cut record ends the journal, and changed bytes are never taken for a
record."""

from __future__ import annotations

import random

import pytest

from gateway.metering.format import Copied, Progressed, Record, frame, read_frames
from tests.gateway.metering.records import BEGUN, count, ended_record, opened_record

RECORDS: list[Record] = [
    BEGUN,
    opened_record(),
    Progressed([count(), count("req_2", 7)]),
    ended_record("req_3", completion_tokens=5, cached_tokens=1),
    Copied([("req_3", 0, "engine")]),
]
FRAMES = [frame(each) for each in RECORDS]
WHOLE = b"".join(FRAMES)


def test_records_come_back_as_they_were() -> None:
    contents = read_frames(WHOLE)
    assert contents.records == RECORDS
    assert (contents.num_torn_bytes, contents.damaged) == (0, [])


def test_a_file_cut_at_any_byte_has_the_records_before_it() -> None:
    ends = [sum(map(len, FRAMES[: number + 1])) for number in range(len(FRAMES))]
    for cut in range(len(WHOLE)):
        contents = read_frames(WHOLE[:cut])
        num_whole = sum(end <= cut for end in ends)
        assert contents.records == RECORDS[:num_whole]
        assert contents.num_torn_bytes == cut - ([0, *ends][num_whole])
        assert not contents.damaged


@pytest.mark.parametrize("what", ["a bit", "a hole"])
def test_bytes_that_were_changed_cost_their_record_alone_and_are_reported(what: str) -> None:
    rng = random.Random(7)
    for _ in range(300):
        data, at = bytearray(WHOLE), rng.randrange(len(WHOLE))
        if what == "a bit":
            data[at] ^= 1 << rng.randrange(8)
        else:
            hole = min(len(data), at + rng.randrange(1, 60))
            data[at:hole] = bytes(hole - at)
        contents = read_frames(bytes(data))
        left = iter(RECORDS)
        assert all(record in left for record in contents.records), "those that are left, in their order"
        if bytes(data) == WHOLE:
            continue
        assert len(contents.records) < len(RECORDS)
        if contents.records[-1:] == RECORDS[-1:]:
            assert contents.damaged
        else:
            assert contents.num_torn_bytes


def test_garbage_between_records_is_skipped_and_reported() -> None:
    garbage = b"\xf5LJ\x01" + b"?" * 40
    contents = read_frames(FRAMES[0] + garbage + FRAMES[1])
    assert contents.records == RECORDS[:2]
    assert contents.damaged == [(len(FRAMES[0]), len(FRAMES[0]) + len(garbage))]
