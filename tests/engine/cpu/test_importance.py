"""The importance of inputs is their mean square over a text, as transformers computes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from engine.config import load_model_config
from engine.cpu.importance import LEAST_SHARE, MOST_TOKENS, TEXT, measure_importance
from tests.demo import demo_model_dir, first_layers
from tests.engine.models.tiny import save_tiny


def test_inputs_count_by_their_mean_square_over_the_text(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = first_layers(demo_model_dir(), tmp_path / "model", 2)
    shutil.copy(demo_model_dir() / "tokenizer.json", folder)
    ours = measure_importance(folder, load_model_config(folder))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    names = [f"model.layers.{layer}.{part}" for layer in (0, 1) for part in ("self_attn.k_proj", "mlp.down_proj")]
    seen: dict[str, torch.Tensor] = {}
    for name in names:
        model.get_submodule(name).register_forward_pre_hook(lambda _, x, name=name: seen.update({name: x[0][0]}))
    ids = Tokenizer.from_file(str(Path(folder) / "tokenizer.json")).encode(TEXT.read_text()).ids[:MOST_TOKENS]
    with torch.inference_mode():
        model(torch.tensor([ids]), logits_to_keep=1)
    for name in names:
        theirs = seen[name].square().sum(0)
        found = ours.of_inputs(f"{name}.weight")
        assert found is not None
        assert torch.allclose(found, theirs + LEAST_SHARE * theirs.mean(), rtol=1e-3, atol=1e-4)
    assert ours.of_inputs("model.embed_tokens.weight") is None


def test_without_a_tokenizer_all_inputs_are_alike(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    assert (
        measure_importance(tmp_path, load_model_config(tmp_path)).of_inputs("model.layers.0.mlp.down_proj.weight")
        is None
    )
    shutil.copy(Path(demo_model_dir()) / "tokenizer.json", tmp_path)  # its ids lie beyond the tiny vocabulary
    assert (
        measure_importance(tmp_path, load_model_config(tmp_path)).of_inputs("model.layers.0.mlp.down_proj.weight")
        is None
    )
