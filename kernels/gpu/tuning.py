"""Sizes of the blocks that kernels work in: rules for any shape, and a table of what was measured to be better.

The table is `blocks.json`, which `python -m kernels.tune` rewrites on a GPU: {device: {kernel and shape: fields}}.
Nothing here depends on a batch's contents, and only LoRA's `block_m`, which leaves bits alone, on its size.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from kernels.gpu.launch import power_of_two

TABLE = Path(__file__).with_name("blocks.json")
Table = dict[str, dict[str, dict[str, int]]]


class ShrinkBlocks(NamedTuple):
    """split_length: of `in` for one program; block_k of it at a time; block_r ranks."""

    split_length: int
    block_k: int
    block_r: int
    num_warps: int
    num_stages: int


class ExpandBlocks(NamedTuple):
    """block_n columns of the output; block_r ranks at a time."""

    block_n: int
    block_r: int
    num_warps: int
    num_stages: int


class DecodeBlocks(NamedTuple):
    """split_length: positions of the context for one program; block_n of them at a time."""

    split_length: int
    block_n: int
    num_warps: int
    num_stages: int


class PrefillBlocks(NamedTuple):
    """block_m: rows of one program, a group's heads for each query; block_n positions at a time."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def device_name(device: torch.device) -> str:
    """The table's name for a device, as sm_90; anything that is not CUDA is computed by Triton's interpreter."""
    if device.type != "cuda":
        return "interpreter"
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def lora_block_m(num_rows: int) -> int:
    """Rows of a chunk. Both sizes multiply with the same instruction in the same order, so bits are the same."""
    return 16 if num_rows <= 512 else 32


def shrink_blocks(in_features: int, max_rank: int, dtype: torch.dtype, device: torch.device) -> ShrinkBlocks:
    block_r = min(max(16, power_of_two(max_rank)), 64)
    rule = ShrinkBlocks(1024, 128, block_r, num_warps=4, num_stages=2 if dtype == torch.float32 else 4)
    return rule._replace(**_measured(device, f"shrink in={in_features} rank={max_rank}"))


def expand_blocks(out_features: int, max_rank: int, dtype: torch.dtype, device: torch.device) -> ExpandBlocks:
    """out_features: of all projections of the launch together."""
    block_r = min(max(16, power_of_two(max_rank)), 32 if dtype == torch.float32 else 64)
    rule = ExpandBlocks(128, block_r, num_warps=4, num_stages=2)
    return rule._replace(**_measured(device, f"expand out={out_features} rank={max_rank}"))


def decode_blocks(head_dim: int, group: int, device: torch.device) -> DecodeBlocks:
    rule = DecodeBlocks(256, 64 if head_dim <= 128 else 32, num_warps=4, num_stages=2)
    return rule._replace(**_measured(device, f"decode head={head_dim} group={group}"))


def prefill_blocks(head_dim: int, group: int, dtype: torch.dtype, device: torch.device) -> PrefillBlocks:
    small = head_dim > 128 or dtype == torch.float32
    rule = PrefillBlocks(64 if small else 128, 32 if small else 64, num_warps=4 if small else 8, num_stages=2)
    return rule._replace(**_measured(device, f"prefill head={head_dim} group={group}"))


def _measured(device: torch.device, key: str) -> dict[str, int]:
    return _table().get(device_name(device), {}).get(key, {})


@cache
def _table() -> Table:
    table: Table = json.loads(TABLE.read_text())
    return table
