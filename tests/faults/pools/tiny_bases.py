"""Tiny random base models with random adapters, and the token ids that each of them gives alone.

All bases have the same shapes, so that each adapter fits every base and answers otherwise under each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import save_file

from tests.engine.harness import engine_config, greedy, run_engine
from tests.gateway.model_folder import make_model_folder

HIDDEN, INTERMEDIATE, NUM_LAYERS, NUM_HEADS = 64, 96, 2, 2
RANK = 4
SHARPNESS = 30.0
"""The factor by which logits are scaled, so that two tokens are seldom equally likely."""

MARGIN = 0.005
"""The least difference of the log-probabilities, in nats, between the first and the second token.

Sums in another order differ by less.
"""

Answers = dict[str, list[list[int]]]
"""The token ids of each adapter's answer to each prompt, by the adapter's digest; "" is the base."""


def make_base(folder: Path, seed: int) -> Path:
    """Write a prepared model with random weights; return its folder."""
    make_model_folder(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_HEADS,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(seed)
    vocab_size = config["vocab_size"]
    weights = {
        "model.embed_tokens.weight": _random(rng, vocab_size, HIDDEN),
        "lm_head.weight": SHARPNESS * _random(rng, vocab_size, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{prefix}.self_attn.{name}.weight"] = _random(rng, HIDDEN, HIDDEN)
        weights[f"{prefix}.mlp.gate_proj.weight"] = _random(rng, INTERMEDIATE, HIDDEN)
        weights[f"{prefix}.mlp.up_proj.weight"] = _random(rng, INTERMEDIATE, HIDDEN)
        weights[f"{prefix}.mlp.down_proj.weight"] = _random(rng, HIDDEN, INTERMEDIATE)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def make_adapter(folder: Path, seed: int) -> Path:
    """Write an adapter with random weights that fits every base, as PEFT saves it; return its folder."""
    rng = np.random.default_rng(seed)
    targets = {"self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.down_proj": (INTERMEDIATE, HIDDEN)}
    weights = {}
    for layer in range(NUM_LAYERS):
        for name, (num_in, num_out) in targets.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            weights[f"{prefix}.lora_A.weight"] = _random(rng, RANK, num_in)
            weights[f"{prefix}.lora_B.weight"] = _random(rng, num_out, RANK)
    folder.mkdir(parents=True)
    modules = [name.rpartition(".")[2] for name in targets]
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 4 * RANK, "target_modules": modules, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def _random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


class ExpectedAnswers(msgspec.Struct, frozen=True):
    """The answers of all models to the same prompts."""

    prompts: list[list[int]]
    of_base: dict[str, Answers]
    """The answers of all models by the name of their base."""


def expected(
    bases: Mapping[str, Path], digests: Sequence[str], store: Path, prompts: Sequence[list[int]], max_tokens: int
) -> ExpectedAnswers:
    """Compute the answers of every adapter under every base, each request alone in an engine of its own.

    digests: the digests of the adapters in the store, and "" for the base itself. Prompts are left out where two tokens
    are about equally likely for some model, or two models answer the same.
    """
    requests = [
        greedy(f"{digest}/{number}", prompt, max_tokens, adapter=digest, ignore_eos=True)
        for digest in digests
        for number, prompt in enumerate(prompts)
    ]
    of_base: dict[str, Answers] = {}
    unsure: set[int] = set()
    for name, folder in bases.items():
        config = engine_config(folder, store, max_num_seqs=1, max_waiting=2 * len(requests) + 2, kv_cache_bytes=1 << 20)
        answers = run_engine(config, requests)
        of_base[name] = {
            digest: [answers[f"{digest}/{n}"].token_ids for n in range(len(prompts))] for digest in digests
        }
        for request in requests:
            assert answers[request.request_id].final.error is None, answers[request.request_id].final
            tops = [each.top_logprobs for each in answers[request.request_id].logprobs]
            if any(first - second < MARGIN for first, second in tops):
                unsure.add(int(request.request_id.rpartition("/")[2]))
    for number in range(len(prompts)):
        given = [tuple(answers[number]) for answers_of in of_base.values() for answers in answers_of.values()]
        if len(set(given)) < len(given):
            unsure.add(number)
    kept = [number for number in range(len(prompts)) if number not in unsure]
    chosen = {
        name: {digest: [answers[number] for number in kept] for digest, answers in answers_of.items()}
        for name, answers_of in of_base.items()
    }
    return ExpectedAnswers([prompts[number] for number in kept], chosen)
