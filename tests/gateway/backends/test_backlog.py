"""Deltas that wait for a slow reader are joined without losing a token, a log probability or an end."""

from __future__ import annotations

from engine.protocol import Delta, TokenLogprobs
from gateway.backends.engine.backlog import MAX_APART, Backlog, join_deltas


def logprobs(count: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(-1.0, [1, 2], [-1.0, -2.0]) for _ in range(count)]


def test_waiting_deltas_of_a_choice_become_one_delta_with_all_tokens_and_the_end() -> None:
    deltas = [
        Delta("r", [1], 1, prompt_logprobs=[None]),
        Delta("r", [9], 1, 1),
        Delta("r", [2, 3], 3),
        Delta("r", [8], 2, 1, finish_reason="length"),
        Delta("r", [4], 4),
    ]
    assert join_deltas(deltas) == [
        Delta("r", [1, 2, 3, 4], 4, prompt_logprobs=[None]),
        Delta("r", [9, 8], 2, 1, finish_reason="length"),
    ]
    assert join_deltas(join_deltas(deltas)) == join_deltas(deltas)
    assert join_deltas([]) == []


def test_each_token_keeps_its_log_probabilities() -> None:
    first, second, end = (
        Delta("r", [1], 1, logprobs=logprobs(1)),
        Delta("r", [2, 3], 3, logprobs=logprobs(2)),
        Delta("r", [], 4, logprobs=[], finish_reason="stop", stop_token_id=5),
    )
    (delta,) = join_deltas([first, second, end])
    assert delta == Delta("r", [1, 2, 3], 4, logprobs=logprobs(3), finish_reason="stop", stop_token_id=5)


def test_a_reader_that_keeps_up_takes_each_delta_as_it_came() -> None:
    backlog, deltas = Backlog(), [Delta("r", [number], number + 1) for number in range(MAX_APART)]
    for delta in deltas:
        backlog.add(delta)
    assert backlog
    assert backlog.num_bytes == 0
    assert backlog.take() == deltas
    assert not backlog
    assert backlog.take() == []


def test_a_long_backlog_stays_small_and_is_taken_in_order_and_in_small_parts() -> None:
    count = 10 * MAX_APART + 3
    deltas = [Delta("r", [number], number + 1, logprobs=logprobs(1)) for number in range(count)]
    backlog = Backlog()
    for delta in deltas:
        backlog.add(delta)
    assert 0 < backlog.num_bytes < 60 * count
    taken, longest = [], 0
    while some := backlog.take():
        taken += some
        longest = max(longest, sum(len(delta.token_ids) for delta in some))
    assert join_deltas(taken) == join_deltas(deltas)
    assert longest <= MAX_APART + 1
    assert (backlog.num_bytes, bool(backlog)) == (0, False)


def test_two_steps_of_many_choices_are_not_joined() -> None:
    backlog, deltas = Backlog(40), [Delta("r", [1], step, choice) for step in (1, 2) for choice in range(40)]
    for delta in deltas:
        backlog.add(delta)
    assert backlog.take() == deltas
