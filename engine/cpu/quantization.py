"""The number format in which a CPU multiplies by the frozen matrices of a base model, and why.

Deltas of adapters are computed from inputs that are not quantized, by matrices in the formats of `engine.cpu.tables`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from engine.config import EngineConfig, ModelConfig, load_model_config
from engine.config.gguf_file import gguf_of
from engine.config.model import Quantized
from engine.cpu.importance import NOTHING, measure_importance, text_digest
from engine.cpu.kept import DamagedFile, KeptMatrices, MatricesWriter, matrices_file, origin_of, remove_interrupted
from engine.cpu.matrices import NativeMatrices, matrices_bytes
from engine.cpu.quality import Quality, keep_quality, measure_quality, stored_quality
from engine.hardware import FLOAT8_CAPABILITY, SetupError, num_threads
from engine.models.checkpoint import load_weights
from engine.models.gguf import GgufWeights
from engine.models.packed.blocks import PackedBlocks
from engine.models.weights import (
    MakeEmbedding,
    MakeGrouped,
    MakeLinear,
    ModelWeights,
    plain_embedding,
    plain_grouped,
    plain_linear,
)
from kernels.cpu.library import NativeLibrary, installed
from kernels.cpu.matrix import FORMATS

log = logging.getLogger(__name__)

Format = Literal["none", "int8", "int4", "fp8", "w8a8", "gguf"]
Requested = Literal["auto", "none", "int8", "int4", "fp8", "w8a8", "gguf"]


LOSSY_RATIO = 1.04
"""Perplexity in 4-bit integers over that in float32 above which a start warns."""


class Choice(NamedTuple):
    """A format, and a sentence that says why."""

    format: Format
    reason: str


def why_unquantized(model: ModelConfig, device: torch.device) -> str:
    """Return why a model is computed in the numbers of its files, in words; "" where other formats are possible."""
    if model.decoder == "transformers":
        return "transformers computes this model"
    if model.recurrence is not None:
        return "PyTorch computes this model's states"
    return "" if model.experts is None or device.type == "cpu" else "a GPU computes this model's experts"


def check_unquantized(requested: Requested, why: str) -> None:
    """Check that a model is to be computed in the numbers of its files. why: as `why_unquantized` says.

    Raises SetupError: when another format is asked for.
    """
    if requested not in ("auto", "none"):
        raise SetupError(f"LORIKEET_QUANTIZATION is {requested}, but {why}, in float32 or 16 bits; set it to auto")


def use_native_path(requested: str) -> None:
    """Make the native kernels use no faster instructions than asked for; auto: the processor's fastest.

    Raises SetupError: when the processor does not have them.
    """
    library = installed()
    if library is None:
        return
    if requested != "auto" and requested not in library.all_paths:
        raise SetupError(f"LORIKEET_NATIVE_PATH is {requested}, but this processor has {', '.join(library.all_paths)}")
    library.use_up_to(None if requested == "auto" else requested)


def choose_format(
    requested: Requested,
    device: torch.device,
    dtype: torch.dtype,
    quality: Callable[[NativeLibrary], Quality | None],
    *,
    has_blocks: bool = False,
    quantized: Quantized | None = None,
) -> Choice:
    """Return the format that products are computed in.

    dtype: the dtype of the model.
    quality: returns the change that 8-bit integers make, None if not known; called where `auto` depends on the change.
    has_blocks: True if the model is a GGUF file.
    quantized: the way in which the model's files hold matrices in few bits; None: files hold the numbers as they are.

    Raises SetupError: when the device has no such format.
    """
    library = installed()
    if requested == "gguf" and not has_blocks:
        raise SetupError("LORIKEET_QUANTIZATION is gguf, but the model is not a GGUF file; set it to auto")
    if device.type != "cpu":
        return _on_gpu(requested, device, quantized)
    if requested in ("fp8", "w8a8"):
        raise SetupError(f"LORIKEET_QUANTIZATION is {requested}, which is for a GPU, not for cpu; set it to auto")
    if requested in ("int8", "int4", "gguf"):
        if library is None:
            return Choice(
                "none", f"LORIKEET_QUANTIZATION is {requested}, but the native kernels are not there: PyTorch computes."
            )
        return Choice(
            requested,
            f"LORIKEET_QUANTIZATION is {requested}, and {library.paths[-1]} is this processor's fastest path.",
        )
    if requested == "none":
        return Choice("none", "LORIKEET_QUANTIZATION is none.")
    if library is None or len(library.all_paths) < 2:
        return Choice("none", "There are no native kernels for this processor: PyTorch computes.")
    if has_blocks and dtype != torch.float16:
        return Choice("gguf", f"Matrices stay in the blocks of their GGUF file, by {library.paths[-1]}.")
    if quantized is not None and quantized.keeps_integers and dtype != torch.float16:
        return Choice("int4", f"Matrices stay the 4-bit integers of their files ({quantized}), by {library.paths[-1]}.")
    if dtype != torch.float32 and not _beats_bfloat16(library, dtype):
        name = str(dtype).removeprefix("torch.")
        return Choice("none", f"Matrices stay in {name}, which this processor multiplies faster than 8-bit integers.")
    found = quality(library)
    if found is None:
        return Choice("none", "Matrices stay as they are: what 8-bit integers change of this model is not known.")
    if not found.holds:
        return Choice("none", f"Matrices stay as they are: in 8-bit integers this model is {found}, too far.")
    return Choice("int8", f"Matrices are 8-bit integers, by {library.paths[-1]}: this model is {found}.")


def _on_gpu(requested: Requested, device: torch.device, quantized: Quantized | None) -> Choice:
    """Return the format that products are computed in on a GPU: the checkpoint's own, or none.

    quantized: as for `choose_format`.

    Raises SetupError: when the device or the checkpoint has no such format.
    """
    own = "" if quantized is None else quantized.on_gpu
    may_round = own == "fp8" and quantized is not None and quantized.rounds_inputs
    if requested not in ("auto", "none", own) and not (requested == "w8a8" and may_round):
        has = f"the files hold {quantized}" if quantized is not None else "the files hold numbers as they are"
        raise SetupError(f"LORIKEET_QUANTIZATION is {requested}, which a GPU cannot take here: {has}; set it to auto")
    if requested == "none":
        return Choice("none", "LORIKEET_QUANTIZATION is none.")
    if not own:
        return Choice("none", "Integers that are made at the start are for a CPU.")
    if own == "fp8" and torch.cuda.is_available() and torch.cuda.get_device_capability(device) < FLOAT8_CAPABILITY:
        if requested != "auto":
            raise SetupError(f"LORIKEET_QUANTIZATION is {requested}, which this GPU does not multiply; set it to auto")
        return Choice("none", "This GPU does not multiply FP8: matrices become numbers of LORIKEET_DTYPE.")
    if requested == "w8a8":
        return Choice("w8a8", f"Matrices stay those of their files ({quantized}), and inputs are FP8, too, by Triton.")
    return Choice(own, f"Matrices stay those of their files ({quantized}), by Triton.")


def _beats_bfloat16(library: NativeLibrary, dtype: torch.dtype) -> bool:
    """Tell whether 8-bit integers answer sooner than PyTorch does in dtype, prompt and tokens taken together.

    With AVX512's VNNI they do. By AMX's tiles PyTorch computes a prompt of 512 tokens up to 2.7 times as fast, which
    the first 18 tokens of the answer make up for (`engine/LOG.md`).
    """
    return dtype == torch.bfloat16 and library.paths[-1] == "avx512_vnni"


def settle_format(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> Format:
    """Return the format of an engine with this configuration. The first start with a model measures what `auto` needs.

    Raises SetupError: when the device has no such format.
    Raises UnsupportedModel: when the engine cannot compute the model that is to be measured.
    """

    def quality(library: NativeLibrary) -> Quality | None:
        found = stored_quality(config.model_dir, "int8")
        if found is None:
            torch.set_num_threads(num_threads(config.num_threads))
            found = measure_quality(library, config.model_dir, "int8")
            if found is not None:
                keep_quality(config.model_dir, found, "int8")
        return found

    use_native_path(config.native_path)
    has_blocks = gguf_of(config.model_dir) is not None
    quantized = load_model_config(config.model_dir).quantized
    choice = choose_format(config.quantization, device, dtype, quality, has_blocks=has_blocks, quantized=quantized)
    if choice.format != config.quantization:  # else it was asked for
        log.info("%s", choice.reason)
    elif choice.format == "int4" and device.type == "cpu" and not (quantized is not None and quantized.keeps_integers):
        measured = stored_quality(config.model_dir, "int4")
        if measured is None:
            command = f"python -m engine.cpu.quality --model-dir {config.model_dir}"
            log.info("what int4 changes of this model is not known; `%s` measures it", command)
        else:
            log.log(logging.WARNING if measured.perplexity_ratio > LOSSY_RATIO else logging.INFO, "int4: %s", measured)
    return choice.format


class ProductMakers(NamedTuple):
    """The functions that make products, the rows of tokens, and products of experts from a model's weights."""

    linear: MakeLinear
    embedding: MakeEmbedding
    grouped: MakeGrouped

    @classmethod
    def of(cls, made: NativeMatrices) -> ProductMakers:
        """Return the makers of native matrices."""
        return cls(made.linear, made.embedding, made.grouped)


