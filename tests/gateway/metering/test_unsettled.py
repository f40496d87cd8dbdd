"""The sum of a journal's records equals that of its snapshot, and each usage is there until it is copied."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.format import Adopted, Copied, Progressed, Record, Released
from gateway.metering.unsettled import Unsettled, made_up_end
from tests.gateway.metering.records import count, ended_record, opened_record

NAMES = st.sampled_from(["a", "b", "c"])
ENGINES = st.sampled_from(["engine", ""])
RECORDS = st.one_of(
    st.builds(opened_record, NAMES),
    st.builds(lambda name, number: Progressed([count(name, number)]), NAMES, st.integers(1, 9)),
    st.builds(lambda name, engine: ended_record(name, engine_id=engine), NAMES, ENGINES),
    st.builds(lambda name, engine: Copied([(name, 0, engine)]), NAMES, ENGINES),
    st.builds(lambda name: Adopted([name]), NAMES),
    st.builds(lambda name: Released([name]), NAMES),
)


def added_up(records: list[Record]) -> Unsettled:
    unsettled = Unsettled()
    for record in records:
        unsettled.apply(record)
    return unsettled


@given(st.lists(RECORDS, max_size=20))
def test_a_snapshot_adds_up_to_the_same(records: list[Record]) -> None:
    before = added_up(records)
    after = added_up(list(before.snapshot()))
    assert (after.running, list(after.ended.items()), after.adopted) == (
        before.running,
        list(before.ended.items()),
        before.adopted,
    )
    assert (after.num_bytes, after.num_open) == (before.num_bytes, before.num_open)
    assert after.num_strays == 0


@given(st.lists(RECORDS, max_size=20))
def test_the_counted_size_is_zero_once_all_ended_usage_is_copied(records: list[Record]) -> None:
    unsettled = added_up(records)
    assert (unsettled.num_bytes == 0) == (not unsettled.ended)
    unsettled.apply(Copied(list(unsettled.ended)))
    assert (unsettled.num_bytes, unsettled.ended) == (0, {})
    assert unsettled.num_open == len(unsettled.running)


def test_two_counts_of_one_attempt_are_one_that_is_open() -> None:
    unsettled = added_up([opened_record("a"), ended_record("a", engine_id=""), ended_record("a"), opened_record("b")])
    assert (len(unsettled.ended), unsettled.num_open) == (2, 2)


def test_a_superseded_attempt_is_told_of_although_its_count_waits() -> None:
    counted = ended_record("a", engine_id="")
    superseded = msgspec.structs.replace(counted, superseded=True)
    unsettled = added_up([counted, superseded, Copied([counted.key])])
    assert (list(unsettled.ended.values()), unsettled.num_open) == ([superseded], 1)


def test_a_request_that_was_interrupted_costs_what_its_client_may_have_seen() -> None:
    unsettled = added_up(
        [opened_record(), Progressed([count(completion_tokens=2)]), Progressed([count(completion_tokens=5)])]
    )
    (running,) = unsettled.running.values()
    record = made_up_end(running, 7).record
    assert (record.finish_reason, record.usage.prompt_tokens, record.usage.completion_tokens) == ("error", 3, 5)
    assert record.meter == opened_record().meter


def test_a_request_of_which_no_token_was_seen_costs_nothing() -> None:
    (running,) = added_up([opened_record()]).running.values()
    usage = made_up_end(running, 7).record.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (0, 0)


def test_counts_of_unknown_requests_are_counted_themselves() -> None:
    assert added_up([Progressed([count("nobody")])]).num_strays == 1
