"""A merged folder is the base with the adapter in it and nothing else changed, or it does not exist at all.

`tests/engine/lora/test_what_peft_trains.py` checks that the merged model answers as base and adapter do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapters.errors import AdapterRejected
from adapters.merge import MergeRefused, merge
from gateway.cli import main
from tests.patience import PATIENCE_S

HIDDEN, RANK, ALPHA = 16, 4, 8
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def write_base(folder: Path, dtype: torch.dtype = torch.float32, hidden: int = HIDDEN, num_layers: int = 2) -> Path:
    """Write a base model of two weight files (shards) with an index, and the other files of such a folder.

    dtype: the dtype of the weights. hidden: the size of hidden states.
    """
    folder.mkdir()
    torch.manual_seed(1)
    layers = {
        f"model.layers.{layer}.self_attn.{name}.weight": torch.randn(hidden, hidden).to(dtype)
        for layer in range(num_layers)
        for name in ("q_proj", "o_proj")
    }
    save_file(layers, folder / "model-00001-of-00002.safetensors", {"format": "pt"})
    rest = {"model.embed_tokens.weight": torch.randn(9, hidden).to(dtype), "model.counts": torch.arange(3)}
    save_file(rest, folder / "model-00002-of-00002.safetensors", {"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(layers, "model-00001-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": str(dtype).removeprefix("torch.")}))
    for name in ("tokenizer.json", "tokenizer_config.json", "LICENSE", "pytorch_model.bin", "notes.txt"):
        (folder / name).write_text(f"the base's {name}")
    return folder


def write_lora(folder: Path, scale: float = 0.1, hidden: int = HIDDEN, module: str = "self_attn.q_proj") -> Path:
    folder.mkdir()
    torch.manual_seed(2)
    name = f"base_model.model.model.layers.0.{module}"
    tensors = {
        f"{name}.lora_A.weight": torch.randn(RANK, hidden) * scale,
        f"{name}.lora_B.weight": torch.randn(hidden, RANK) * scale,
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": [module.split(".")[1]]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: each for path in sorted(folder.glob("*.safetensors")) for name, each in load_file(path).items()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    return write_lora(tmp_path / "lora")


def test_only_what_the_adapter_changes_is_changed(base: Path, lora: Path, tmp_path: Path) -> None:
    merged = merge(base, lora, tmp_path / "out")
    before, after, adapter = (
        tensors_of(base),
        tensors_of(tmp_path / "out"),
        load_file(lora / "adapter_model.safetensors"),
    )
    a, b = (adapter[f"base_model.model.{Q_PROJ.removesuffix('.weight')}.lora_{side}.weight"] for side in "AB")
    expected = before.pop(Q_PROJ) + ALPHA / RANK * b @ a
    torch.testing.assert_close(after.pop(Q_PROJ), expected, rtol=0, atol=1e-6)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], each) for name, each in before.items())
    assert merged.num_modules == 1
    assert merged.num_bytes == sum(each.nbytes for each in tensors_of(base).values())


def test_the_folder_is_a_plain_model(base: Path, lora: Path, tmp_path: Path) -> None:
    merge(base, lora, tmp_path / "out")
    assert names(tmp_path / "out") == sorted(set(names(base)) - {"pytorch_model.bin", "notes.txt"})
    for name in ("tokenizer.json", "LICENSE"):
        assert (tmp_path / "out" / name).read_text() == f"the base's {name}"
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in tensors_of(base).values())
    assert names(tmp_path) == ["base", "lora", "out"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_another_dtype_is_rounded_to_once(dtype: str, base: Path, lora: Path, tmp_path: Path) -> None:
    exact = merge(base, lora, tmp_path / "exact")
    merged = merge(base, lora, tmp_path / "out", dtype)
    wanted = getattr(torch, dtype)
    found, expected = tensors_of(tmp_path / "out"), tensors_of(tmp_path / "exact")
    assert all(torch.equal(found[name], each.to(wanted)) for name, each in expected.items() if each.is_floating_point())
    assert found["model.counts"].dtype == torch.int64
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == dtype
    assert merged.num_bytes < exact.num_bytes


def test_a_base_in_bf16_is_rounded_once(lora: Path, tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", torch.bfloat16)
    merge(base, lora, tmp_path / "out")
    merge(base, lora, tmp_path / "exact", "float32")
    found, exact = tensors_of(tmp_path / "out")[Q_PROJ], tensors_of(tmp_path / "exact")[Q_PROJ]
    assert found.dtype == torch.bfloat16
    assert ((found.float() - exact).abs() <= exact.abs() * 2**-8).all()


def test_a_folder_with_anything_in_it_is_left_alone(base: Path, lora: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("mine")
    for target in (out, out / "precious"):
        with pytest.raises(MergeRefused, match="exists and is not an empty folder"):
            merge(base, lora, target)
    assert names(out) == ["precious"]
    (out / "precious").unlink()
    assert merge(base, lora, out).num_modules == 1


def test_every_module_that_does_not_fit_is_named(base: Path, tmp_path: Path) -> None:
    for folder, change, why in (
        ("wide", {"hidden": 2 * HIDDEN}, r"layer 0 q_proj: made for \[out, in\] = \[32, 32\], .* has \[16, 16\]"),
        ("elsewhere", {"module": "mlp.up_proj"}, "layer 0 up_proj: the base model has no such linear"),
    ):
        with pytest.raises(AdapterRejected, match=why):
            merge(base, write_lora(tmp_path / folder, **change), tmp_path / "out")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_quantized_weights_are_refused(base: Path, lora: Path, tmp_path: Path) -> None:
    save_file({Q_PROJ: torch.zeros(HIDDEN, HIDDEN, dtype=torch.int8)}, base / "model-00001-of-00002.safetensors")
    with pytest.raises(AdapterRejected, match=r"layer 0 q_proj: the base model's weight is quantized \(I8\)"):
        merge(base, lora, tmp_path / "out")


def test_a_merge_that_fails_leaves_nothing(base: Path, tmp_path: Path) -> None:
    lora = write_lora(tmp_path / "lora", scale=1e4)
    with pytest.raises(MergeRefused, match=f"{Q_PROJ}: a merged weight is too large for F16"):
        merge(base, lora, tmp_path / "out", "float16")
    assert names(tmp_path) == ["base", "lora"]


def test_a_base_folder_without_a_model_is_refused(lora: Path, tmp_path: Path) -> None:
    with pytest.raises(MergeRefused, match="is not a model"):
        merge(tmp_path, lora, tmp_path / "out")


LIMITED = """
import resource, sys
from pathlib import Path
from adapters.merge import merge
import torch
torch.addmm(torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2, 2))
data = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
limit = int(data.split()[1]) * 1024 + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
print(merge(*map(Path, sys.argv[2:]), "bfloat16").num_modules)
"""


def test_memory_is_for_a_tensor_not_for_the_model(tmp_path: Path) -> None:
    """32 linear layers of 4 MiB each are merged in 32 MiB of memory, not counting the read-only map of their file."""
    base = write_base(tmp_path / "base", hidden=1024, num_layers=16)
    lora = write_lora(tmp_path / "lora", hidden=1024)
    limit = (32 << 20) + max(path.stat().st_size for path in base.iterdir())
    command = [sys.executable, "-c", LIMITED, str(limit), base, lora, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.stdout.strip(), done.returncode) == ("1", 0), done.stderr


def test_the_command_says_what_it_made_or_why_not(base: Path, lora: Path, tmp_path: Path, capsys: Any) -> None:
    command = [
        "adapter",
        "merge",
        "--base",
        str(base),
        "--adapter",
        str(lora),
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"out": str(tmp_path / "out"), "modules": 1, "bytes": said["bytes"]}
    assert main(command) == 1
    assert "exists and is not an empty folder" in capsys.readouterr().err
    assert main([*command[:-2], str(tmp_path / "again"), "--adapter", str(tmp_path)]) == 1
    assert "adapter_config.json is missing" in capsys.readouterr().err