def makers(quantized: Format, dtype: torch.dtype, model_dir: str | Path = "") -> ProductMakers:
    """Return the functions that make a model's weights in a dtype.

    A quantized head that is tied to the embedding also gives the rows of tokens. model_dir: the folder of the model,
    whose blocks `gguf` reads.

    Raises UnsupportedModel: when the file of blocks cannot be read.
    """
    library = installed()
    if quantized in ("none", "fp8", "w8a8") or library is None:
        return ProductMakers(plain_linear, plain_embedding, plain_grouped)
    if quantized == "gguf":
        file = gguf_of(model_dir)
        assert file is not None
        return ProductMakers.of(NativeMatrices(library, "int8", dtype, GgufWeights(file, load_model_config(model_dir))))
    assert quantized == "int8" or quantized == "int4"
    return ProductMakers.of(NativeMatrices(library, quantized, dtype))


def load_quantized(model_dir: str | Path, config: ModelConfig, quantized: Format, dtype: torch.dtype) -> ModelWeights:
    """Return a model's weights on a CPU. Matrices of `int8` and `int4` are kept beside the model for later starts.

    Raises UnsupportedModel: when the model's files are not those of its config.
    """

    def load(makers: ProductMakers) -> ModelWeights:
        linear, embedding, grouped = makers
        cpu = torch.device("cpu")
        return load_weights(
            model_dir, config, dtype, cpu, make_linear=linear, make_embedding=embedding, make_grouped=grouped
        )

    remove_interrupted(Path(model_dir))
    library = installed()
    if library is None or (quantized != "int8" and quantized != "int4"):
        return load(makers(quantized, dtype, model_dir))
    keeps = quantized == "int4" and config.quantized is not None and config.quantized.keeps_integers
    weighs = quantized == "int4" and not keeps
    wording = f"{FORMATS[quantized]}; of the files' own integers" if keeps else FORMATS[quantized]
    if weighs and (Path(model_dir) / "tokenizer.json").exists():  # else all inputs are alike
        wording = f"{wording}; inputs of {text_digest()}"
    path, origin = matrices_file(model_dir, quantized), origin_of(model_dir, wording, dtype)
    try:
        with KeptMatrices(path, library, origin) as kept:
            return load(ProductMakers.of(NativeMatrices(library, quantized, dtype, kept=kept)))
    except (DamagedFile, OSError) as error:
        if path.exists():
            log.warning("quantizing again, since %s cannot be used: %s", path, error)
    writer = MatricesWriter(path, origin, matrices_bytes(config, quantized))
    try:
        # What the files have in more bits becomes 8-bit integers beside 4-bit ones of their own.
        kind: Literal["int8", "int4"] = "int8" if keeps else quantized
        importance = measure_importance(model_dir, config) if weighs else NOTHING
        with PackedBlocks(Path(model_dir), config) if keeps else nullcontext() as blocks:
            matrices = NativeMatrices(library, kind, dtype, blocks, writer=writer, importance=importance)
            weights = load(ProductMakers.of(matrices))
        writer.finish()
    finally:
        writer.abandon()
    return weights
