"""Make a checkpoint in FP8 of a dense model: `python -m engine.prepare.float8 MODEL_DIR --out DIR`.

DIR is a folder as llm-compressor leaves one: compressed-tensors' `float-quantized`, where each row of a matrix has a
scale, and inputs are not rounded. Embedding, head and norms stay as they are. Numbers are rounded to the nearest. The
scale of a row is the best of several: FP8 has eight numbers between a power of two and the next, so that a row loses
more or less by where its numbers lie. An error counts by the inputs that meet it (`engine.cpu.importance`).
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.config import ModelConfig, UnsupportedModel, load_model_config, model_digest
from engine.config.gguf_file import gguf_of
from engine.config.openmp import sleep_while_waiting
from engine.cpu.importance import Importance, measure_importance
from engine.cpu.quality import TEXT, differences
from engine.cpu.text import states_of, token_ids_of
from engine.lora.layout import in_order, part_of
from engine.models.checkpoint import weights_in_turn
from engine.models.weights import Product, StackedMatrices, plain_embedding, plain_linear
from engine.prepare.folder import SourceNote, make_folder
from engine.prepare.sources import PreparationFailed, progress

FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max
NUM_SCALES = 8
"""The number of scales that are tried for each row, evenly over a factor of two: beyond that FP8 repeats itself."""

INDEX = "model.safetensors.index.json"
LEFT_OUT = ("*.safetensors", "lorikeet-*", INDEX, "config.json")
"""Files directly in the model's folder that are not copied: they are written anew, or are of this model alone."""


class Float8Rows(NamedTuple):
    """A matrix in FP8 with a scale for each row."""

    numbers: Tensor  # [out, in] float8_e4m3fn
    scales: Tensor  # [out, 1] float32


def rounded_rows(weight: Tensor, importance: Tensor | None) -> Float8Rows:
    """Round a matrix [out, in] in float32 to the nearest numbers in FP8, by the best scale of each row.

    importance [in]: the factor of the squared errors of each column; None: all are alike.
    """
    counts = torch.ones(weight.shape[1]) if importance is None else importance
    least = (weight.abs().amax(1, keepdim=True) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
    best = Float8Rows(torch.empty(weight.shape, dtype=FLOAT8), least)
    errors = torch.full_like(least, torch.inf)
    for step in range(NUM_SCALES):
        scales = least * 2 ** (step / NUM_SCALES)
        numbers = (weight / scales).to(FLOAT8)
        found = ((numbers.float() * scales - weight).square() @ counts)[:, None]
        is_better = found < errors
        errors = torch.where(is_better, found, errors)
        # There is no `where` for numbers in FP8.
        chosen = torch.where(is_better, numbers.view(torch.uint8), best.numbers.view(torch.uint8))
        best = Float8Rows(chosen.view(FLOAT8), torch.where(is_better, scales, best.scales))
    return best


class RoundedMatrices:
    """The matrices of a model's layers in FP8, by the names of the tensors that they replace in the model's files.

    names: the names of all tensors of the files.
    """

    def __init__(self, config: ModelConfig, names: Collection[str]) -> None:
        self._config, self._names = config, names
        self._found: dict[str, Float8Rows] = {}

    def add(self, name: str, rows: Float8Rows) -> None:
        """Add a matrix in the engine's order of outputs. name: Llama's, as `model.layers.0.mlp.up_proj.weight`.

        Raises PreparationFailed: when the files have no tensor that it is a part of.
        """
        num_outputs, num_inputs = rows.numbers.shape
        part = None if name in self._names else part_of(name, self._config)
        source, first, num_rows = part or (name, 0, num_outputs)
        if source not in self._names:
            raise PreparationFailed(
                f"the checkpoint has no tensor {source}: its names are not those of {self._config.family}"
            )
        if source not in self._found:
            self._found[source] = Float8Rows(torch.empty(num_rows, num_inputs, dtype=FLOAT8), torch.empty(num_rows, 1))
        whole, places = self._found[source], first + in_order(name, torch.arange(num_outputs), self._config)
        whole.numbers.view(torch.uint8)[places] = rows.numbers.view(torch.uint8)
        whole.scales[places] = rows.scales

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors in the place of one of the model's files; {} where that one stays as it is."""
        rows = self._found.get(name)
        return {} if rows is None else {name: rows.numbers, f"{name}_scale": rows.scales}


def check_model(model_dir: Path, config: ModelConfig) -> None:
    """Check that a model can be rounded: a dense decoder of the engine's own code, in safetensors, not rounded yet.

    Raises PreparationFailed: when it cannot.
    """
    for is_so, what in (
        (config.is_encoder or config.decoder == "transformers", "is not computed by the engine's own code"),
        (config.experts is not None or config.recurrence is not None, "has experts or states"),
        (config.quantized is not None, "is quantized already"),
        (gguf_of(model_dir) is not None, "is of a GGUF file, which `python -m engine.prepare FILE --convert` converts"),
    ):
        if is_so:
            raise PreparationFailed(f"{model_dir} {what}")


def round_layers(model_dir: Path, config: ModelConfig, importance: Importance) -> RoundedMatrices:
    """Return all matrices of a model's layers in FP8, read one layer at a time.

    Raises UnsupportedModel: when the files are not those of a model that the engine computes.
    Raises PreparationFailed: when their tensors have other names than those of the model's family.
    """
    names: set[str] = set()
    for path in model_dir.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names.update(file.keys())
    found = RoundedMatrices(config, names)

    def linear(matrices: StackedMatrices, bias: Tensor | None) -> Product:
        if matrices.names[0].startswith("model.layers."):
            parts = torch.split(matrices.tensor, [height for height, _ in matrices.shapes])
            for name, part in zip(matrices.names, parts, strict=True):
                found.add(name, rounded_rows(part, importance.of(name)))
        return plain_linear(matrices, bias)

    with weights_in_turn(model_dir, config, linear) as weights:
        for number, _ in enumerate(weights.layers):
            progress(f"rounded layer {number + 1} of {config.num_layers}")
    return found


def write_folder(model_dir: Path, out: Path, rounded: RoundedMatrices) -> None:
    """Fill a folder with the files of a model, with rounded matrices in the place of its own."""
    left_out = shutil.ignore_patterns(*LEFT_OUT)

    def ignore(folder: str, names: list[str]) -> set[str]:
        return left_out(folder, names) if Path(folder) == model_dir else set()

    shutil.copytree(model_dir, out, ignore=ignore, dirs_exist_ok=True)
    files_of: dict[str, str] = {}
    ignored: list[str] = ["lm_head"]
    num_bytes = 0
    for path in sorted(model_dir.glob("*.safetensors")):
        tensors: dict[str, Tensor] = {}
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                found = rounded.tensors(name) or {name: file.get_tensor(name)}
                if len(found) == 1 and name.endswith(".weight") and found[name].dim() == 2:
                    ignored.append(name.removesuffix(".weight"))
                tensors |= found
        save_file(tensors, out / path.name, metadata={"format": "pt"})
        files_of |= dict.fromkeys(tensors, path.name)
        num_bytes += sum(tensor.nbytes for tensor in tensors.values())
    if (model_dir / INDEX).exists():
        _write_json(out / INDEX, {"metadata": {"total_size": num_bytes}, "weight_map": files_of})
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    config: dict[str, Any] = msgspec.json.decode((model_dir / "config.json").read_bytes())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": sorted(set(ignored)),
    }
    _write_json(out / "config.json", config)


