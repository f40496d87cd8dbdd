"""A checkpoint in FP8 is what its rounding says, and its scales are better than those of the largest numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import load_model_config
from engine.models.checkpoint import weights_in_turn
from engine.models.weights import Product, StackedMatrices, plain_linear
from engine.prepare.compensation import LARGEST, rounded_rows
from engine.prepare.float8 import Options, main, round_layers, write_folder
from tests.engine.models.tiny import save_tiny
from tests.gateway.model_folder import make_model_folder

NEAREST = Options()
DENSE = ("llama", "qwen2", "gemma3", "phi3-partial", "glm", "glm4")
"""Families with matrices by themselves, with biases, with other norms, fused, and with heads in another order."""


def matrices_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the matrices of a model's layers as the engine reads them, by Llama's names."""
    found: dict[str, torch.Tensor] = {}

    def linear(matrices: StackedMatrices, bias: torch.Tensor | None) -> Product:
        parts = torch.split(matrices.tensor, [height for height, _ in matrices.shapes])
        found.update(zip(matrices.names, parts, strict=True))
        return plain_linear(matrices, bias)

    with weights_in_turn(folder, load_model_config(folder), linear) as weights:
        list(weights.layers)
    return {name: each for name, each in found.items() if name.startswith("model.layers.")}


@pytest.mark.parametrize("family", DENSE)
def test_the_engine_reads_what_was_rounded(family: str, tmp_path: Path) -> None:
    save_tiny(family, tmp_path / "model")
    config = load_model_config(tmp_path / "model")
    write_folder(tmp_path / "model", tmp_path / "out", round_layers(tmp_path / "model", config, NEAREST))
    plain, rounded = matrices_of(tmp_path / "model"), matrices_of(tmp_path / "out")
    assert plain.keys() == rounded.keys() and len(plain) >= 7 * config.num_layers
    for name, weight in plain.items():
        expected = rounded_rows(weight, None)
        torch.testing.assert_close(rounded[name], expected.numbers.float() * expected.scales, rtol=0, atol=0)
        assert 0.01 < (rounded[name] - weight).norm() / weight.norm() < 0.03
    own, others = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "out"))
    in_float8 = {name for name, tensor in others.items() if tensor.dtype == torch.float8_e4m3fn}
    assert {name for name in others if name.endswith("_scale")} == {f"{name}_scale" for name in in_float8}
    for name in own.keys() - in_float8:
        assert torch.equal(own[name], others[name])
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    modules = {name.removesuffix(".weight") for name, tensor in own.items() if tensor.dim() == 2}
    assert set(settings["ignore"]) == modules - {name.removesuffix(".weight") for name in in_float8} | {"lm_head"}


