"""Log-probabilities of the completion and of the prompt equal transformers', however a prompt is cut into chunks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine.protocol import MAX_LOGPROBS, TokenLogprobs
from engine.sampling.logprobs import token_logprobs
from engine.sequence import Chunk
from tests.engine.harness import greedy
from tests.engine.models.tiny import save_tiny
from tests.engine.sampling.plans import HandMadePlans, decode

TOLERANCE = 1e-3
PROMPT = [(i * i * 7 + 3 * i) % 199 for i in range(70)]  # longer than what is scored at once


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    folder = tmp_path_factory.mktemp("model")
    return save_tiny("llama", folder), folder


def reference(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """Return log-probabilities of shape [len(tokens), V]: row p is the distribution of the token at p + 1."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].log_softmax(-1)


def assert_scores(expected: torch.Tensor, token_ids: list[int], ours: list[TokenLogprobs], count: int) -> None:
    for row, token, scored in zip(expected, token_ids, ours, strict=True):
        assert scored.logprob == pytest.approx(row[token].item(), abs=TOLERANCE)
        assert scored.top_logprobs == pytest.approx(row.topk(count).values.tolist(), abs=TOLERANCE)
        assert row[scored.top_token_ids].tolist() == pytest.approx(scored.top_logprobs, abs=TOLERANCE)


@pytest.mark.parametrize("cuts", [(), *((border,) for border in range(1, 70)), (1, 2, 3, 33, 68, 69)], ids=str)
def test_prompt_logprobs_equal_transformers(
    model: tuple[PreTrainedModel, Path], plans: HandMadePlans, cuts: tuple[int, ...]
) -> None:
    sequence = plans.start(greedy("r", PROMPT, 1, num_prompt_logprobs=3))
    scored = [entry for result in plans.prefill(sequence, cuts) for entry in result.prompt_logprobs]
    assert_scores(reference(model[0], PROMPT)[:-1], PROMPT[1:], scored, count=3)


@pytest.fixture(scope="module")
def plans(model: tuple[PreTrainedModel, Path]) -> HandMadePlans:
    return HandMadePlans(model[1], model[1].parent / "store")


def test_only_the_first_choice_scores_the_prompt_and_only_once(plans: HandMadePlans) -> None:
    request = greedy("r", PROMPT, 2, num_prompt_logprobs=0)
    first, second = plans.start(request), plans.start(request, index=1)
    ((of_first,), (of_second,)) = plans.prefill(first), plans.prefill(second)
    assert len(of_first.prompt_logprobs) == 69 and not of_second.prompt_logprobs
    first.num_computed = 0  # as after a preemption
    (again,) = plans.prefill(first)
    assert not again.prompt_logprobs and len(again.sampled) == 1


def test_requests_of_one_step_are_scored_apart(model: tuple[PreTrainedModel, Path], plans: HandMadePlans) -> None:
    prompts = {"a": PROMPT[:40], "b": PROMPT[20:], "c": PROMPT[5:6], "d": PROMPT[30:50]}
    sequences = {
        name: plans.start(greedy(name, prompt, 3, num_prompt_logprobs=count, num_logprobs=count, temperature=1.0))
        for (name, prompt), count in zip(prompts.items(), (0, 20, 5, None), strict=True)
    }
    results = plans.step(prefills=[Chunk.of(s, 0, s.num_prompt_tokens) for s in sequences.values()])
    second = plans.step(decodes=[decode(s) for s in sequences.values()])
    for (name, sequence), result, after in zip(sequences.items(), results, second, strict=True):
        count = sequence.request.sampling.num_logprobs
        if count is None:
            assert not result.prompt_logprobs and result.sampled[0].logprobs is None
            continue
        expected = reference(model[0], sequence.token_ids)
        genescored = [s.logprobs for s in (*result.sampled, *after.sampled) if s.logprobs]
        scored = result.prompt_logprobs + genescored
        assert_scores(expected[:-1], sequence.token_ids[1:], scored, count)
        assert len(scored) == len(prompts[name]) + 1


def test_what_changes_a_choice_does_not_change_its_logprob(
    model: tuple[PreTrainedModel, Path], plans: HandMadePlans
) -> None:
    changes = {"logit_bias": {17: 100.0}, "temperature": 0.3, "frequency_penalty": 2.0, "top_k": 2, "seed": 1}
    sequence = plans.start(greedy("r", PROMPT, 2, num_logprobs=1, **changes))
    (result,) = plans.prefill(sequence)
    assert sequence.token_ids[-1] == 17
    assert result.sampled[0].logprobs is not None
    assert_scores(reference(model[0], PROMPT)[-1:], [17], [result.sampled[0].logprobs], count=1)


def test_a_request_without_completion_gets_its_prompt_scored_and_nothing_chosen(plans: HandMadePlans) -> None:
    sequence = plans.start(greedy("r", PROMPT, 0, num_prompt_logprobs=1))
    (result,) = plans.prefill(sequence)
    assert len(result.prompt_logprobs) == 69 and not result.sampled


def test_equally_likely_tokens_are_named_in_the_same_order_whatever_neighbors_ask() -> None:
    logits = torch.randn(6, 300).bfloat16().float()
    together = token_logprobs(logits, [0] * 6, [1, 5, 20, 0, 2, MAX_LOGPROBS])
    alone = [token_logprobs(logits[i : i + 1], [0], [count])[0] for i, count in enumerate((1, 5, 20, 0, 2, 20))]
    assert [scored.top_token_ids for scored in together] == [scored.top_token_ids for scored in alone]
