"""Mixtures of experts by the engine's own code: equal to transformers and peft, and to the engine over transformers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors

from adapters.errors import AdapterRejected
from adapters.peft_format import check_fit, read_adapter
from adapters.store import AdapterStore
from engine.config import EngineConfig, UnsupportedModel, load_model_config
from tests.engine.harness import engine_config, greedy, run_engine
from tests.engine.models.general import ATTENTION, AdaptedBase, save_general
from tests.engine.models.tiny import WITH_EXPERTS, save_tiny
from tests.engine.reference import Claim, assert_greedy_follows

# PEFT looks for the keys of patterns among modules alone, when it warns.
pytestmark = pytest.mark.filterwarnings("ignore:The following .* keys did not match:RuntimeWarning")

CHUNK = 32
LENGTHS = (1, 7, 40, 75)  # within a block, over blocks, a window of 20 and several chunks


class OwnBase(AdaptedBase):
    """A tiny model with adapters that the engine's own code computes."""

    def config(self, **changes: object) -> EngineConfig:
        return engine_config(self.folder, self.store, decoder="own", **changes)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_oss"])
def test_base_and_adapters_in_one_batch_equal_transformers_and_peft(family: str, tmp_path: Path, full: bool) -> None:
    """Chunks of prompts and decodes share steps. Answers have 200 tokens with --full."""
    base = OwnBase(tmp_path, family)
    requests = base.requests(LENGTHS, 200 if full else 12)
    config = base.config(max_batched_tokens=CHUNK)
    answers = run_engine(config, requests[::2], {3: requests[1::4], 5: requests[3::4]})
    base.assert_follow(requests, answers)


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_own_code_and_transformers_agree(name: str, tmp_path: Path) -> None:
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


PARAMETERS = ["experts.gate_up_proj", "experts.down_proj"]
ON_EXPERTS: dict[str, dict[str, Any]] = {
    "all": {"target_modules": ATTENTION, "target_parameters": PARAMETERS},
    "experts": {"r": 2, "target_modules": [], "target_parameters": PARAMETERS},
    "gate-up": {"target_modules": [], "target_parameters": PARAMETERS[:1]},
    "down": {"target_modules": ["q_proj"], "target_parameters": PARAMETERS[1:], "use_rslora": True},
    "patterns": {
        "target_modules": ["v_proj"],
        "target_parameters": PARAMETERS,
        "rank_pattern": {r".*\.1\..*gate_up_proj": 5, "experts.down_proj": 3},
        "alpha_pattern": {"experts.down_proj": 2},
    },
}


class ExpertBase(OwnBase):
    """A tiny model with adapters on its experts, as PEFT saves them for transformers 5."""

    def __init__(self, root: Path, family: str) -> None:
        super().__init__(root, family, ON_EXPERTS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_oss", "granitemoe"])
def test_adapters_on_parameters_of_experts_equal_peft(family: str, dtype: str, tmp_path: Path, full: bool) -> None:
    if not full and dtype == "bfloat16" and family != "qwen3_moe":
        pytest.skip("one family in bfloat16 is enough for each commit")
    base = ExpertBase(tmp_path, family)
    requests = base.requests(LENGTHS, 200 if full else 12)
    config = base.config(max_batched_tokens=CHUNK, dtype=dtype)
    answers = run_engine(config, requests[::2], {3: requests[1::4], 5: requests[3::4]})
    if dtype == "float32":
        base.assert_follow(requests, answers)
    assert all(answers[request.request_id].final.finish_reason == "length" for request in requests)


SINGLE = {
    "qwen3_moe": ("mlp.experts", ("gate_proj", "up_proj", "down_proj")),
    "mixtral": ("block_sparse_moe.experts", ("w1", "w3", "w2")),
}
"""The names of expert modules in transformers 4."""


def save_single(family: str, base: Path, folder: Path, *, experts: range, rank: int = 3) -> dict[str, Tensor]:
    """Save an adapter on modules of single experts, as PEFT does with transformers 4; return its tensors."""
    block, names = SINGLE[family]
    config = load_model_config(base)
    sizes = {names[0]: (48, config.intermediate_size), names[1]: (48, config.intermediate_size)}
    sizes[names[2]] = (config.intermediate_size, 48)
    tensors = {}
    for layer, expert, (name, (width, height)) in itertools.product(range(3), experts, sizes.items()):
        prefix = f"base_model.model.model.layers.{layer}.{block}.{expert}.{name}"
        tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, width) * 0.2
        tensors[f"{prefix}.lora_B.weight"] = torch.randn(height, rank) * 0.2
    lora = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 5, "target_modules": list(names)}
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(lora | {"bias": "none"}))
    save_file(tensors, folder / "adapter_model.safetensors")
    return tensors


