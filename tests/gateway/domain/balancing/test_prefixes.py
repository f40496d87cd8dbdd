"""Beginnings of prompts have keys that only equal beginnings share; their replicas are bounded in number and stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.balancing.prefixes import MAX_PREFIXES, PrefixMemory, prefix_keys

token_ids = st.lists(st.integers(0, 200_000), max_size=300)


@given(shared=token_ids, one=token_ids, other=token_ids)
def test_prompts_share_the_keys_of_the_beginnings_that_they_share(
    shared: list[int], one: list[int], other: list[int]
) -> None:
    first, second = [*shared, 1, *one], [*shared, 2, *other]
    common = [a for a, b in zip(prefix_keys(first, "s"), prefix_keys(second, "s"), strict=False) if a == b]
    assert common == list(prefix_keys([*shared, 0], "s"))


def test_beginnings_double_and_leave_the_last_token_out() -> None:
    lengths = {1: 0, 16: 0, 17: 1, 32: 1, 33: 2, 64: 2, 65: 3, 10**6: MAX_PREFIXES}
    assert {length: len(prefix_keys([7] * length, "")) for length in lengths} == lengths


def test_tenants_and_adapters_share_no_beginnings() -> None:
    assert not set(prefix_keys(range(100), "one")) & set(prefix_keys(range(100), "other"))


def test_a_beginning_stays_where_it_was_first_sent() -> None:
    memory: PrefixMemory[str] = PrefixMemory()
    memory.remember((1, 2), "first")
    memory.remember((1, 2, 3), "second")
    assert memory.longest((1, 2)) == ("first", True)
    assert memory.longest((1, 2, 9)) == ("first", False)
    assert memory.longest((1, 2, 3)) == ("second", True)
    assert memory.longest((1,)) is None
    memory.forget("first")
    assert memory.longest((1, 2)) is None
    assert memory.longest((1, 2, 3)) == ("second", True)


@given(sent=st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["one", "other"])), max_size=60))
def test_a_beginning_that_is_remembered_has_the_place_to_which_it_was_first_sent(sent: list[tuple[int, str]]) -> None:
    memory: PrefixMemory[str] = PrefixMemory(max_remembered=4)
    first: dict[int, str] = {}
    for key, place in sent:
        if memory.longest((0, key)) is None:
            first[key] = place
        memory.remember((0, key), place)
        assert memory.longest((0, key)) == (first[key], True)
        found = {key: place for key in first if (place := memory.longest((0, key))) is not None}
        assert found == {key: (first[key], True) for key in found}
        assert len(found) <= 4


def test_of_keys_that_share_slots_the_one_not_used_for_longest_is_forgotten() -> None:
    memory: PrefixMemory[str] = PrefixMemory(max_remembered=2)
    for key in (1, 2, 1, 3):
        memory.remember((0, key), "place")
    assert [memory.longest((0, key)) is not None for key in (1, 2, 3)] == [True, False, True]
