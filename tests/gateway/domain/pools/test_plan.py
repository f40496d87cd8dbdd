"""The next actions for a pool in one situation each: replicas, revisions, and hosts that are too small."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from gateway.domain.pools.capacity import Host, Needs, Place
from gateway.domain.pools.plan import (
    FULL_S,
    Create,
    Drain,
    GiveUp,
    MarkLost,
    NoRoom,
    Pool,
    Replica,
    SwitchRevision,
    plan,
    rollout_to,
)
from gateway.domain.pools.states import ReplicaState
from tests.gateway.domain.pools.world import GIB, World, host, pool, replica, revision


def drained_replicas(pools: Pool, *hosts: object) -> list[str]:
    return [each.replica_id for each in plan([pools], [host()]) if isinstance(each, Drain)]


def test_replicas_are_made_until_there_are_as_many_as_wanted() -> None:
    actions = plan([pool(3, replicas=[replica("a"), replica("b", "draining")])], [host()])
    assert [type(each) for each in actions] == [Create, Create]


def test_fewer_replicas_leave_the_oldest_that_serve() -> None:
    replicas = [replica("a", "failed"), replica("b"), replica("c"), replica("d", "loading"), replica("e")]
    assert drained_replicas(pool(2, replicas=replicas)) == ["a", "d", "e"]
    assert set(drained_replicas(pool(0, replicas=replicas))) == {"a", "b", "c", "d", "e"}


def test_a_removed_pool_drains_all_even_an_engine_that_somebody_else_runs() -> None:
    replicas = [replica("a"), replica("b", place=None), replica("c", "draining")]
    assert drained_replicas(pool(0, replicas=replicas, is_removed=True)) == ["a", "b"]


def test_an_engine_that_somebody_else_runs_is_no_part_of_the_number() -> None:
    replicas = [replica("foreign", place=None)]
    assert plan([pool(0, replicas=replicas)], [host()]) == []
    assert len(plan([pool(1, replicas=replicas)], [host()])) == 1


def test_a_replica_that_is_to_be_replaced_serves_until_the_other_one_does() -> None:
    old = replica("a", replace=True)
    [made] = plan([pool(1, replicas=[old])], [host()])
    assert isinstance(made, Create)
    assert plan([pool(1, replicas=[old, replica("b", "loading")])], [host()]) == []
    assert drained_replicas(pool(1, replicas=[old, replica("b")])) == ["a"]


def test_where_two_do_not_fit_a_replica_is_replaced_one_after_the_other() -> None:
    replicas = [replica("a"), replica("b", replace=True)]
    [drain] = plan([pool(2, replicas=replicas)], [host(5)])
    assert isinstance(drain, Drain) and drain.replica_id == "b"
    draining = [replica("a"), replica("b", "draining")]
    assert plan([pool(2, replicas=draining)], [host(5)]) == [], "its memory is not free yet"


EVICTED = "evicted"


def evicted(id: str, state: ReplicaState = "ready", host_id: str = EVICTED) -> Replica:
    """Return a replica that is to be replaced because its host is drained."""
    return msgspec.structs.replace(replica(id, state, replace=True), place=Place(host_id), is_evicted=True)


def test_a_replica_of_a_drained_host_goes_when_another_one_serves_and_stays_in_whatever_state_where_none_can() -> None:
    leaving, other = msgspec.structs.replace(host(), id=EVICTED, is_drained=True), host()
    [made] = plan([pool(1, replicas=[evicted("a")])], [leaving, other])
    assert isinstance(made, Create) and made.place.host_id == other.id
    assert [type(each) for each in plan([pool(1, replicas=[evicted("a"), replica("b")])], [leaving, other])] == [Drain]
    for state in get_args(ReplicaState):
        if state not in ("draining", "stopped"):
            assert plan([pool(1, replicas=[evicted("a", state)])], [leaving]) == []


def test_no_replica_of_a_drained_host_goes_for_room_that_it_does_not_make() -> None:
    leaving, other = msgspec.structs.replace(host(), id=EVICTED, is_drained=True), host(3)
    replicas = [replica("a"), evicted("b")]
    actions = plan([pool(2, wants=2, replicas=replicas)], [leaving, other])
    assert [each.replica_id for each in actions if isinstance(each, Drain)] == ["a"]


def test_a_revision_waits_while_all_hosts_are_drained_and_a_replica_of_an_unknown_host_is_lost() -> None:
    leaving = msgspec.structs.replace(host(), id=EVICTED, is_drained=True)
    assert plan([pool(1, wants=2, replicas=[evicted("a")])], [leaving]) == []
    assert MarkLost in [type(each) for each in plan([pool(1, replicas=[evicted("a", "starting", "gone")])], [host()])]


def test_a_wanted_revision_is_started_beside_the_old_one_and_switched_to_when_ready() -> None:
    old = [replica("a"), replica("b")]
    actions = plan([pool(2, wants=2, replicas=old)], [host()])
    assert [(type(each), each.revision) for each in actions if isinstance(each, Create)] == [(Create, 2)] * 2
    half = [*old, replica("c", number=2), replica("d", "loading", number=2)]
    assert plan([pool(2, wants=2, replicas=half)], [host()]) == []
    both = [*old, replica("c", number=2), replica("d", number=2)]
    assert plan([pool(2, wants=2, replicas=both)], [host()]) == [SwitchRevision("p", 2, 1)]
    assert drained_replicas(pool(2, serves=2, replicas=both)) == ["a", "b"]


def test_the_first_revision_serves_as_soon_as_one_replica_is_ready() -> None:
    first = pool(2, serves=None, wants=1, replicas=[replica("a"), replica("b", "loading")])
    assert plan([first], [host()]) == [SwitchRevision("p", 1, None)]


def test_a_revision_that_is_being_prepared_leaves_the_old_one_as_it_is() -> None:
    revisions = {1: revision(1), 2: revision(2, state="preparing")}
    waiting = pool(2, wants=2, revisions=revisions, replicas=[replica("a")])
    [made] = plan([waiting], [host()])
    assert isinstance(made, Create) and made.revision == 1


def test_a_revision_whose_engine_fails_again_and_again_is_given_up_with_its_reason() -> None:
    bad = replica("b", "failed", number=2, num_failures=3, why="no such device")
    actions = plan([pool(1, wants=2, replicas=[replica("a"), bad])], [host()])
    assert actions == [
        GiveUp("p", 2, 1, "3 starts in a row failed: no such device"),
        Drain("b", "its revision failed"),
    ]


def test_the_only_revision_of_a_pool_is_tried_for_ever() -> None:
    bad = replica("b", "failed", num_failures=30)
    assert plan([pool(1, serves=None, wants=1, replicas=[bad])], [host()]) == []


def test_a_revision_that_could_not_be_prepared_is_not_wanted_any_more() -> None:
    revisions = {1: revision(1), 2: revision(2, state="failed", why="the hub cannot be reached")}
    actions = plan([pool(1, wants=2, revisions=revisions, replicas=[replica("a")])], [host()])
    assert actions == [GiveUp("p", 2, 1, "the hub cannot be reached")]
    assert plan([pool(1, serves=None, wants=2, revisions=revisions)], [host()]) == [], "nothing to go back to"


def test_a_model_that_no_host_can_hold_is_refused_with_the_sum() -> None:
    revisions = {1: revision(1), 2: revision(2, gib=70)}
    [refusal] = plan([pool(1, wants=2, revisions=revisions, replicas=[replica("a")])], [host(64)])
    assert isinstance(refusal, GiveUp) and refusal.back_to == 1
    assert refusal.why == "A replica needs 70.0 GiB of memory; one has 64.0 GiB, of which 62.0 GiB are free."


def test_nothing_is_given_up_while_no_agent_is_there() -> None:
    gone = host(64, is_alive=False)
    assert plan([pool(1, wants=2, replicas=[replica("a")])], [gone]) == []


def test_where_both_do_not_fit_an_old_replica_makes_room() -> None:
    old = [replica("a"), replica("b")]
    small = [host(5)]
    assert plan([pool(2, wants=2, replicas=old)], small) == [Drain("b", "it makes room for a new replica")]
    leaving = [replica("a"), replica("b", "draining")]
    assert plan([pool(2, wants=2, replicas=leaving)], small) == []
    [made] = plan([pool(2, wants=2, replicas=[replica("a")])], small)
    assert isinstance(made, Create) and made.revision == 2
    ready = [replica("a"), replica("c", number=2)]
    assert plan([pool(2, wants=2, replicas=ready)], small) == [SwitchRevision("p", 2, 1)], "all that fits beside it"


CLUSTER = Host("host_one", "one", True, 0, is_cluster=True)
FULL = FULL_S + 1.0


def waiting(name: str, number: int = 2, full_s: float = FULL) -> Replica:
    return replica(name, "starting", number, full_s=full_s)


def test_in_a_full_cluster_an_old_replica_makes_room_once_its_autoscaler_has_had_time() -> None:
    old, new = [replica("a"), replica("b")], [waiting("c"), waiting("d")]
    patient = [*old, waiting("c", full_s=FULL_S), waiting("d", full_s=10.0)]
    assert plan([pool(2, wants=2, replicas=patient)], [CLUSTER]) == []
    made = pool(2, wants=2, replicas=[*old, *new])
    assert plan([made], [CLUSTER]) == [Drain("b", "it makes room for a new replica")]
    leaving = pool(2, wants=2, replicas=[replica("a"), replica("b", "draining"), *new])
    assert plan([leaving], [CLUSTER]) == []
    gone = pool(2, wants=2, replicas=[replica("a"), *new])
    assert plan([gone], [CLUSTER]) == [], "one alone makes room until the first new one serves"
    loads = pool(2, wants=2, replicas=[replica("a"), replica("c", "loading", 2), waiting("d")])
    assert plan([loads], [CLUSTER]) == []
    ready = pool(2, wants=2, replicas=[replica("a"), replica("c", number=2), waiting("d")])
    assert plan([ready], [CLUSTER]) == [SwitchRevision("p", 2, 1)]
    switched = pool(2, serves=2, replicas=[replica("a"), replica("c", number=2), waiting("d")])
    assert plan([switched], [CLUSTER]) == [Drain("a", "another revision serves")]


@pytest.mark.parametrize(
    "larger",
    [Needs(3 * GIB), Needs(2 * GIB, "cuda"), Needs(2 * GIB, num_threads=2), Needs(2 * GIB, program="vllm")],
)
def test_in_a_full_cluster_no_replica_goes_for_one_that_needs_more_than_it_leaves(larger: Needs) -> None:
    revisions = {1: revision(1), 2: msgspec.structs.replace(revision(2), needs=larger)}
    made = pool(1, wants=2, replicas=[replica("a"), waiting("b")], revisions=revisions)
    assert plan([made], [CLUSTER]) == []


def test_in_a_full_cluster_a_replica_that_is_to_be_replaced_makes_room() -> None:
    replicas = [replica("a"), replica("b", replace=True), waiting("c", 1)]
    assert plan([pool(2, replicas=replicas)], [CLUSTER]) == [Drain("b", "it makes room for a new replica")]
    fewer = [replica("a", replace=True), replica("b", "draining"), waiting("c", 1), waiting("d", 1)]
    assert plan([pool(2, replicas=fewer)], [CLUSTER]) == [], "one is missing already"


def test_how_a_change_goes_is_known_before_it_starts() -> None:
    one = pool(1, replicas=[replica("a")])
    assert rollout_to([one], [host(4)], "p", Needs(2 * GIB)) == "side by side"
    assert rollout_to([one], [host(4)], "p", Needs(3 * GIB)) == "one after the other"
    with pytest.raises(NoRoom, match=r"A replica needs 5\.0 GiB of memory; one has 4\.0 GiB"):
        rollout_to([one], [host(4)], "p", Needs(5 * GIB))


def test_room_that_another_pool_takes_is_not_counted_on() -> None:
    other = pool(1, id="q", replicas=[replica("x", number=1)], revisions={1: revision(1, gib=3)})
    one = pool(1, replicas=[replica("a")])
    with pytest.raises(NoRoom):
        rollout_to([one, other], [host(5)], "p", Needs(3 * GIB))


def test_accelerators_are_one_engines_each() -> None:
    world = World([host(64, gpus=2)])
    world.pools["p"] = pool(3, serves=None, wants=1, revisions={1: revision(1, gib=70)})
    world.settle()
    assert sorted(each.place.gpu for each in world.live("p") if each.place) == [0, 1]


def test_a_revision_for_gpus_is_refused_where_there_is_none() -> None:
    revisions = {1: revision(1, needs=Needs(GIB, "cuda"))}
    [refusal] = plan([pool(1, serves=None, wants=1, revisions=revisions)], [host()])
    assert isinstance(refusal, GiveUp) and refusal.why.endswith("one has no GPU.")


def test_the_replicas_of_a_host_without_an_agent_are_replaced_and_then_given_up() -> None:
    served = pool(1, replicas=[replica("a")])
    two = host(name="two")
    short, gone, lost = (msgspec.structs.replace(host(is_alive=False), away_s=s) for s in (20.0, 60.0, 3600.0))
    assert plan([served], [short, two]) == [], "its agent may be back soon, and its engine serves"
    drain, made = plan([served], [gone, two])
    assert drain == Drain("a", "its host has no agent")
    assert isinstance(made, Create) and made.place.host_id == "host_two"
    draining = pool(1, replicas=[replica("a", "draining")])
    assert [type(each) for each in plan([draining], [gone, two])] == [Create]
    assert plan([draining], [lost, two])[0] == MarkLost("a", "its host has no agent")


def test_new_replicas_go_where_most_memory_is_free() -> None:
    hosts = [host(8, name="one"), host(16, name="two")]
    made = [each for each in plan([pool(3)], hosts) if isinstance(each, Create)]
    assert {each.place.host_id for each in made} == {"host_two"}


def two_hosts(**labels: str) -> list[Host]:
    return [
        msgspec.structs.replace(host(40), id="east", name="east", labels={"zone": "east"}),
        msgspec.structs.replace(host(9), id="west", name="west", labels={"zone": "west", **labels}),
    ]


def asking(made: Pool, **changes: object) -> Pool:
    """Return a pool whose revisions need other hosts. changes: fields of the needs."""
    revisions = {
        number: msgspec.structs.replace(each, needs=msgspec.structs.replace(each.needs, **changes))
        for number, each in made.revisions.items()
    }
    return msgspec.structs.replace(made, revisions=revisions)


def test_replicas_start_only_where_a_host_has_all_labels_however_much_room_others_have() -> None:
    made = plan([asking(pool(2), labels={"zone": "west"})], two_hosts())
    assert [each.place.host_id for each in made if isinstance(each, Create)] == ["west", "west"]
    assert plan([asking(pool(2), labels={"zone": "west", "disk": "ssd"})], two_hosts(disk="hdd")) == []


def test_no_replica_starts_where_a_host_has_a_label_that_is_excluded() -> None:
    made = plan([asking(pool(2), excluded={"zone": ["north", "east"]})], two_hosts())
    assert [each.place.host_id for each in made if isinstance(each, Create)] == ["west", "west"]
    assert plan([asking(pool(2), labels={"disk": "ssd"}, excluded={"zone": ["west"]})], two_hosts(disk="ssd")) == []


def test_a_host_that_could_not_prepare_a_model_gets_no_replica_and_what_was_to_start_there_goes() -> None:
    avoiding = {"avoided": {"east": "the repository does not exist"}}
    made = plan([asking(pool(1), **avoiding)], two_hosts())
    assert [each.place.host_id for each in made if isinstance(each, Create)] == ["west"]
    for state, goes in (("starting", True), ("failed", True), ("loading", False), ("ready", False)):
        there = msgspec.structs.replace(replica("a", state), place=Place("east"))
        actions = plan([asking(pool(1, replicas=[there]), **avoiding)], two_hosts())
        assert [each.replica_id for each in actions if isinstance(each, Drain)] == ["a"] * goes


def test_a_new_revision_is_not_given_up_because_one_host_cannot_prepare_it() -> None:
    stuck = msgspec.structs.replace(replica("b", "failed", 2, num_failures=9), place=Place("east"))
    made = pool(1, wants=2, replicas=[replica("a"), stuck])
    actions = plan([asking(made, avoided={"east": "no such folder"})], two_hosts())
    assert not [each for each in actions if isinstance(each, GiveUp)]
    assert [each.place.host_id for each in actions if isinstance(each, Create)] == ["west"]


@pytest.mark.parametrize("hopeful", [True, False])
def test_a_new_revision_waits_for_a_host_that_may_soon_prepare_it(hopeful: bool) -> None:
    wants = {"labels": {"zone": "west"}, "avoided": {"west": "the connection was reset"}}
    actions = plan([asking(pool(1, wants=2), **wants, hopeful=frozenset(["west"] * hopeful))], two_hosts())
    assert [type(each) for each in actions] == ([] if hopeful else [GiveUp])
    nowhere = asking(pool(1, wants=2), labels={"zone": "north"}, avoided={"west": ""}, hopeful=frozenset(["west"]))
    assert [type(each) for each in plan([nowhere], two_hosts())] == [GiveUp], "it would not fit there either"
