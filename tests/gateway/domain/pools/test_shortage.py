"""A pool that lacks room for a replica says so, and no other pool does. Each replica takes 2 GiB."""

from __future__ import annotations

import msgspec

from gateway.domain.pools.shortage import shortage_of
from tests.gateway.domain.pools.world import host, pool, replica


def test_a_pool_without_room_for_a_replica_says_how_much_memory_is_missing() -> None:
    wanted = pool(3, replicas=[replica("one")])
    assert shortage_of([wanted], [host(64)], "p") == ""
    assert shortage_of([wanted], [host(3)], "p") == (
        "There is no room for 2 more. A replica needs 2.0 GiB of memory; one has 3.0 GiB, of which 1.0 GiB are free."
    )


def test_the_room_of_another_pool_is_not_free() -> None:
    other = msgspec.structs.replace(pool(1, replicas=[replica("theirs")]), id="other")
    assert "no room for one more" in shortage_of([pool(1), other], [host(3)], "p")


def test_no_shortage_is_reported_while_room_is_being_freed() -> None:
    leaving = pool(1, replicas=[replica("leaving", state="draining")])
    assert shortage_of([leaving], [host(3)], "p") == ""


def test_a_change_that_makes_room_for_itself_is_no_shortage() -> None:
    assert shortage_of([pool(1, wants=2, replicas=[replica("old")])], [host(3)], "p") == ""
    assert shortage_of([pool(0)], [host(1)], "p") == "", "none is wanted"
    assert shortage_of([], [host(1)], "p") == "", "there is no such pool"


def test_a_host_without_an_agent_has_no_room() -> None:
    assert shortage_of([pool(1)], [host(64, is_alive=False)], "p").endswith("; no host has an agent.")
