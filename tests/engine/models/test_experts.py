"""Mixtures of experts by the engine's own code: as transformers and peft, and as the way through transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors

from engine.config import EngineConfig, UnsupportedModel, load_model_config
from engine.config.model_folder import decoder_on
from engine.hardware import SetupError
from engine.setup import settled
from tests.engine.harness import engine_config, greedy, run_engine
from tests.engine.models.general import AdaptedBase
from tests.engine.models.tiny import TINY, WITH_EXPERTS, save_tiny
from tests.engine.reference import Claim, assert_greedy_follows

CHUNK = 32
LENGTHS = (1, 7, 40, 75)  # within a block, over blocks, a window of 20 and several chunks


class OwnBase(AdaptedBase):
    """A tiny model with adapters that the engine's own code computes."""

    def config(self, **changes: object) -> EngineConfig:
        return engine_config(self.folder, self.store, decoder="own", **changes)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_oss"])
def test_base_and_adapters_in_one_batch_equal_transformers_and_peft(family: str, tmp_path: Path, full: bool) -> None:
    """Chunks of prompts and decodes share steps. Answers of 200 tokens with --full."""
    base = OwnBase(tmp_path, family)
    requests = base.requests(LENGTHS, 200 if full else 12)
    config = base.config(max_batched_tokens=CHUNK)
    answers = run_engine(config, requests[::2], {3: requests[1::4], 5: requests[3::4]})
    base.assert_follow(requests, answers)


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_both_ways_agree(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path / "model")
    requests = [greedy(f"r{length}", torch.randint(0, 199, (length,)).tolist(), 16) for length in LENGTHS]
    config = engine_config(tmp_path / "model", tmp_path / "store", max_batched_tokens=CHUNK, decoder="own")
    own = run_engine(config, requests)
    general = run_engine(msgspec.structs.replace(config, decoder="transformers"), requests)
    for request in requests:
        ours, theirs = own[request.request_id], general[request.request_id]
        assert ours.token_ids == theirs.token_ids
        for a, b in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert a.top_logprobs == pytest.approx(b.top_logprobs, abs=1e-4)


@pytest.mark.parametrize("name", ["qwen3-moe", "mixtral"])
def test_experts_in_one_tensor_are_those_of_single_tensors(name: str, tmp_path: Path) -> None:
    """Checkpoints of transformers 5 may have all experts of a layer in one tensor, as its models have."""
    model = save_tiny(name, tmp_path)
    names = load_model_config(tmp_path).experts.names  # type: ignore[union-attr]
    path = tmp_path / "model.safetensors"
    tensors = {key: value for key, value in load_file(path).items() if ".experts." not in key}
    for index, layer in enumerate(model.model.layers):
        tensors[f"model.layers.{index}.{names.gate_up}"] = layer.mlp.experts.gate_up_proj.detach().clone()
        tensors[f"model.layers.{index}.{names.downs}"] = layer.mlp.experts.down_proj.detach().clone()
    save_file(tensors, path)
    answer = run_engine(engine_config(tmp_path, tmp_path / "store"), [greedy("r", [5, 6, 7], 12)])["r"]
    assert_greedy_follows(model, [Claim([5, 6, 7], answer.token_ids, answer.logprobs)], 1e-4)


