"""The decoder computes what transformers computes, for every family that it supports, in fp32 within 1e-4."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from engine.config import UnsupportedModel, load_model_config, model_digest
from tests.engine.harness import engine_config, greedy, run_engine
from tests.engine.models.tiny import FAMILIES, LONG_ROPE, TINY, save_tiny
from tests.engine.reference import Claim, assert_greedy_follows

TOKEN_BYTES = 2 * 3 * 2 * 8 * 4  # keys and values of 3 layers and 2 heads of 8 numbers, in float32


@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_transformers(name: str, tmp_path: Path, full: bool) -> None:
    """Greedy texts are those of transformers, of 200 tokens with --full."""
    num_tokens = 200 if full else 24
    model = save_tiny(name, tmp_path / "model")
    prompts = [torch.randint(0, 199, (length,)).tolist() for length in (1, 7, 40, 133)]
    config = engine_config(tmp_path / "model", tmp_path / "store", max_batched_tokens=32)
    answers = run_engine(config, [greedy(f"r{i}", prompt, num_tokens) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        answer = answers[f"r{i}"]
        for part in parts_of_one_rotation(Claim(prompt, answer.token_ids, answer.logprobs), model):
            assert_greedy_follows(model, [part], tolerance=1e-4)
        assert len(answer.token_ids) == num_tokens
        assert answer.final.finish_reason == "length"


def parts_of_one_rotation(claim: Claim, model: Any) -> list[Claim]:
    """Return an answer in the parts that the reference rotates alike: LongRoPE's angles go by the whole length."""
    rope = model.config.rope_parameters or {}
    num_short = rope["original_max_position_embeddings"] + 1 if rope.get("rope_type") == "longrope" else 0
    cut = num_short - len(claim.prompt)
    if not 0 < cut < len(claim.answer):
        return [claim]
    return [
        Claim(claim.prompt, claim.answer[:cut], claim.logprobs[:cut]),
        Claim([*claim.prompt, *claim.answer[:cut]], claim.answer[cut:], claim.logprobs[cut:]),
    ]


@pytest.mark.parametrize("num_draft_tokens", [0, 3])
def test_a_sequence_that_becomes_long_goes_on_by_the_other_rotation(num_draft_tokens: int, tmp_path: Path) -> None:
    """LongRoPE has other angles at all positions once a sequence has more than 64 tokens. Texts whose
    prompts begin alike cross that length at different steps; others are longer from the beginning."""
    model = save_tiny("phi3-longrope", tmp_path / "model")
    text = torch.randint(0, 199, (100,)).tolist()
    prompts = {"a": text[:50], "b": text[:58], "c": text[:64], "d": text[:65], "e": text}
    config = engine_config(
        tmp_path / "model", tmp_path / "store", max_batched_tokens=32, num_draft_tokens=num_draft_tokens
    )
    later = {6: [greedy("late", text[:58], 20)]}
    answers = run_engine(config, [greedy(name, prompt, 20) for name, prompt in prompts.items()], later)
    for name, prompt in (prompts | {"late": text[:58]}).items():
        answer = answers[name]
        assert len(answer.token_ids) == 20
        for i in range(20):  # the reference's rotation goes by the whole length of what it is given
            claim = Claim([*prompt, *answer.token_ids[:i]], answer.token_ids[i : i + 1], answer.logprobs[i : i + 1])
            assert_greedy_follows(model, [claim], tolerance=1e-4)


