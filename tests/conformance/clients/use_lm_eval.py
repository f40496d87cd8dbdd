"""lm-evaluation-harness asks the same tasks of this API and, by its own backend, of the same weights: both must agree.

Both compute in fp32. Only the order of sums may differ: in prompts that came in several chunks, or from the cache.
"""

from __future__ import annotations

import os
from pathlib import Path

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

TASKS = Path(__file__).parent / "lm_eval_tasks"
TOLERANCE = 1e-3
"""The tolerance of a log-likelihood, in nats: far below what changes an accuracy."""


@pytest.fixture(scope="module")
def theirs() -> dict:
    weights = {"pretrained": os.environ["CONFORMANCE_WEIGHTS"], "dtype": "float32", "device": "cpu"}
    return _evaluate("hf", weights, batch_size=8)


@pytest.fixture(scope="module", params=[1, 8], ids=["one by one", "eight at once"])
def ours(request, place) -> dict:
    """Return the results of the harness over the API. Prompts are sent as token ids."""
    return _evaluate(
        "local-completions",
        {
            "model": place.model,
            "base_url": f"{place.url}/completions",
            "tokenizer": os.environ["CONFORMANCE_WEIGHTS"],
            "tokenizer_backend": "huggingface",
            "num_concurrent": request.param,
            "max_retries": 1,
        },
        batch_size=request.param,
    )


def _evaluate(model: str, arguments: dict[str, object], batch_size: int) -> dict:
    return lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=["lorikeet_choices", "lorikeet_answers", "lorikeet_texts"],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        batch_size=batch_size,
        bootstrap_iters=0,
    )


def _answers(evaluated: dict, task: str) -> list:
    samples = sorted(evaluated["samples"][task], key=lambda sample: sample["doc_id"])
    return [sample["filtered_resps"] for sample in samples]


@pytest.mark.parametrize("metric", ["acc", "acc_norm"])
def test_accuracies_are_the_same(ours, theirs, metric, record_property):
    mine, reference = (each["results"]["lorikeet_choices"][f"{metric},none"] for each in (ours, theirs))
    record_property("figure", f"{metric} {mine} and {reference}, of 50 questions")
    assert mine == reference


def test_log_likelihoods_agree(ours, theirs):
    pairs = [
        (mine, reference)
        for mine_of_doc, reference_of_doc in zip(
            _answers(ours, "lorikeet_choices"), _answers(theirs, "lorikeet_choices"), strict=True
        )
        for mine, reference in zip(mine_of_doc, reference_of_doc, strict=True)
    ]
    assert len(pairs) == 200
    assert max(abs(float(mine[0]) - float(reference[0])) for mine, reference in pairs) < TOLERANCE
    assert all(str(mine[1]) == str(reference[1]) for mine, reference in pairs), "whether a choice is the greedy one"


def test_perplexities_agree(ours, theirs, record_property):
    mine, reference = (each["results"]["lorikeet_texts"]["word_perplexity,none"] for each in (ours, theirs))
    record_property("figure", f"{mine:.2f} and {reference:.2f} a word")
    assert mine == pytest.approx(reference, rel=TOLERANCE)


def test_greedy_texts_are_the_same(ours, theirs):
    assert _answers(ours, "lorikeet_answers") == _answers(theirs, "lorikeet_answers")
