"""The number format in which a CPU multiplies by the frozen matrices of a base model.

Deltas of adapters are computed from inputs that are not quantized, by matrices in the formats of `engine.cpu.tables`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Literal

import torch

from engine.hardware import SetupError
from engine.models.weights import MakeLinear
from kernels.cpu.library import installed
from kernels.cpu.linear import Int8Linear
from kernels.linear import Linear

log = logging.getLogger(__name__)


def quantization(asked: Literal["auto", "none", "int8"], device: torch.device) -> Literal["none", "int8"]:
    """Return the format that is computed: the one that was asked for, if its kernels are there.

    Raises SetupError: when the device has no such format.
    """
    if asked != "int8":
        return "none"
    if device.type != "cpu":
        raise SetupError(f"LORIKEET_QUANTIZATION is int8, which is for a CPU, not for {device.type}; set it to auto")
    return "none" if installed() is None else "int8"


def make_linear(quantized: Literal["none", "int8"]) -> MakeLinear:
    """Return what makes products of a model's weights."""
    library = installed() if quantized == "int8" else None
    if library is None:
        return Linear
    log.info("products with frozen matrices in 8-bit integers, by %s", library.paths[-1])
    return partial(Int8Linear, library)