@pytest.mark.parametrize("family", ["mistral-window", "phi3-window"])
def test_where_all_layers_have_windows_a_small_cache_holds_long_texts(family: str, tmp_path: Path) -> None:
    """Four texts of 145 tokens with one beginning share a cache of 20 blocks, twice; windows are of two blocks."""
    model = save_tiny(family, tmp_path / "model")
    text = torch.randint(0, 199, (120,)).tolist()
    requests = [greedy(f"r{i}", [*text, i], 24) for i in range(4)]
    again = [greedy(f"again{i}", [*text, i], 24) for i in range(4)]
    config = engine_config(tmp_path / "model", tmp_path / "store", kv_cache_bytes=20 * 16 * TOKEN_BYTES)
    answers = run_engine(config, requests, {20: again})
    for request in [*requests, *again]:
        answer = answers[request.request_id]
        claim = Claim(request.prompt_token_ids, answer.token_ids, answer.logprobs)
        assert_greedy_follows(model, [claim], tolerance=1e-4)
    assert any(answers[request.request_id].final.usage.cached_tokens for request in again)


FLAT_BESIDE_NESTED = {"full_attention": {}, "sliding_attention": {}, "rope_type": "linear", "factor": 8.0}
HALF_ROTATED_WINDOWS = {"full_attention": {}, "sliding_attention": {"partial_rotary_factor": 0.5}}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model_type": ["gpt2"]}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"hidden_act": [0] * 9999}, r"hidden_act is \[[0, ]{79}\.\.\.; supported for"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"is_causal": False}, "is_causal: attention in both directions is not supported"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"num_hidden_layers": 1 << 31}, "num_hidden_layers"),
        ({"hidden_size": "48"}, "hidden_size"),
        ({"num_key_value_heads": 4}, "num_key_value_heads"),
        ({"head_dim": 7}, "partial_rotary_factor"),
        ({"eos_token_id": "x"}, "eos_token_id"),
        ({"rope_parameters": {"partial_rotary_factor": 0.01}}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported for llama"),
        ({"model_type": "olmo3", "rope_parameters": HALF_ROTATED_WINDOWS}, "partial_rotary_factor is not supported"),
        ({"model_type": "gemma3_text", "rope_parameters": FLAT_BESIDE_NESTED}, "rope_parameters has factor beside"),
        ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 5000.0}}, "must have full_attention and"),
        (
            {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            "rope_scaling differs from rope_parameters",
        ),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "rope_scaling differs from rope_parameters"),
        (
            {
                "model_type": "phi3",
                "original_max_position_embeddings": 16,
                "rope_parameters": {"rope_type": "longrope", "short_factor": [1]},
            },
            "short_factor",
        ),
        (
            {"model_type": "phi3", "rope_parameters": LONG_ROPE | {"original_max_position_embeddings": None}},
            "original_max_position_embeddings is missing",
        ),
        ({"model_type": "gemma2", "attn_logit_softcapping": -1.0}, "attn_logit_softcapping"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope type"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers"),
        ({"model_type": "smollm3", "no_rope_layers": None, "no_rope_layer_interval": 0}, "no_rope_layer_interval"),
        ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"model_type": "gemma3_text", "hidden_activation": "gelu"}, "hidden_activation"),
        ({"model_type": "gemma3_text", "rope_parameters": None, "query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ({"model_type": "granite", "logits_scaling": 0}, "logits_scaling"),
        ({"model_type": "granite", "attention_multiplier": "x"}, "attention_multiplier"),
        ({"matryoshka_dimensions": [64, 1 << 20]}, "matryoshka_dimensions"),
        ({"matryoshka_dimensions": ["64"]}, "matryoshka_dimensions"),
        ({"matryoshka_dimensions": 64}, "matryoshka_dimensions"),
        ({"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention", "x"]}, "layer_types"),
    ],
)
def test_what_the_decoder_would_compute_wrongly_is_refused_by_key(
    change: dict[str, object], key: str, tmp_path: Path
) -> None:
    raw = LlamaConfig(**TINY).to_dict() | change
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UnsupportedModel, match=key):
        load_model_config(tmp_path)