def packed(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return blocks [E, out, groups, 16] and scales [E, out, groups] near a weight [E, in, out] of gpt-oss."""
    groups = weight.transpose(1, 2).unflatten(2, (-1, 32))
    exponents = (groups.abs().amax(-1) / 6).clamp(min=1e-10).log2().ceil()
    numbers = (groups / exponents.exp2()[..., None])[..., None] - torch.tensor(FP4_VALUES)
    codes = numbers.abs().argmin(-1).to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, (exponents + 127).to(torch.uint8)


def test_mxfp4_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    model = save_tiny("gpt-oss", tmp_path, {"hidden_size": 64, "intermediate_size": 32})
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for index, layer in enumerate(model.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            blocks, scales = packed(tensors.pop(f"model.layers.{index}.mlp.experts.{name}"))
            tensors[f"model.layers.{index}.mlp.experts.{name}_blocks"] = blocks.contiguous()
            tensors[f"model.layers.{index}.mlp.experts.{name}_scales"] = scales.contiguous()
            read = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            getattr(layer.mlp.experts, name).data.copy_(read)
    save_file(tensors, path)
    config = tmp_path / "config.json"
    quantized = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]}}
    config.write_text(json.dumps(json.loads(config.read_text()) | quantized))
    prompt = [(7 * i) % 190 + 1 for i in range(40)]
    answer = run_engine(engine_config(tmp_path, tmp_path / "store"), [greedy("r", prompt, 12)])["r"]
    assert_greedy_follows(model, [Claim(prompt, answer.token_ids, answer.logprobs)], 1e-4)


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("qwen3-moe", {"num_experts_per_tok": 9}, "num_experts_per_tok must be at most num_"),
        ("qwen3-moe", {"num_experts": 1 << 31, "num_local_experts": 1 << 31}, "experts must be a whole number"),
        ("qwen3-moe", {"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ("qwen3-moe", {"moe_intermediate_size": 31}, "gate_proj.weight is"),
        ("qwen3-moe", {"num_hidden_layers": 4}, "lacks model.layers.3"),
        ("mixtral", {"num_local_experts": 3}, r"block_sparse_moe.gate.weight is \[4, 48\]"),
        ("mixtral", {"num_local_experts": 5}, r"block_sparse_moe.gate.weight is \[4, 48\]"),
        ("mixtral", {"n_shared_experts": 2}, "n_shared_experts is not supported"),
        ("gpt-oss", {"swiglu_limit": "x"}, "swiglu_limit"),
        ("gpt-oss", {"swiglu_limit": -1}, "swiglu_limit"),
        ("gpt-oss", {"intermediate_size": 33}, "gate_up_proj"),
        ("gpt-oss", {"num_attention_heads": 12, "head_dim": 8}, "sinks|proj"),
    ],
)
def test_what_does_not_go_together_is_refused_by_key_or_name(
    name: str, change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    save_tiny(name, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UnsupportedModel, match=why):
        run_engine(engine_config(tmp_path, tmp_path / "store", decoder="own"), [])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("qwen3-moe", {"mlp_only_layers": [1]}),
        ("qwen3-moe", {"decoder_sparse_step": 2}),
        ("olmoe", {"clip_qkv": 8.0}),
    ],
)
def test_what_the_own_code_lacks_is_left_to_transformers(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path, change)
    assert load_model_config(tmp_path).decoder == "transformers"
    with pytest.raises(UnsupportedModel, match="own code"):
        load_model_config(tmp_path, "own")
    answer = run_engine(engine_config(tmp_path, tmp_path / "store"), [greedy("r", [5, 6, 7], 12)])["r"]
    assert_greedy_follows(model, [Claim([5, 6, 7], answer.token_ids, answer.logprobs)], 1e-4)


def test_a_gpu_computes_experts_through_transformers(tmp_path: Path) -> None:
    config_class, _, changes = WITH_EXPERTS["mixtral"]
    config_class(**(TINY | changes)).save_pretrained(tmp_path)
    assert decoder_on(tmp_path, "auto", on_gpu=True) == "transformers"
    assert decoder_on(tmp_path, "auto", on_gpu=False) == "auto"
    assert decoder_on(tmp_path, "own", on_gpu=True) == "own"


def test_a_format_of_integers_is_refused(tmp_path: Path) -> None:
    save_tiny("mixtral", tmp_path)
    with pytest.raises(SetupError, match="LORIKEET_QUANTIZATION is int8, but PyTorch computes this model's experts"):
        settled(engine_config(tmp_path, tmp_path / "store", quantization="int8"))
