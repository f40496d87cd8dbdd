"""The number of log-probabilities in one request is bounded, whether of the prompt or of the completion."""

from __future__ import annotations

import pytest

from engine.protocol import GenerateRequest, SamplingParams
from gateway.domain.errors import InvalidRequest
from gateway.pipeline.bounds import MAX_LOGPROB_VALUES, check_logprobs, num_logprob_values


def values(n: int = 1, num_prompt_tokens: int = 10, **sampling: int) -> int:
    params = SamplingParams(**({"max_tokens": 100} | sampling))
    return num_logprob_values(GenerateRequest("r", [1] * num_prompt_tokens, params, "t", n=n))


def test_tokens_choices_and_alternatives_are_multiplied() -> None:
    assert values() == 0
    assert values(num_logprobs=0) == 100
    assert values(num_logprobs=20, n=3) == 100 * 21 * 3
    assert values(num_prompt_logprobs=4) == 10 * 5
    assert values(num_prompt_logprobs=4, num_logprobs=1, n=2) == (10 * 5 + 100 * 2) * 2


def test_more_than_a_reply_can_show_is_refused_by_the_fields_name() -> None:
    check_logprobs(MAX_LOGPROB_VALUES, "top_logprobs")
    with pytest.raises(InvalidRequest, match="'top_logprobs' asks for up to") as refused:
        check_logprobs(MAX_LOGPROB_VALUES + 1, "top_logprobs")
    assert refused.value.param == "top_logprobs"
