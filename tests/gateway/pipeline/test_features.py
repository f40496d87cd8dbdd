"""A request with a sampling parameter that a server does not support is refused; the parameter is never dropped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.protocol import Grammar, SamplingParams
from gateway.backends.base import ALL_FEATURES
from gateway.domain.errors import InvalidRequest
from gateway.pipeline.features import check_features
from gateway.pipeline.requests import FieldNames, TextRequest

OF_EVERY_SERVER = {"max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty"}
"""The sampling parameters that every driver sends."""

VALUES: dict[str, Any] = {
    "top_k": 5,
    "min_p": 0.1,
    "seed": 1,
    "min_tokens": 2,
    "stop_token_ids": (3,),
    "ignore_eos": True,
    "repetition_penalty": 1.1,
    "logit_bias": {4: 1.0},
    "allowed_token_ids": (5,),
    "num_logprobs": 0,
    "num_prompt_logprobs": 0,
    "grammar": Grammar("regex", "a"),
}
"""For each other parameter, a value that is not its default."""


def request(**sampling: Any) -> TextRequest:
    params = msgspec.structs.replace(SamplingParams(max_tokens=0), **sampling)
    return TextRequest(prompt="text", names=FieldNames(prompt="prompt"), sampling=params)


@pytest.mark.parametrize("name", [name for name in SamplingParams.__struct_fields__ if name not in OF_EVERY_SERVER])
def test_a_parameter_that_a_server_cannot_do_is_refused(name: str) -> None:
    assert name in VALUES, "a new parameter: give it a value here, and a feature in gateway/pipeline/features.py"
    check_features(request(), frozenset())
    check_features(request(**{name: VALUES[name]}), ALL_FEATURES)
    with pytest.raises(InvalidRequest):
        check_features(request(**{name: VALUES[name]}), frozenset())
