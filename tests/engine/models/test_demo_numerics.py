"""The real demo model and its trained adapters, in fp32, against transformers and peft: the first layers of each,
all layers with --full."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from adapters.demo import DEMO
from adapters.store import AdapterStore
from engine.config import EngineConfig
from engine.protocol import GenerateRequest
from tests.demo import NUM_LAYERS, QUESTIONS, chat_ids, demo_model_dir, first_layers
from tests.engine.harness import Answer, engine_config, greedy, run_engine
from tests.engine.reference import Claim, assert_greedy_follows

NUM_TOKENS, NUM_TOKENS_FULL = 18, 64  # tokens of an answer: both fill blocks of 16 and begin others


class Demo:
    """The engine's configuration, and the reference model and the digest of the base ("") and of each adapter."""

    def __init__(self, folder: Path, full: bool) -> None:
        store_dir, model_dir, paths = folder / "store", demo_model_dir(), {demo.name: demo.path for demo in DEMO}
        if not full:
            model_dir = first_layers(model_dir, folder / "model", NUM_LAYERS)
            paths = {name: first_layers(path, folder / name, NUM_LAYERS) for name, path in paths.items()}
        store = AdapterStore(store_dir)
        self.digests = {"": ""} | {name: store.add(path) for name, path in paths.items()}
        self.config: EngineConfig = engine_config(
            model_dir,
            store_dir,
            kv_cache_bytes=(256 if full else 32) << 20,
            max_batched_tokens=128 if full else 64,
            max_num_seqs=32,
            num_threads=0 if full else 1,  # beside others more threads only wait
        )
        base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
        first, *others = paths
        model = PeftModel.from_pretrained(base, paths[first], adapter_name=first).eval()
        for name in others:
            model.load_adapter(paths[name], adapter_name=name)
        self._model = model

    def assert_follow(self, name: str, requests: list[GenerateRequest], answers: dict[str, Answer]) -> None:
        """Check answers against the reference, with log-probabilities within 1e-3.

        The tolerance is far above the effect of another order of fp32 sums, and far below an error.
        """
        claims = [
            Claim(request.prompt_token_ids, answers[request.request_id].token_ids, answers[request.request_id].logprobs)
            for request in requests
        ]
        if name:
            self._model.set_adapter(name)
            assert_greedy_follows(self._model, claims, tolerance=1e-3)
        else:
            with self._model.disable_adapter():
                assert_greedy_follows(self._model, claims, tolerance=1e-3)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, full: bool) -> Demo:
    return Demo(tmp_path_factory.mktemp("demo"), full)


def test_greedy_text_and_logprobs_equal_transformers_and_peft(demo: Demo, full: bool) -> None:
    """The base and each demo adapter answer every prompt, all in shared batches."""
    questions, num_tokens = (QUESTIONS, NUM_TOKENS_FULL) if full else (QUESTIONS[:1], NUM_TOKENS)
    requests = {
        name: [
            greedy(f"{name}/{i}", chat_ids(question), num_tokens, adapter=digest, ignore_eos=True)
            for i, question in enumerate(questions)
        ]
        for name, digest in demo.digests.items()
    }
    answers = run_engine(demo.config, [request for of_name in requests.values() for request in of_name])
    assert all(len(answer.token_ids) == num_tokens for answer in answers.values())
    for name, of_name in requests.items():
        demo.assert_follow(name, of_name, answers)


def test_a_mixed_staggered_batch_gives_each_request_what_it_gets_alone(demo: Demo, full: bool) -> None:
    """16 requests of the base and three adapters arrive while others run, with prompts of 1 to 140 tokens, at full
    size of 1 to 300, around the borders of blocks, some longer than a step."""
    rnd, num_tokens = random.Random(3), 16 if full else 6
    text = [token for question in QUESTIONS * 4 for token in chat_ids(question)]
    lengths = [1, 2, 3, 5, 15, 16, 17, 31, 33, 48, 63, 64, 65, *((100, 130, 300) if full else (66, 80, 140))]
    rnd.shuffle(lengths)
    names = [list(demo.digests)[i % 4] for i in range(16)]
    requests = [
        greedy(f"r{i}", text[i : i + length], num_tokens, adapter=demo.digests[name], ignore_eos=True)
        for i, (length, name) in enumerate(zip(lengths, names, strict=True))
    ]
    together = run_engine(demo.config, requests[:4], {step: requests[2 * step : 2 * step + 2] for step in range(2, 8)})
    assert all(len(together[request.request_id].token_ids) == num_tokens for request in requests)
    for request, name in zip(requests, names, strict=True):
        demo.assert_follow(name, [request], together)
