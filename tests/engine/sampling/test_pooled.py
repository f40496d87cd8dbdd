"""Pooled hidden states equal transformers' and peft's, with and without an adapter, however a prompt is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.protocol import GenerateRequest
from engine.sequence import Chunk
from tests.engine.harness import greedy
from tests.engine.lora.tenants import Tenants
from tests.engine.sampling.plans import HandMadePlans, decode

PROMPT = [(i * 31 + 5) % 199 for i in range(37)]
ADAPTERS = ("", "attention-r4", "all-rslora-r16")


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Tenants:
    return Tenants(tmp_path_factory.mktemp("tenants"))


@pytest.fixture(scope="module")
def plans(tenants: Tenants) -> HandMadePlans:
    return HandMadePlans(tenants.model_dir, tenants.store_dir, list(tenants.digests.values())[1:])


def embedding_request(prompt: list[int], pooling: str, adapter: str) -> GenerateRequest:
    return greedy("r", prompt, 0, adapter=adapter, pooling=pooling)


def reference(tenants: Tenants, adapter: str, prompt: list[int], pooling: str) -> np.ndarray:
    """Return the reference's pooled hidden states after the final norm."""
    model = tenants.models[adapter]
    decoder = model.base_model.model.model if adapter else model.model
    with torch.inference_mode():
        hidden = decoder(torch.tensor([prompt])).last_hidden_state[0]
    return (hidden.mean(0) if pooling == "mean" else hidden[-1]).numpy()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("cuts", [(), (1,), (16,), (36,), (5, 6, 30)], ids=str)
@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda name: name or "base")
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_pooled_states_equal_the_reference(
    tenants: Tenants, plans: HandMadePlans, pooling: str, adapter: str, cuts: tuple[int, ...]
) -> None:
    sequence = plans.start(embedding_request(PROMPT, pooling, tenants.digests[adapter]))
    results = plans.prefill(sequence, cuts)
    parts = [result.pooled for result in results if result.pooled is not None]
    assert all(part.dtype == np.float32 for part in parts)
    assert len(parts) == (1 if pooling == "last" else len(results))
    assert not any(result.sampled or result.prompt_logprobs for result in results)
    pooled = np.sum(parts, 0) / (len(PROMPT) if pooling == "mean" else 1)
    expected = reference(tenants, adapter, PROMPT, pooling)
    assert cosine(pooled, expected) > 0.9999
    np.testing.assert_allclose(pooled, expected, atol=1e-4)


def test_embeddings_share_a_step_with_completions(tenants: Tenants, plans: HandMadePlans) -> None:
    """One step computes prompts to pool, to score and to complete, each with another adapter, beside a decode."""
    running = plans.start(greedy("running", [4, 5], 4, adapter=tenants.digests["mlp-r7"]))
    alone = plans.start(greedy("alone", [4, 5], 4, adapter=tenants.digests["mlp-r7"]))
    plans.prefill(running)
    plans.prefill(alone)
    sequences = [
        plans.start(embedding_request(PROMPT[:9], "mean", "")),
        plans.start(greedy("scored", PROMPT[:5], 1, num_prompt_logprobs=0)),
        plans.start(embedding_request(PROMPT, "last", tenants.digests["attention-r4"])),
    ]
    results = plans.step([decode(running)], [Chunk.of(s, 0, s.num_prompt_tokens) for s in sequences])
    plans.step([decode(alone)])
    assert running.token_ids == alone.token_ids
    of_running, mean, scored, last = results
    assert of_running.pooled is None and scored.pooled is None
    assert len(scored.prompt_logprobs) == 4 and len(scored.sampled) == 1 and not mean.sampled and not last.sampled
    assert mean.pooled is not None and last.pooled is not None
    assert cosine(mean.pooled, reference(tenants, "", PROMPT[:9], "mean")) > 0.9999
    assert cosine(last.pooled, reference(tenants, "attention-r4", PROMPT, "last")) > 0.9999
