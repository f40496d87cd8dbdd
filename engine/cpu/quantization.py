"""The number format in which a CPU multiplies by the frozen matrices of a base model, and why.

Deltas of adapters are computed from inputs that are not quantized, by matrices in the formats of `engine.cpu.tables`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch

from engine.config import EngineConfig
from engine.cpu.quality import Quality, keep_quality, measure_quality, stored_quality
from engine.hardware import SetupError, cpu_has_tiles, num_threads
from engine.models.weights import MakeEmbedding, MakeLinear, plain_embedding
from kernels.cpu.library import NativeLibrary, installed
from kernels.cpu.linear import Int8Embedding, Int8Linear
from kernels.linear import Linear

log = logging.getLogger(__name__)

Format = Literal["none", "int8"]
Asked = Literal["auto", "none", "int8"]


class Choice(NamedTuple):
    """A format, and a sentence that says why."""

    format: Format
    reason: str


def use_native_path(asked: str) -> None:
    """Make the native kernels use no faster instructions than asked for; auto: the processor's fastest.

    Raises SetupError: when the processor does not have them.
    """
    library = installed()
    if library is None:
        return
    if asked != "auto" and asked not in library.all_paths:
        raise SetupError(f"LORIKEET_NATIVE_PATH is {asked}, but this processor has {', '.join(library.all_paths)}")
    library.use_up_to(None if asked == "auto" else asked)


def choose_format(
    asked: Asked,
    device: torch.device,
    dtype: torch.dtype,
    quality: Callable[[NativeLibrary], Quality | None],
    has_tiles: bool | None = None,
) -> Choice:
    """Return the format that products are computed in.

    quality: called where `auto` depends on the change that 8-bit integers make; None: it is not known.
    has_tiles: True if the CPU multiplies bfloat16 by tiles; None: ask this machine.

    Raises SetupError: when the device has no such format.
    """
    library = installed()
    if asked == "int8":
        if device.type != "cpu":
            raise SetupError(
                f"LORIKEET_QUANTIZATION is int8, which is for a CPU, not for {device.type}; set it to auto"
            )
        if library is None:
            return Choice(
                "none", "LORIKEET_QUANTIZATION is int8, but the native kernels are not there: PyTorch computes."
            )
        return Choice(
            "int8", f"LORIKEET_QUANTIZATION is int8, and {library.paths[-1]} is this processor's fastest path."
        )
    if asked == "none":
        return Choice("none", "LORIKEET_QUANTIZATION is none.")
    if device.type != "cpu":
        return Choice("none", "8-bit integers are for a CPU.")
    if library is None or len(library.all_paths) < 2:
        return Choice("none", "There are no native kernels for this processor: PyTorch computes.")
    if dtype != torch.float32 and not _beats_bfloat16(library, dtype, has_tiles):
        name = str(dtype).removeprefix("torch.")
        return Choice("none", f"Matrices stay in {name}, in which long prompts are faster than in 8-bit integers.")
    found = quality(library)
    if found is None:
        return Choice("none", "Matrices stay as they are: what 8-bit integers change of this model is not known.")
    if not found.holds:
        return Choice("none", f"Matrices stay as they are: in 8-bit integers this model is {found}, too far.")
    return Choice("int8", f"Matrices are 8-bit integers, by {library.paths[-1]}: this model is {found}.")


def _beats_bfloat16(library: NativeLibrary, dtype: torch.dtype, has_tiles: bool | None) -> bool:
    """Tell whether 8-bit integers are faster than PyTorch's products in dtype for single rows and for long prompts.

    With AVX512's VNNI they are, beside AVX512-BF16. By AMX's tiles PyTorch computes prompts of 512 tokens up to 2.7
    times as fast (`engine/LOG.md`). Nothing that is fast becomes slow without being asked for.
    """
    if dtype != torch.bfloat16 or library.paths[-1] != "avx512_vnni":
        return False
    return not (cpu_has_tiles() if has_tiles is None else has_tiles)


def settle_format(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> Format:
    """Return the format of an engine with this configuration. The first start with a model measures what `auto` needs.

    Raises SetupError: when the device has no such format.
    Raises UnsupportedModel.
    """

    def quality(library: NativeLibrary) -> Quality | None:
        found = stored_quality(config.model_dir)
        if found is None:
            torch.set_num_threads(num_threads(config.num_threads))
            found = measure_quality(library, config.model_dir)
            if found is not None:
                keep_quality(config.model_dir, found)
        return found

    use_native_path(config.native_path)
    choice = choose_format(config.quantization, device, dtype, quality)
    if choice.format != config.quantization:  # else it was asked for
        log.info("%s", choice.reason)
    return choice.format


def make_linear(quantized: Format) -> MakeLinear:
    """Return the function that makes products of a model's weights."""
    library = installed() if quantized == "int8" else None
    return Linear if library is None else partial(Int8Linear, library)


def make_embedding(quantized: Format) -> MakeEmbedding:
    """Return the function that makes the rows of a model's tokens.

    They are read from a quantized head where it is tied to them.
    """
    library = installed() if quantized == "int8" else None
    return plain_embedding if library is None else partial(Int8Embedding.of, library)
