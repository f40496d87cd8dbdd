"""The condition of a pool sums up its rows in a word and a sentence."""

from __future__ import annotations

import pytest

from gateway.domain.pools.condition import ReplicaStanding, condition_of
from gateway.domain.pools.model_source import check_model_source
from gateway.domain.pools.plan import MAX_FAILURES
from gateway.domain.pools.states import ReplicaState, RevisionState


def standing_of(
    state: ReplicaState, revision: int = 1, *, why: str = "", num_failures: int = 0, is_managed: bool = True
) -> ReplicaStanding:
    return ReplicaStanding(revision, state, why, num_failures, is_managed)


def shown_condition(
    *replicas: ReplicaStanding,
    num_replicas: int = 1,
    revision: int | None = 1,
    wanted: int = 1,
    state: RevisionState = "prepared",
    why: str = "",
    shortage: str = "",
) -> tuple[str, str]:
    found = condition_of(
        num_replicas=num_replicas,
        revision=revision,
        wanted_revision=wanted,
        wanted_state=state,
        wanted_why=why,
        replicas=replicas,
        shortage=shortage,
    )
    assert found.num_ready == sum(each.state == "ready" for each in replicas)
    return found.state, found.why


READY, LOADING, DRAINING = standing_of("ready"), standing_of("loading"), standing_of("draining")
FAILED = standing_of("failed", why="it ended", num_failures=1)


def test_a_new_pool_says_how_far_it_is() -> None:
    assert shown_condition(revision=None, state="preparing", why="downloading 3 GB") == (
        "starting",
        "Revision 1 is being prepared: downloading 3 GB.",
    )
    loads = standing_of("loading", why="reading weights")
    assert shown_condition(loads, revision=None, num_replicas=2) == (
        "starting",
        "0 of 2 replicas of revision 1 are ready; one loads: reading weights.",
    )
    assert shown_condition(revision=None, state="failed", why="no such model") == ("failed", "no such model")


def test_a_server_that_nobody_here_starts_says_why_it_is_not_there() -> None:
    away = standing_of("loading", why="the server does not answer", is_managed=False)
    assert shown_condition(away, num_replicas=0) == (
        "scaling",
        "0 of 1 replicas are ready: the server does not answer.",
    )
    assert shown_condition(away, standing_of("ready", is_managed=False), num_replicas=0) == (
        "scaling",
        "1 of 2 replicas is ready: the server does not answer.",
    )


def test_a_pool_without_room_says_so_where_people_look() -> None:
    shortage = "There is no room for one more. A replica needs 2.0 GiB of memory; gpu-1 has 1.0 GiB in all."
    assert shown_condition(READY, num_replicas=2, shortage=shortage) == (
        "scaling",
        f"1 of 2 replicas is ready. {shortage}",
    )
    assert shown_condition(revision=None, shortage=shortage) == (
        "starting",
        f"0 of 1 replicas of revision 1 are ready. {shortage}",
    )


def test_a_pool_is_ready_when_as_many_run_as_are_wanted() -> None:
    assert shown_condition(READY) == ("ready", "")
    assert shown_condition(READY, LOADING, num_replicas=2) == ("scaling", "1 of 2 replicas is ready.")
    assert shown_condition(READY, DRAINING) == ("scaling", "2 replicas run, 1 is wanted.")
    assert shown_condition(READY, READY, READY, FAILED, num_replicas=3)[0] == "scaling"
    assert shown_condition(standing_of("ready", is_managed=False), num_replicas=0) == ("ready", "")


def test_a_drained_pool_stops() -> None:
    assert shown_condition(DRAINING, num_replicas=0) == ("draining", "1 replica ends the last requests.")
    assert shown_condition(num_replicas=0) == ("stopped", "No replica is wanted.")


def test_a_change_of_revision_is_told_with_its_progress_and_what_is_wrong() -> None:
    state, why = shown_condition(READY, standing_of("ready", 2), standing_of("loading", 2), num_replicas=2, wanted=2)
    assert (state, why) == ("changing", "1 of 2 replicas of revision 2 is ready.")
    state, why = shown_condition(READY, standing_of("failed", 2, why="out of memory", num_failures=1), wanted=2)
    assert (state, "A replica failed and is started again: out of memory" in why) == ("changing", True)
    assert shown_condition(READY, wanted=2, state="failed", why="no answer") == (
        "changing",
        "Revision 2 failed: no answer.",
    )


def test_replicas_that_fail_again_and_again_make_the_pool_fail_unless_another_serves() -> None:
    crashing = standing_of("failed", why="out of memory", num_failures=MAX_FAILURES)
    assert shown_condition(crashing) == ("failed", "Replicas fail again and again: out of memory.")
    assert shown_condition(FAILED)[0] == "scaling"
    assert shown_condition(crashing, READY, num_replicas=2)[0] == "scaling"


@pytest.mark.parametrize(
    "source", ["demo", "/models/qwen", "/models/a b.gguf", "Qwen/Qwen3-0.6B", "hf-internal-testing/tiny_1.0"]
)
def test_a_model_is_named_in_one_of_four_ways(source: str) -> None:
    check_model_source(source)


@pytest.mark.parametrize(
    "source", ["", "qwen", "./models/qwen", "/", "//", "a/b/c", "a/b@main", "https://x/y", "/a\n", "a" * 2000, "/\0"]
)
def test_another_text_names_no_model(source: str) -> None:
    with pytest.raises(ValueError, match=r"expected 'demo'|control characters|more than"):
        check_model_source(source)
