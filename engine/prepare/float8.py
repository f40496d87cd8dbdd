"""Make a checkpoint in FP8 of a dense model: `python -m engine.prepare.float8 MODEL_DIR --out DIR`.

DIR is a folder as llm-compressor leaves one: compressed-tensors' `float-quantized`, where each row of a matrix has a
scale, and inputs are not rounded. Embedding, head and norms stay as they are. The scale of a row is the best of
several: FP8 has eight numbers between a power of two and the next, so that a row loses more or less by where its
numbers lie. An error counts by the inputs that meet it (`engine.cpu.importance`).

--tokens N: errors are made good by the inputs that N tokens of a text give each matrix (`engine.prepare.compensation`).
--keep SHARE: the matrices that the model is most sensitive to stay as they are, up to a share of the weights
(`engine.prepare.sensitivity`); the config names them in `ignore`.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import shutil
import sys
from collections.abc import Collection, Set
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.config import ModelConfig, UnsupportedModel, load_model_config, model_digest
from engine.config.gguf_file import gguf_of
from engine.config.openmp import sleep_while_waiting
from engine.cpu.importance import measure_importance
from engine.cpu.quality import TEXT as MEASURED_TEXT
from engine.cpu.quality import differences
from engine.cpu.text import states_of, token_ids_of
from engine.lora.layout import in_order, part_of
from engine.models.checkpoint import weights_in_turn
from engine.models.weights import Product, StackedMatrices, plain_embedding, plain_linear
from engine.prepare.calibration import NUM_TOKENS, TEXT, pieces_of, round_by_text
from engine.prepare.compensation import FLOAT8, Float8Rows, rounded_rows
from engine.prepare.folder import SourceNote, make_folder
from engine.prepare.sensitivity import Group, groups_of, most_sensitive
from engine.prepare.sources import PreparationFailed, progress

INDEX = "model.safetensors.index.json"
LEFT_OUT = ("*.safetensors", "lorikeet-*", INDEX, "config.json")
"""Files directly in the model's folder that are not copied: they are written anew, or are of this model alone."""


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


class Options(msgspec.Struct, frozen=True):
    """The choices by which a model's weights are rounded to FP8."""

    text: Path = TEXT
    """The text whose inputs errors are made good by."""
    num_tokens: int = 0
    """The most tokens of the text that are computed; 0: errors are not made good."""
    kept_share: float = 0.0
    """The largest share of the weights of a model's layers that stay as they are."""

    def __str__(self) -> str:
        """Return the options in words, with a digest of the text: other options make another folder."""
        digest = hashlib.sha256(self.text.read_bytes()).hexdigest()[:12]
        return f"{self.num_tokens} tokens of {digest}, {self.kept_share:g} kept"


def round_layers(model_dir: Path, config: ModelConfig, options: Options) -> RoundedMatrices:
    """Return the matrices of a model's layers in FP8, read one layer at a time.

    Without a tokenizer that fits the model, all are rounded to the nearest numbers, as without the options.

    Raises UnsupportedModel: when the files are not those of a model that the engine computes.
    Raises PreparationFailed: when their tensors have other names than those of the model's family, or a matrix cannot
    be rounded by its inputs.
    """
    names: set[str] = set()
    for path in model_dir.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names.update(file.keys())
    found = RoundedMatrices(config, names)
    pieces = pieces_of(options.text, model_dir, config, options.num_tokens or NUM_TOKENS)
    kept: list[Group] = []
    if options.kept_share and pieces:
        kept = most_sensitive(groups_of(model_dir, config, pieces), options.kept_share)
        for group in kept:
            progress(f"stays as it is, {group.divergence_nats:.5f} nats by itself: {' '.join(group.names)}")
    names_kept = {name for group in kept for name in group.names}
    if options.num_tokens and pieces:
        round_by_text(model_dir, config, pieces, names_kept, found.add)
    else:
        _round_to_nearest(model_dir, config, names_kept, found)
    return found


def _round_to_nearest(model_dir: Path, config: ModelConfig, kept: Set[str], found: RoundedMatrices) -> None:
    """Round the matrices of a model's layers by themselves, with scales by the inputs that count.

    kept: the names of matrices that stay as they are.
    """
    importance = measure_importance(model_dir, config)

    def linear(matrices: StackedMatrices, bias: Tensor | None) -> Product:
        if matrices.names[0].startswith("model.layers.") and kept.isdisjoint(matrices.names):
            parts = torch.split(matrices.tensor, [height for height, _ in matrices.shapes])
            for name, part in zip(matrices.names, parts, strict=True):
                found.add(name, rounded_rows(part, importance.of_inputs(name)))
        return plain_linear(matrices, bias)

    with weights_in_turn(model_dir, config, linear) as weights:
        for number, _ in enumerate(weights.layers):
            progress(f"rounded layer {number + 1} of {config.num_layers}")


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
    token_ids = token_ids_of(MEASURED_TEXT, model_dir, config)
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


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return number


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share, from 0 up to 1")
    return share


def main(argv: list[str] | None = None) -> int:
    """Make a checkpoint in FP8 of a model: exit code 0 and the folder on standard output, or 1 and the error."""
    parser = argparse.ArgumentParser(prog="python -m engine.prepare.float8", description=main.__doc__)
    parser.add_argument("model_dir", type=Path, help="folder with config.json, tokenizer.json and *.safetensors")
    parser.add_argument("--out", required=True, type=Path, help="folder to make")
    parser.add_argument("--text", default=TEXT, type=Path, help="UTF-8 text to round by (default: one of many kinds)")
    parser.add_argument(
        "--tokens",
        default=0,
        type=_count,
        help=f"make errors good by so many tokens of the text, such as {NUM_TOKENS} (default: 0, round to nearest)",
    )
    parser.add_argument(
        "--keep",
        default=0.0,
        type=_share,
        help="share of the layers' weights, those that cost most, that stays as it is, such as 0.1 (default: 0)",
    )
    given = parser.parse_args(argv)
    options = Options(given.text, given.tokens, given.keep)
    sleep_while_waiting()
    try:
        config = load_model_config(given.model_dir)
        check_model(given.model_dir, config)
        source, out = given.model_dir.resolve(), given.out.resolve()
        if source.is_relative_to(out) or out.is_relative_to(source):
            raise PreparationFailed(f"--out {given.out} would replace the model or lie in it: name another folder")
        identity = model_digest(given.model_dir) + ("" if options == Options() else f", {options}")
        note = SourceNote(1, "float8", identity)

        def build(folder: Path) -> None:
            rounded = round_layers(given.model_dir, config, options)
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
