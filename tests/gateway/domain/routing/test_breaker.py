"""A breaker opens soon after a server fails, then allows one trial request at a time, and closes with a good answer."""

from __future__ import annotations

import random

import pytest

from gateway.domain.routing.breaker import CONSECUTIVE, FIRST_OPEN_S, MAX_OPEN_S, AdmissionToken, Breaker


def take_token(breaker: Breaker, now_s: float) -> AdmissionToken:
    admitted = breaker.take(now_s)
    assert admitted is not None
    return admitted


def fail_times(breaker: Breaker, now_s: float, times: int = CONSECUTIVE) -> None:
    for _ in range(times):
        breaker.failed(take_token(breaker, now_s), now_s)


def test_failures_in_a_row_open_it_and_one_good_trial_closes_it() -> None:
    breaker = Breaker()
    fail_times(breaker, 0.0, CONSECUTIVE - 1)
    assert breaker.state(0.0) == "closed"
    fail_times(breaker, 0.0, 1)
    assert (breaker.state(0.0), breaker.take(0.5)) == ("open", None)
    assert breaker.state(FIRST_OPEN_S) == "half-open"
    trial = take_token(breaker, FIRST_OPEN_S)
    assert breaker.take(FIRST_OPEN_S) is None, "one trial at a time"
    breaker.succeeded(trial, FIRST_OPEN_S)
    assert breaker.state(FIRST_OPEN_S) == "closed"
    fail_times(breaker, FIRST_OPEN_S, CONSECUTIVE - 1)
    assert breaker.state(FIRST_OPEN_S) == "closed", "what failed before does not count any more"


def test_each_failed_trial_doubles_the_time_up_to_a_bound() -> None:
    breaker, now_s, waits = Breaker(), 0.0, []
    fail_times(breaker, now_s)
    for _ in range(8):
        wait_s = breaker.open_for_s(now_s)
        waits.append(wait_s)
        now_s += wait_s
        breaker.failed(take_token(breaker, now_s), now_s)
    assert waits[:4] == [FIRST_OPEN_S, 2 * FIRST_OPEN_S, 4 * FIRST_OPEN_S, 8 * FIRST_OPEN_S]
    assert max(waits) == MAX_OPEN_S


def test_half_of_the_last_requests_failing_opens_it_though_others_succeed() -> None:
    breaker, now_s = Breaker(), 0.0
    for number in range(40):
        now_s += 0.1
        if (admitted := breaker.take(now_s)) is None:
            break
        (breaker.failed if number % 2 else breaker.succeeded)(admitted, now_s)
    assert breaker.state(now_s) == "open"
    assert now_s <= 2.0


def test_a_trial_whose_client_left_is_tried_again() -> None:
    breaker = Breaker()
    fail_times(breaker, 0.0)
    breaker.gave_up(take_token(breaker, FIRST_OPEN_S))
    assert breaker.take(FIRST_OPEN_S)


@pytest.mark.parametrize("way", ["succeeded", "failed", "gave_up"])
def test_a_request_from_before_it_opened_decides_no_trial(way: str) -> None:
    breaker = Breaker()
    before = take_token(breaker, 0.0)
    fail_times(breaker, 0.0)
    trial = take_token(breaker, FIRST_OPEN_S)
    match way:
        case "succeeded":
            breaker.succeeded(before, FIRST_OPEN_S)
        case "failed":
            breaker.failed(before, FIRST_OPEN_S)
        case _:
            breaker.gave_up(before)
    assert breaker.state(FIRST_OPEN_S) == "half-open"
    assert breaker.take(FIRST_OPEN_S) is None, "the trial is under way"
    breaker.succeeded(trial, FIRST_OPEN_S)
    assert breaker.state(FIRST_OPEN_S) == "closed"


def test_whatever_happens_a_server_that_is_well_again_gets_requests_within_ten_seconds() -> None:
    for seed in range(200):
        draw, breaker, now_s = random.Random(seed), Breaker(), 0.0
        for _ in range(300):
            now_s += draw.random()
            if (admitted := breaker.take(now_s)) is not None:
                match draw.randrange(4):
                    case 0:
                        breaker.succeeded(admitted, now_s)
                    case 1:
                        breaker.gave_up(admitted)
                    case _:
                        breaker.failed(admitted, now_s)
        until_s = now_s + 10.0
        while now_s < until_s and breaker.state(now_s) != "closed":
            now_s += 0.1
            if (admitted := breaker.take(now_s)) is not None:
                breaker.succeeded(admitted, now_s)
        assert breaker.state(now_s) == "closed", seed