def change_of(model_dir: Path, config: ModelConfig, out: Path) -> str:
    """Return in words how far the predictions of a folder in FP8 are from the model's, over the text of `quality`."""
    token_ids = token_ids_of(TEXT, model_dir, config)
    if len(token_ids) < 2:
        return "not measured, since no tokenizer.json fits the model"
    with torch.inference_mode():
        plain, rounded = (
            states_of(folder, each, token_ids, plain_linear, plain_embedding, torch.float32)
            for folder, each in ((model_dir, config), (out, load_model_config(out)))
        )
        divergence, lost = differences(plain, rounded, torch.tensor(token_ids[1:]))
    change = (math.exp(min(lost, 100.0)) - 1) * 100
    return f"{divergence:.4f} nats from the model, perplexity {change:+.2f} %"


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))


def main(argv: list[str] | None = None) -> int:
    """Make a checkpoint in FP8 of a model: exit code 0 and the folder on standard output, or 1 and the error."""
    parser = argparse.ArgumentParser(prog="python -m engine.prepare.float8", description=main.__doc__)
    parser.add_argument("model_dir", type=Path, help="folder with config.json, tokenizer.json and *.safetensors")
    parser.add_argument("--out", required=True, type=Path, help="folder to make")
    given = parser.parse_args(argv)
    sleep_while_waiting()
    try:
        config = load_model_config(given.model_dir)
        check_model(given.model_dir, config)
        source, out = given.model_dir.resolve(), given.out.resolve()
        if source.is_relative_to(out) or out.is_relative_to(source):
            raise PreparationFailed(f"--out {given.out} would replace the model or lie in it: name another folder")
        note = SourceNote(1, "float8", model_digest(given.model_dir))

        def build(folder: Path) -> None:
            rounded = round_layers(given.model_dir, config, measure_importance(given.model_dir, config))
            write_folder(given.model_dir, folder, rounded)
            progress(change_of(given.model_dir, config, folder))

        folder = make_folder(note, given.out, build, chat=False)
    except (PreparationFailed, UnsupportedModel, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
