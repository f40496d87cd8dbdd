"""The way in which a change replaces replicas is shown before the change, and stays the same during it."""

from __future__ import annotations

from gateway.domain.pools.plan import Pool
from gateway.domain.pools.rollout import rollout_of
from tests.gateway.domain.pools.world import World, host, pool, replica, revision


def rollout_text(world: World) -> str | None:
    return rollout_of(list(world.pools.values()), world.hosts, "p")


def changing_pool(num_replicas: int = 2) -> Pool:
    present = [replica(f"old{number}") for number in range(num_replicas)]
    return pool(num_replicas, wants=2, replicas=present)


def steps(memory_gib: int) -> list[str | None]:
    """Return the texts at the beginning and after each step of a change, until the change has ended."""
    world = World([host(memory_gib)])
    world.pools["p"] = changing_pool()
    said = [rollout_text(world)]
    while world.pools["p"].revision != 2:
        world.decide()
        said.append(rollout_text(world))
        for each in world.pools["p"].replicas:
            if each.state != "ready":
                world.move("p", each.id)
        said.append(rollout_text(world))
        assert len(said) < 100
    return [each for each in said if each is not None]


def test_where_both_fit_they_run_side_by_side_to_the_end() -> None:
    assert set(steps(64)) == {"side by side"}


def test_where_both_do_not_fit_one_makes_room_for_the_other() -> None:
    assert set(steps(4)) == {"one after the other"}


def test_no_rollout_is_shown_without_a_possible_change() -> None:
    hosts = [host(4)]
    assert rollout_of([pool(replicas=[replica("a")])], hosts, "p") is None, "no change"
    assert rollout_of([pool(serves=None, wants=1)], hosts, "p") is None, "nothing served before"
    large = {1: revision(1), 2: revision(2, gib=9)}
    assert rollout_of([pool(wants=2, revisions=large, replicas=[replica("a")])], hosts, "p") is None, "it never fits"
    unknown = {1: revision(1), 2: revision(2, state="preparing")}
    assert rollout_of([pool(wants=2, revisions=unknown)], hosts, "p") is None, "nobody knows what it needs"
    assert rollout_of([], hosts, "p") is None
