"""What waits for a slow reader is joined, and says the same."""

from __future__ import annotations

from engine.protocol import Delta, TokenLogprobs
from gateway.backends.backlog import joined, num_values


def logprobs(count: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(-1.0, [1, 2], [-1.0, -2.0]) for _ in range(count)]


def test_each_choice_is_one_delta_with_all_of_its_tokens_and_its_end() -> None:
    deltas = [
        Delta("r", [1], 1, prompt_logprobs=[None]),
        Delta("r", [9], 1, 1),
        Delta("r", [2, 3], 3),
        Delta("r", [8], 2, 1, finish_reason="length"),
        Delta("r", [4], 4),
    ]
    assert joined(deltas) == [
        Delta("r", [1, 2, 3, 4], 4, prompt_logprobs=[None]),
        Delta("r", [9, 8], 2, 1, finish_reason="length"),
    ]
    assert joined(joined(deltas)) == joined(deltas)
    assert joined([]) == []


def test_each_token_keeps_its_log_probabilities() -> None:
    first, second, end = (
        Delta("r", [1], 1, logprobs=logprobs(1)),
        Delta("r", [2, 3], 3, logprobs=logprobs(2)),
        Delta("r", [], 3, logprobs=[], finish_reason="stop"),
    )
    (delta,) = joined([first, second, end])
    assert delta == Delta("r", [1, 2, 3], 3, logprobs=logprobs(3), finish_reason="stop")
    assert num_values([delta]) == 3 + 3 * (1 + 2)
    assert num_values([Delta("r", [1, 2], 2)]) == 2
