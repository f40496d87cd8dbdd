"""A step of batch work alone pauses for interactive requests, and nothing of it is lost."""

from __future__ import annotations

import itertools

import pytest

from engine.protocol import Abort, BatchTerms, GenerateRequest
from tests.engine.scheduling.scheduler_model import expected_choice
from tests.engine.scripted_core import NUM_PARTS, deltas, final, request, run_core, stats, text

WITHOUT_PAUSE = ["begin 1", *(f"part {number}" for number in range(1, NUM_PARTS + 1))]


def line(name: str = "line", **changes: object) -> GenerateRequest:
    return request(name, batch=BatchTerms(), **changes)


def test_a_request_that_arrives_is_computed_before_the_step_goes_on() -> None:
    journal: list[str] = []
    asked = request("asked", max_tokens=1)
    events, plans = run_core(line(max_tokens=3), ahead=False, by_part={NUM_PARTS + 2: [asked]}, journal=journal)
    begun, arrived = journal.index("begin 2"), journal.index("launch 3")
    assert journal[begun:arrived] == ["begin 2", f"part {NUM_PARTS + 1}", f"part {NUM_PARTS + 2}"]
    assert [chunk.sequence.request_id for chunk in plans[2].chunks] == ["asked"]
    assert text(events, "asked") == expected_choice(asked, seed=5).shown
    assert text(events, "line") == expected_choice(line(max_tokens=3), seed=5).shown


def test_beside_other_requests_the_step_goes_on_for_its_share_of_their_time() -> None:
    journal: list[str] = []
    asked = request("asked", max_tokens=30)
    events, _ = run_core(line(max_tokens=2), ahead=False, by_part={2: [asked]}, journal=journal)
    assert text(events, "asked") == expected_choice(asked, seed=5).shown
    assert text(events, "line") == expected_choice(line(max_tokens=2), seed=5).shown
    assert journal[: journal.index("launch 2")] == ["begin 1", "part 1", "part 2"]
    parts = [journal.index(f"part {number}") for number in (2, 3, 4, 5)]
    for earlier, later in itertools.pairwise(parts):
        assert any(each.startswith("launch") for each in journal[earlier:later])


def test_a_line_that_is_aborted_ends_the_pause_before_others_get_its_memory() -> None:
    journal: list[str] = []
    asked = request("asked", max_tokens=4)
    events, plans = run_core(
        line("gone", max_tokens=3, prompt_token_ids=[1, 2, 3, 4, 5, 6]),
        stays := line("stays", max_tokens=3, prompt_token_ids=[6, 5, 4, 3, 2, 1]),
        ahead=False,
        by_part={2: [asked, Abort("gone")]},
        journal=journal,
        num_blocks=16,
    )
    assert journal[: journal.index("launch 2")] == WITHOUT_PAUSE
    assert final(events, "gone").finish_reason == "abort"
    assert not deltas(events, "gone")
    assert [chunk.sequence.request_id for chunk in plans[0].chunks] == ["gone", "stays"]
    assert text(events, "stays") == expected_choice(stays, seed=5).shown
    assert text(events, "asked") == expected_choice(asked, seed=5).shown


@pytest.mark.parametrize("part", [52, 62])
def test_a_request_waits_for_the_memory_of_a_step_that_pauses_and_is_not_preempted_for_it(part: int) -> None:
    asked = request("asked", max_tokens=8)
    lines = [line(str(number), max_tokens=20, prompt_token_ids=[number, 1, 2, 3]) for number in range(3)]
    events, _ = run_core(*lines, ahead=False, by_part={part: [asked]}, num_blocks=17)
    assert stats(events).preemptions_total == 0
    assert text(events, "asked") == expected_choice(asked, seed=5).shown
    for each in lines:
        assert text(events, each.request_id) == expected_choice(each, seed=5).shown


@pytest.mark.parametrize("part", [3, NUM_PARTS + 1])
def test_a_fault_in_any_part_ends_the_requests_of_that_step_alone(part: int) -> None:
    asked = request("asked", max_tokens=3)
    faults = {("part", part): RuntimeError("a wrong shape")}
    events, _ = run_core(line(), ahead=False, by_part={2: [asked]}, faults=faults)
    assert final(events, "line").error is not None
    assert text(events, "asked") == expected_choice(asked, seed=5).shown


def test_more_batch_work_does_not_interrupt_the_step() -> None:
    journal: list[str] = []
    events, _ = run_core(line(max_tokens=1), ahead=False, by_part={2: [line("more", max_tokens=1)]}, journal=journal)
    assert journal[: len(WITHOUT_PAUSE)] == WITHOUT_PAUSE
    assert text(events, "more") == expected_choice(line(max_tokens=1), seed=5).shown
