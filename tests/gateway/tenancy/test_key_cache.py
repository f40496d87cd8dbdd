"""The cache is bounded, keyed on the whole digest, and never holds a row that a change may have made stale."""

from __future__ import annotations

import hashlib

from gateway.domain.tenancy.principal import Principal
from gateway.tenancy.key_cache import UNKNOWN_TTL_S, CachedKey, KeyCache


def digest(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def entry(number: int) -> CachedKey:
    return CachedKey(Principal("org", "proj", f"key_{number}", frozenset()), None)


def test_the_cache_is_bounded_and_drops_the_least_recently_used_keys() -> None:
    cache = KeyCache(max_known=3, max_unknown=3)
    for number in range(3):
        cache.put(digest(number), entry(number), cache.generation)
    cache.get(digest(0))
    cache.put(digest(3), entry(3), cache.generation)
    assert [cache.get(digest(number)) is not None for number in range(4)] == [True, False, True, True]
    for number in range(100, 200):
        cache.put_unknown(digest(number), 0.0, cache.generation)
    assert len(cache) == 6


def test_an_answer_asked_for_before_a_change_is_not_stored() -> None:
    cache = KeyCache()
    before = cache.generation
    cache.forget("key_1")
    cache.put(digest(1), entry(1), before)
    cache.put_unknown(digest(2), 0.0, before)
    assert len(cache) == 0
    assert (cache.was_good(digest(1)), cache.was_good(digest(2))) == (True, False), "its holder does not guess"


def test_forgetting_one_key_leaves_the_others() -> None:
    cache = KeyCache()
    for number in range(2):
        cache.put(digest(number), entry(number), cache.generation)
    cache.forget("key_0")
    assert cache.get(digest(0)) is None
    assert cache.get(digest(1)) is not None


def test_a_failed_look_up_is_remembered_briefly() -> None:
    cache = KeyCache()
    cache.put_unknown(digest(1), 10.0, cache.generation)
    assert cache.is_unknown(digest(1), 10.0 + UNKNOWN_TTL_S / 2)
    assert not cache.is_unknown(digest(1), 10.0 + UNKNOWN_TTL_S)
    assert not cache.is_unknown(digest(2), 10.0)


def test_a_key_that_was_good_until_something_changed_is_remembered_as_no_guess() -> None:
    cache = KeyCache(max_known=2)
    for number in range(3):
        cache.put(digest(number), entry(number), cache.generation)
    cache.forget_all()
    assert [cache.was_good(digest(number)) for number in range(3)] == [False, True, True]
    cache.put(digest(1), entry(1), cache.generation)
    cache.put_unknown(digest(2), 0.0, cache.generation)
    assert not any(cache.was_good(digest(number)) for number in range(3)), "each was looked up since"
    cache.forget("key_1")
    assert cache.was_good(digest(1))
