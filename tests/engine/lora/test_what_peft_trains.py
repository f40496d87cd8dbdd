"""Adapters of every kind answer as peft does, in fp32, and so does the model that an adapter is merged into."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import LlamaForCausalLM

from adapters.merge import merge
from adapters.ref import content_key
from adapters.store import AdapterStore
from tests.engine.harness import Answer, engine_config, greedy, run_engine
from tests.engine.lora.trained import KINDS, train
from tests.engine.models.tiny import save_tiny
from tests.engine.reference import Claim, assert_greedy_follows

LOGPROB_TOLERANCE = 1e-4
LOGIT_TOLERANCE = 1e-4
NUM_TOKENS = 12


class Trained(msgspec.Struct):
    model_dir: Path
    folders: dict[str, Path]
    models: dict[str, torch.nn.Module]
    prompts: dict[str, list[int]]
    answers: dict[str, Answer]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return trained adapters of all kinds, and the engine's answers when it serves all in one batch."""
    root = tmp_path_factory.mktemp("trained")
    base = save_tiny("llama", root / "model")
    folders = {kind: root / kind for kind in KINDS}
    models = {kind: train(root / "model", kind, folder) for kind, folder in folders.items()}
    store = AdapterStore(root / "store")
    keys = {kind: content_key("tenant", store.add(folder)) for kind, folder in folders.items()}
    rnd = random.Random(3)
    prompts = {kind: [rnd.randrange(base.config.vocab_size) for _ in range(rnd.randrange(3, 40))] for kind in KINDS}
    requests = [greedy(kind, prompts[kind], NUM_TOKENS, adapter=keys[kind]) for kind in KINDS]
    answers = run_engine(engine_config(root / "model", root / "store"), requests)
    return Trained(root / "model", folders, models, prompts, answers)


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_answers_as_peft_does(kind: str, trained: Trained) -> None:
    answer = trained.answers[kind]
    assert answer.final.finish_reason == "length"
    claim = Claim(trained.prompts[kind], answer.token_ids, answer.logprobs)
    assert_greedy_follows(trained.models[kind], [claim], LOGPROB_TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_merged_model_equals_peft(kind: str, trained: Trained, tmp_path: Path) -> None:
    merged = merge(trained.model_dir, trained.folders[kind], tmp_path / "merged")
    assert merged.num_modules > 0
    tokens = torch.tensor([trained.prompts[kind]])
    with torch.inference_mode():
        base = LlamaForCausalLM.from_pretrained(trained.model_dir)(tokens).logits
        expected = trained.models[kind](tokens).logits
        found = LlamaForCausalLM.from_pretrained(tmp_path / "merged")(tokens).logits
    assert (expected - base).abs().max() > 100 * LOGIT_TOLERANCE, "the adapter does something"
    torch.testing.assert_close(found, expected, rtol=0, atol=LOGIT_TOLERANCE)


def test_the_engine_serves_a_merged_model_as_base_and_adapter(trained: Trained, tmp_path: Path) -> None:
    kind = "rank-and-alpha-pattern"
    merge(trained.model_dir, trained.folders[kind], tmp_path / "merged")
    config = engine_config(tmp_path / "merged", tmp_path / "store")
    answer = run_engine(config, [greedy(kind, trained.prompts[kind], NUM_TOKENS)])[kind]
    claim = Claim(trained.prompts[kind], answer.token_ids, answer.logprobs)
    assert_greedy_follows(trained.models[kind], [claim], LOGPROB_TOLERANCE)
