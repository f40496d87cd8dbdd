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
    memory.remember((b"1", b"2"), "first")
    memory.remember((b"1", b"2", b"3"), "second")
    assert memory.longest((b"1", b"2")) == ("first", True)
    assert memory.longest((b"1", b"2", b"x")) == ("first", False)
    assert memory.longest((b"1", b"2", b"3")) == ("second", True)
    assert memory.longest((b"1",)) is None
    memory.forget("first")
    assert memory.longest((b"1", b"2")) is None


def test_the_memory_is_bounded_and_forgets_the_least_recently_used() -> None:
    memory: PrefixMemory[str] = PrefixMemory(max_remembered=3)
    for key in (b"a", b"b", b"c", b"a", b"d"):
        memory.remember((b"-", key), "place")
    assert len(memory) == 3
    assert [memory.longest((b"-", key)) is not None for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
