"""A prediction never changes a text, right, half right or wrong; the tokens tried and accepted of it are counted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.protocol import GenerateRequest
from engine.scheduling.limits import Limits, check_request
from tests.engine.harness import Answer, engine_config, greedy, run_engine
from tests.engine.models.tiny import save_tiny

NUM_TOKENS = 32


def request_with(name: str, predicted: list[int]) -> GenerateRequest:
    return greedy(name, [5, 17, 33, 5], NUM_TOKENS, ignore_eos=True, predicted_token_ids=predicted)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("prediction")
    save_tiny("llama", folder / "model")

    def run(requests: list[GenerateRequest], num_draft_tokens: int) -> dict[str, Answer]:
        config = engine_config(folder / "model", folder / "store", num_draft_tokens=num_draft_tokens)
        return run_engine(config, requests)

    return run


def test_the_text_is_the_same_whatever_is_predicted(run) -> None:
    text = run([request_with("plain", [])], 0)["plain"].token_ids
    rnd = random.Random(1)
    predictions = {
        "right": text,
        "longer": [*text, *text],
        "changed": [token if at % 9 else (token + 1) % 199 for at, token in enumerate(text)],
        "shifted": [7, *text[:10], *text[14:]],
        "wrong": [rnd.randrange(199) for _ in text],
    }
    answers = run([request_with(name, predicted) for name, predicted in predictions.items()], 4)
    accepted, tried = {}, {}
    for name, answer in answers.items():
        assert answer.token_ids == text, name
        usage = answer.final.usage
        assert usage.completion_tokens == NUM_TOKENS
        accepted[name], tried[name] = usage.accepted_draft_tokens, usage.draft_tokens
    assert accepted["right"] == tried["right"] >= 0.7 * NUM_TOKENS
    assert accepted["right"] >= accepted["changed"] > accepted["wrong"]
    assert accepted["wrong"] < tried["wrong"]


def test_without_speculation_a_prediction_has_no_effect(run) -> None:
    text = run([request_with("plain", [])], 0)["plain"].token_ids
    answer = run([request_with("r", text)], 0)["r"]
    assert answer.token_ids == text
    assert (answer.final.usage.draft_tokens, answer.final.usage.accepted_draft_tokens) == (0, 0)


def test_an_engine_refuses_what_no_gateway_sends() -> None:
    limits = Limits(
        max_num_seqs=4,
        max_batched_tokens=64,
        max_waiting=4,
        max_model_len=64,
        vocab_size=199,
        eos_token_ids=frozenset({0}),
        token_bytes=1,
    )
    assert check_request(request_with("r", [1, 2]), limits) is None
    for predicted, n in (([199], 1), ([-1], 1), ([1] * 65, 1), ([1], 2)):
        request = greedy("r", [5], 8, predicted_token_ids=predicted, n=n)
        error = check_request(request, limits)
        assert error is not None and "predicted_token_ids" in error.message
    allowed = greedy("r", [5], 8, allowed_token_ids=[1], grammar={"kind": "json_object"})
    error = check_request(allowed, limits)
    assert error is not None and "allowed_token_ids" in error.message