@pytest.mark.parametrize("family", SINGLE)
def test_adapters_on_modules_of_experts_equal_peft(family: str, tmp_path: Path) -> None:
    """PEFT brings the adapter of transformers 4 into the form of transformers 5 as it loads it."""
    save_general(family, tmp_path / "model")
    save_single(family, tmp_path / "model", tmp_path / "adapter", experts=range(4))
    digest = AdapterStore(tmp_path / "store").add(tmp_path / "adapter")
    prompt = torch.randint(0, 199, (40,)).tolist()
    config = engine_config(tmp_path / "model", tmp_path / "store", decoder="own")
    answer = run_engine(config, [greedy("r", prompt, 12, adapter=digest)])["r"]
    assert answer.final.finish_reason == "length", answer.final.error
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "model"), tmp_path / "adapter")
    assert_greedy_follows(model.eval(), [Claim(prompt, answer.token_ids, answer.logprobs)], 1e-4)


@pytest.mark.parametrize("family", SINGLE)
def test_adapters_on_some_experts_equal_merged_ones(family: str, tmp_path: Path) -> None:
    model = save_general(family, tmp_path / "model")
    tensors = save_single(family, tmp_path / "model", tmp_path / "adapter", experts=range(1, 3))
    digest = AdapterStore(tmp_path / "store").add(tmp_path / "adapter")
    block, names = SINGLE[family]
    for (index, layer), expert in itertools.product(enumerate(model.model.layers), range(1, 3)):
        deltas = []
        for name in names:
            prefix = f"base_model.model.model.layers.{index}.{block}.{expert}.{name}"
            deltas.append(5 / 3 * tensors[f"{prefix}.lora_B.weight"] @ tensors[f"{prefix}.lora_A.weight"])
        layer.mlp.experts.gate_up_proj.data[expert] += torch.cat(deltas[:2])
        layer.mlp.experts.down_proj.data[expert] += deltas[2]
    prompt = torch.randint(0, 199, (40,)).tolist()
    config = engine_config(tmp_path / "model", tmp_path / "store", decoder="own")
    answer = run_engine(config, [greedy("r", prompt, 12, adapter=digest)])["r"]
    assert answer.final.finish_reason == "length", answer.final.error
    assert_greedy_follows(model, [Claim(prompt, answer.token_ids, answer.logprobs)], 1e-4)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"target_parameters": ["experts.gate_up_proj"]}, "two parameters, one of which is not targeted"),
        ({"target_parameters": [*PARAMETERS, "router.weight"]}, "has 'router.weight', of a router of experts"),
        ({"target_parameters": ["block.gate_up_proj", "block.down_proj"]}, "target_parameters does not name it"),
        ({"target_parameters": None}, "two parameters, one of which"),
        ({"r": 3}, "lora_A has rank 16, the configuration says 3"),
        ({"r": 2}, "made for 8 experts, the base model has 4"),
    ],
)
def test_adapters_on_experts_that_do_not_fit_are_refused(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    base = OwnBase(tmp_path, "qwen3_moe", {"experts": ON_EXPERTS["all"] | {"target_modules": []}})
    path = tmp_path / "experts" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    config = load_model_config(base.folder)
    with pytest.raises(AdapterRejected, match=why):
        check_fit(read_adapter(tmp_path / "experts"), config.adapter_targets(), config.num_layers)


def packed(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return blocks [E, out, groups, 16] and scales [E, out, groups] near a weight [E, in, out] of gpt-oss."""
    groups = weight.transpose(1, 2).reshape(weight.shape[0], weight.shape[2], -1, 32)
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
