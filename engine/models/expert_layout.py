"""The places of experts' tensors in a checkpoint: each expert by itself, or all of a layer's in one tensor.

Names that are asked for are `model.layers.3.mlp.experts.7.gate_proj.weight` and the like in every family, and
`model.layers.3.mlp.router.weight`. Knows no files.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config.model import Experts

_NAME = re.compile(r"(model\.layers\.\d+)\.mlp\.(?:(router)|experts\.(\d+)\.(gate|up|down)_proj)\.(weight|bias)")

# The numbers of four bits: E2M1 of the Open Compute Project's formats for microscaling, 2023.
_FOUR_BITS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
MXFP4_GROUP = 32
"""Numbers of MXFP4 that share a scale."""


class ExpertPart(NamedTuple):
    """One expert's part of a tensor."""

    source: str
    """The name of the tensor."""
    expert: int | None = None
    """The number of the expert in a tensor of all; None: the tensor has this part alone."""
    shape: tuple[int, ...] = ()
    """The shape of a tensor of all experts."""
    rows: slice = slice(None)
    """The part's rows among those of the expert's tensor; its columns where `is_transposed`."""
    is_transposed: bool = False
    scales: str = ""
    """The name of the tensor of scales, where the numbers are MXFP4: then `shape` is that of blocks."""


def expert_part(
    name: str, shape: tuple[int, ...], experts: Experts | None, stored: Container[str]
) -> ExpertPart | None:
    """Return where a tensor of experts or of a router lies; None for any other tensor.

    shape: the shape of the tensor that is asked for; stored: the names of the checkpoint's tensors.
    """
    match = None if experts is None else _NAME.fullmatch(name)
    if experts is None or match is None:
        return None
    layer, router, number, projection, kind = match.groups()
    names = experts.names
    if router:
        return ExpertPart(f"{layer}.{names.router}.{kind}")
    own = {"gate": names.gate, "up": names.up, "down": names.down}[projection]
    alone = f"{layer}.{names.block}.{number}.{own}.{kind}"
    if alone in stored:
        return ExpertPart(alone)
    is_down = projection == "down"
    source = f"{layer}.{names.downs if is_down else names.gate_up}"
    height = shape[0] * (1 if is_down else 2)
    rows = slice(None)
    if not is_down and experts.order == "interleaved":
        rows = slice(int(projection == "up"), None, 2)
    elif not is_down:
        rows = slice(0, shape[0]) if projection == "gate" else slice(shape[0], None)
    if kind == "bias":
        return ExpertPart(f"{source}_bias", int(number), (experts.number, height), rows)
    blocks = f"{source}_blocks"
    if blocks in stored:
        whole = (experts.number, height, -(-shape[1] // MXFP4_GROUP), MXFP4_GROUP // 2)
        return ExpertPart(blocks, int(number), whole, rows, scales=f"{source}_scales")
    if experts.order == "interleaved":
        return ExpertPart(source, int(number), (experts.number, shape[1], height), rows, is_transposed=True)
    return ExpertPart(source, int(number), (experts.number, height, shape[1]), rows)


def mxfp4_numbers(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return the numbers [rows, groups * 32] fp32 of blocks [rows, groups, 16] and scales [rows, groups], both uint8.

    A byte has two numbers, the lower half first; a scale is a power of two, with 127 for 1.
    """
    table = torch.tensor(_FOUR_BITS, device=blocks.device)
    pairs = torch.stack((blocks & 15, blocks >> 4), -1).to(torch.int64)
    factors = torch.ldexp(torch.ones_like(scales, dtype=torch.float32), scales.to(torch.int32) - 127)
    return (table[pairs].flatten(2) * factors[..., None]).flatten(1)