WRONG: tuple[Any, ...] = (
    None,
    0,
    -1,
    3,
    0.5,
    1e300,
    10**30,
    1 << 31,
    "x",
    "",
    [],
    [1],
    [None],
    {},
    {"a": 1},
    True,
    False,
)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_with_wrong_values_is_read_or_refused_in_words(name: str, full: bool, tmp_path: Path) -> None:
    """No mutant raises anything else, or takes time or memory beyond its size."""
    config_class, _, changes = FAMILIES[name]
    right = config_class(**(TINY | changes)).to_dict()
    rnd = random.Random(1)
    for _ in range(400 if full else 20):
        raw = json.loads(json.dumps(right))
        for _ in range(rnd.randint(1, 2)):
            place = rnd.choice([raw, *(each for each in raw.values() if isinstance(each, dict) and each)])
            key = rnd.choice(sorted(place))
            place[key] = rnd.choice(WRONG)
            if rnd.random() < 0.2:
                del place[key]
        (tmp_path / "config.json").write_text(json.dumps(raw))
        with contextlib.suppress(UnsupportedModel):
            load_model_config(tmp_path, "own")


@pytest.mark.parametrize(
    ("change", "sizes"),
    [
        ({}, ()),
        ({"is_matryoshka": False, "matryoshka_dimensions": []}, ()),
        ({"is_matryoshka": True}, tuple(range(1, 33))),
        ({"is_matryoshka": True, "matryoshka_dimensions": [16, 8]}, (8, 16, 32)),
        ({"matryoshka_dimensions": [32, 16]}, (16, 32)),
    ],
    ids=str,
)
def test_the_sizes_of_embeddings_are_those_that_the_config_declares(
    change: dict[str, object], sizes: tuple[int, ...], tmp_path: Path
) -> None:
    raw = LlamaConfig(**TINY).to_dict() | {"hidden_size": 32} | change
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert load_model_config(tmp_path).embedding_sizes == sizes


def test_a_checkpoint_that_lacks_a_tensor_is_refused_by_name(tmp_path: Path) -> None:
    save_tiny("qwen2", tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path)
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        run_engine(engine_config(tmp_path / "model", tmp_path / "store"), [])


@pytest.mark.parametrize(
    ("number", "dtype", "words"),
    [
        (float("inf"), torch.float32, r"up_proj\.weight has numbers that are not finite in float32"),
        (float("nan"), torch.bfloat16, r"up_proj\.weight has numbers that are not finite"),
        (1, torch.int8, r"up_proj\.weight is in int8, not in floating-point numbers"),
    ],
)
def test_numbers_that_are_no_weights_are_refused_by_name(
    number: float, dtype: torch.dtype, words: str, tmp_path: Path
) -> None:
    save_tiny("qwen2", tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(dtype)
    tensors[name][3, 5] = number
    save_file(tensors, path)
    with pytest.raises(UnsupportedModel, match=words):
        run_engine(engine_config(tmp_path / "model", tmp_path / "store"), [])


@pytest.mark.parametrize("content", ['{"a":' * 10**5, "[" * 10**5, None])
def test_a_config_that_cannot_be_read_is_refused_by_its_name(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    for read in (load_model_config, model_digest) if content is None else (load_model_config,):
        with pytest.raises(UnsupportedModel, match=r"config\.json (cannot be read|is not JSON)"):
            read(tmp_path)


def test_a_head_that_is_not_the_embedding_to_which_the_config_ties_it_is_refused(tmp_path: Path) -> None:
    """transformers would compute with the head's own weights, and other engines with the embedding."""
    save_tiny("qwen2", tmp_path / "model", {"tie_word_embeddings": False})
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    config = engine_config(tmp_path / "model", tmp_path / "store")
    with pytest.raises(UnsupportedModel, match=r"tie_word_embeddings is true, but lm_head\.weight differs"):
        run_engine(config, [])
    weights = tmp_path / "model" / "model.safetensors"
    tensors = load_file(weights)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, weights)
    assert run_engine(config, [greedy("r", [1, 2], 2)])["r"].final.finish_reason == "length"
