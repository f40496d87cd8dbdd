"""An adapter that PEFT trains and saves is read as PEFT itself computes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from adapters.peft_format import WEIGHTS_NAME, check_fit, read_adapter
from tests.adapters.folders import HIDDEN, INTERMEDIATE, NUM_LAYERS, TARGETS

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"r": 3, "lora_alpha": 5, "target_modules": ATTENTION},
    "rslora": {"r": 5, "lora_alpha": 7, "use_rslora": True, "target_modules": ["q_proj", "v_proj"]},
    "all_linear": {"r": 2, "lora_alpha": 4, "target_modules": "all-linear"},
    "target_regex": {"r": 2, "lora_alpha": 4, "target_modules": r".*layers\.1\..*(q|down)_proj"},
    "one_layer": {"r": 2, "lora_alpha": 4, "target_modules": ATTENTION, "layers_to_transform": [1]},
    "rank_pattern": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "gate_proj", "down_proj"],
        "rank_pattern": {"down_proj": 6, "model.layers.0.self_attn.q_proj": 1},
    },
    "alpha_pattern": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "k_proj", "up_proj"],
        "alpha_pattern": {r"layers\.1\.self_attn\.(q|k)_proj": 2, "k_proj": 1.5, ".*p_proj": 99},
    },
    "patterns_with_expressions": {
        "r": 4,
        "lora_alpha": 8,
        "use_rslora": True,
        "target_modules": [*ATTENTION, "down_proj"],
        "rank_pattern": {r"^model\.layers\.\d\.mlp.*": 3, "[qk]_proj": 2, "v_proj|o_proj": 5},
        "alpha_pattern": {r".*\.1\..+": 3, r"(?:q_proj|down_proj)$": 11},
    },
}


def tiny_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config)


def save_random(model: Any, folder: Path) -> None:
    """Fill lora_B, which PEFT begins with zeros, and save."""
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", CONFIGS)
def test_scaling_and_rank_of_every_module_equal_pefts(name: str, tmp_path: Path) -> None:
    save_random(get_peft_model(tiny_llama(), LoraConfig(task_type="CAUSAL_LM", **CONFIGS[name])), tmp_path)
    adapter = read_adapter(tmp_path)
    # PEFT sorts a pattern's keys as it saves them, and their order decides: the file's reader is the reference.
    model = PeftModel.from_pretrained(tiny_llama(), tmp_path)
    expected = {
        path.removeprefix("base_model.model."): (module.r["default"], module.scaling["default"])
        for path, module in model.named_modules()
        if isinstance(module, LoraLayer)
    }
    blocks = {"gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp"}
    found = {
        f"model.layers.{module.layer}.{blocks.get(module.projection, 'self_attn')}.{module.projection}": (
            module.rank,
            module.scaling,
        )
        for module in adapter.modules
    }
    assert found == expected
    assert adapter.rank_max == max(rank for rank, _ in expected.values())
    check_fit(adapter, TARGETS, NUM_LAYERS)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_tensors_are_found_under_their_names_with_their_bytes(tmp_path: Path) -> None:
    save_random(
        get_peft_model(tiny_llama(), LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=ATTENTION)), tmp_path
    )
    weights = load_file(tmp_path / WEIGHTS_NAME)
    raw = (tmp_path / WEIGHTS_NAME).read_bytes()
    tensors = [tensor for module in read_adapter(tmp_path).modules for tensor in (module.a, module.b)]
    assert {tensor.name for tensor in tensors} == weights.keys()
    for tensor in tensors:
        assert raw[tensor.start : tensor.end] == weights[tensor.name].numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("infix", ["", ".default"])
def test_every_float_type_and_the_default_infix_are_read(dtype: torch.dtype, infix: str, tmp_path: Path) -> None:
    module = "base_model.model.model.layers.1.mlp.up_proj"
    weights = {
        f"{module}.lora_A{infix}.weight": torch.randn(2, HIDDEN).to(dtype),
        f"{module}.lora_B{infix}.weight": torch.full((INTERMEDIATE, 2), torch.finfo(dtype).max, dtype=dtype),
    }
    save_file(weights, tmp_path / WEIGHTS_NAME)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 3}')
    (found,) = read_adapter(tmp_path).modules
    assert (found.layer, found.projection, found.rank, found.scaling) == (1, "up_proj", 2, 1.5)