def test_a_row_loses_least_where_its_inputs_are_large() -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 48) * torch.logspace(-3, 3, 64)[:, None]
    weight[5] = 0.0
    importance = torch.logspace(-2, 2, 48)

    def error(found: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return (found - weight).square() @ counts

    largest = weight.abs().amax(1, keepdim=True).clamp(min=1e-30) / LARGEST
    by_largest = (weight / largest).to(torch.float8_e4m3fn).float() * largest
    for counts in (torch.ones(48), importance):
        rows = rounded_rows(weight, counts)
        found = rows.numbers.float() * rows.scales
        assert found.isfinite().all() and (error(found, counts) <= error(by_largest, counts)).all()
        assert error(found, counts).sum() < 0.9 * error(by_largest, counts).sum()
        assert (found[5] == 0).all()


def test_the_command_makes_a_folder_once_and_prints_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model_folder(tmp_path / "model")
    save_tiny("llama", model, {"vocab_size": json.loads((model / "config.json").read_text())["vocab_size"]})
    for times in range(2):
        assert main([str(model), "--out", str(tmp_path / "out")]) == 0
        told = capsys.readouterr()
        assert told.out == f"{tmp_path / 'out'}\n"
        assert ("nats from the model, perplexity" in told.err) == (times == 0)
    assert load_model_config(tmp_path / "out").quantized is not None
    assert main([str(tmp_path / "out"), "--out", str(tmp_path / "again")]) == 1
    assert f"error: {tmp_path / 'out'} is quantized already" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(("family", "tokens"), [("llama", "96"), ("llama", "0"), ("phi3-partial", "96")])
def test_the_most_sensitive_matrices_stay_as_they_are_and_are_named(family: str, tokens: str, tmp_path: Path) -> None:
    model = make_model_folder(tmp_path / "model")
    save_tiny(family, model, {"vocab_size": json.loads((model / "config.json").read_text())["vocab_size"]})
    text = tmp_path / "text.txt"
    text.write_text("Twelve boats left the harbour before dawn, and eleven came back. " * 20)
    given = ["--text", str(text), "--tokens", tokens, "--keep", "0.3"]
    assert main([str(model), "--out", str(tmp_path / "out"), *given]) == 0
    plain, found = matrices_of(model), matrices_of(tmp_path / "out")
    kept = {name for name, weight in plain.items() if torch.equal(found[name], weight)}
    sizes = {name: weight.numel() for name, weight in plain.items()}
    assert 0 < sum(sizes[name] for name in kept) <= 0.3 * sum(sizes.values())
    ignored = set(json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["ignore"])
    in_float8 = {
        name.removesuffix(".weight")
        for name, tensor in load_file(tmp_path / "out" / "model.safetensors").items()
        if tensor.dtype == torch.float8_e4m3fn
    }
    layers = {name for name in ignored if name.startswith("model.layers.")}
    assert layers and not layers & in_float8
    config = load_model_config(model)
    assert len(layers | in_float8) == {"llama": 7, "phi3-partial": 4}[family] * config.num_layers
    for name in plain.keys() - kept:
        assert (found[name] - plain[name]).norm() < 0.1 * plain[name].norm()


def test_other_options_make_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model_folder(tmp_path / "model")
    save_tiny("llama", model, {"vocab_size": json.loads((model / "config.json").read_text())["vocab_size"]})
    weights = []
    for given in (["--tokens", "128"], ["--tokens", "64"], ["--keep", "0.2"], [], ["--tokens", "0"]):
        before = capsys.readouterr()
        assert main([str(model), "--out", str(tmp_path / "out"), *given]) == 0
        weights.append((tmp_path / "out" / "model.safetensors").read_bytes())
    assert before.err and not capsys.readouterr().err, "the last is there already"
    assert len(set(weights)) == 4 and weights[3] == weights[4]
    for wrong in (["--tokens", "-1"], ["--keep", "1"], ["--keep", "-0.1"], ["--keep", "much"]):
        with pytest.raises(SystemExit):
            main([str(model), "--out", str(tmp_path / "out"), *wrong])
    assert main([str(model), "--out", str(tmp_path / "other"), "--text", str(tmp_path / "none.txt")]) == 1
    assert "none.txt" in capsys.readouterr().err


def test_experts_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny("mixtral", tmp_path / "model")
    assert main([str(tmp_path / "model"), "--out", str(tmp_path / "out")]) == 1
    assert "has experts or states" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["model", ".", "model/within", "full"])
def test_no_folder_with_files_of_others_is_replaced(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny("llama", tmp_path / "model")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main([str(tmp_path / "model"), "--out", str(tmp_path / out)]) == 1
    assert str(tmp_path / out).removesuffix("/.") in capsys.readouterr().err
    assert sorted(path for path in tmp_path.rglob("*") if path.name != ".lock") == before


def test_settings_of_parts_of_a_model_are_kept(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    (tmp_path / "model" / "1_Pooling").mkdir()
    (tmp_path / "model" / "1_Pooling" / "config.json").write_text("{}")
    rounded = round_layers(tmp_path / "model", load_model_config(tmp_path / "model"), NEAREST)
    write_folder(tmp_path / "model", tmp_path / "out", rounded)
    assert (tmp_path / "out" / "1_Pooling" / "config.json").read_text() == "{}"


def test_a_matrix_whose_inputs_cannot_make_errors_good_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model_folder(tmp_path / "model")
    save_tiny("llama", model, {"vocab_size": json.loads((model / "config.json").read_text())["vocab_size"]})
    path = model / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.input_layernorm.weight"] *= 1e30
    save_file(tensors, path, {"format": "pt"})
    assert main([str(model), "--out", str(tmp_path / "out"), "--tokens", "64"]) == 1
    assert "error: the inputs of model.layers.1.self_attn.q_proj.weight, " in capsys.readouterr().err
