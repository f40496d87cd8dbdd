"""Sizes of the blocks that kernels work in: rules for any shape, and a table of sizes that were measured to be better.

The table is `blocks.json`, which `python -m kernels.tune` rewrites on a GPU: {device: {kernel, shape, dtype: fields}}.
Nothing here depends on a batch's contents. The sizes that shape a sum (`ShrinkSums`, the splits of decodes) do not
depend on the batch's size either, but for `lora_block_m`: chunks of pairs of rows are summed in an order of their own.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

TABLE = Path(__file__).with_name("blocks.json")
Table = dict[str, dict[str, dict[str, int]]]


class ShrinkSums(NamedTuple):
    """The order in which the products of a row are added."""

    split_length: int
    """The number of inputs that one program sums."""
    block_k: int
    """The number of inputs that a program reads at a time."""


class ShrinkBlocks(NamedTuple):
    """Block sizes and launch settings of a shrink."""

    block_r: int
    """Ranks at a time."""
    num_warps: int
    num_stages: int


class ExpandBlocks(NamedTuple):
    """Block sizes and launch settings of an expand."""

    block_n: int
    """Columns of the output at a time."""
    tiles: int
    """Blocks of columns that one program computes."""
    num_warps: int
    num_stages: int


class DecodeBlocks(NamedTuple):
    """Block sizes and launch settings of decode attention."""

    split_length: int
    """Positions of the context for one program."""
    block_n: int
    """Positions at a time."""
    num_warps: int
    num_stages: int


class PrefillBlocks(NamedTuple):
    """Block sizes and launch settings of prefill attention."""

    block_m: int
    """Rows of one program, a group's heads for each query."""
    block_n: int
    """Positions at a time."""
    num_warps: int
    num_stages: int


class GroupedBlocks(NamedTuple):
    """Block sizes and launch settings of a grouped product of experts."""

    block_n: int
    """Columns of the output of one program."""
    block_k: int
    """Numbers of `in` at a time."""
    num_warps: int
    num_stages: int


def device_name(device: torch.device) -> str:
    """Return the table's name for a device, as sm_90.

    On a CPU it is Triton's interpreter that computes; tensors that exist in shape only stand for those of an H100.
    """
    if device.type != "cuda":
        return "sm_90" if device.type == "meta" else "interpreter"
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def shrink_sums_key(in_features: int, dtype: torch.dtype) -> str:
    """Return the key of `shrink_sums` in the table of measured sizes."""
    return f"shrink in={in_features} {_name(dtype)}"


def shrink_key(in_features: int, block_m: int, dtype: torch.dtype) -> str:
    """Return the key of `shrink_blocks` in the table of measured sizes."""
    return f"shrink in={in_features} rows={block_m} {_name(dtype)}"


def expand_key(out_features: int, block_m: int, dtype: torch.dtype) -> str:
    """Return the key of the blocks of an expand in the table of measured sizes."""
    return f"expand out={out_features} rows={block_m} {_name(dtype)}"


def activate_key(width: int, block_m: int, dtype: torch.dtype) -> str:
    """Return the key of the blocks of an expand that activates in the table of measured sizes."""
    return f"activate out={width} rows={block_m} {_name(dtype)}"


def decode_key(head_dim: int, group: int, dtype: torch.dtype) -> str:
    """Return the key of `decode_blocks` in the table of measured sizes.

    group: the query heads that share a head of keys and values.
    """
    return f"decode head={head_dim} group={group} {_name(dtype)}"


def prefill_key(head_dim: int, group: int, dtype: torch.dtype) -> str:
    """Return the key of `prefill_blocks` in the table of measured sizes.

    group: the query heads that share a head of keys and values.
    """
    return f"prefill head={head_dim} group={group} {_name(dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def lora_block_m(num_rows: int) -> int:
    """Return the number of rows of a chunk.

    The number is 2 for a batch of few rows, where each adapter has few of them: what a chunk reads again of the
    weights comes from the L2 cache. Chunks of 16 and of 32 rows give the same bits: the
    same instructions multiply them in the same order.
    """
    return 2 if num_rows <= 128 else 16 if num_rows <= 512 else 32


def shrink_sums(in_features: int, dtype: torch.dtype, device: torch.device) -> ShrinkSums:
    """Return the sizes in which a shrink is divided into partial sums over its inputs."""
    return ShrinkSums(1024, 256 // dtype.itemsize)._replace(
        **_measured_blocks(device, shrink_sums_key(in_features, dtype))
    )


def shrink_blocks(in_features: int, block_m: int, dtype: torch.dtype, device: torch.device) -> ShrinkBlocks:
    """Return the blocks of a shrink, with the values that were measured to be better than the rule's."""
    rule = ShrinkBlocks(max(block_m, 16), num_warps=4, num_stages=2 if dtype == torch.float32 else 4)
    return rule._replace(**_measured_blocks(device, shrink_key(in_features, block_m, dtype)))


def expand_blocks(out_features: int, block_m: int, dtype: torch.dtype, device: torch.device) -> ExpandBlocks:
    """Return the blocks of an expand. out_features: the outputs of all projections of the group together."""
    rule = ExpandBlocks(256, 1, 1, 1) if block_m == 2 else ExpandBlocks(128, 4, num_warps=4, num_stages=2)
    if out_features < 16:  # the factor of a shared expert: wider tiles would be padding, which takes registers
        rule = rule._replace(block_n=16, tiles=1)
    return rule._replace(**_measured_blocks(device, expand_key(out_features, block_m, dtype)))


def activate_blocks(width: int, block_m: int, dtype: torch.dtype, device: torch.device) -> ExpandBlocks:
    """Return the blocks of an expand that is followed by the gated activation.

    width: the size of the activation's result.
    """
    rule = ExpandBlocks(256, 1, 1, 1) if block_m == 2 else ExpandBlocks(64, 4, num_warps=4, num_stages=2)
    return rule._replace(**_measured_blocks(device, activate_key(width, block_m, dtype)))


def decode_blocks(head_dim: int, group: int, dtype: torch.dtype, device: torch.device) -> DecodeBlocks:
    """Return the blocks of attention of decodes, with the values that were measured to be better than the rule's.

    group: the query heads that share a head of keys and values.
    """
    rule = DecodeBlocks(256, 64 if head_dim <= 128 else 32, num_warps=4, num_stages=2)
    return rule._replace(**_measured_blocks(device, decode_key(head_dim, group, dtype)))


def grouped_key(in_features: int, block_m: int, dtype: torch.dtype) -> str:
    """Return the key of a grouped product's blocks in the table of measured sizes."""
    return f"grouped in={in_features} rows={block_m} {_name(dtype)}"


def expert_block_m(num_rows: int, num_experts: int) -> int:
    """Return the number of rows of one expert that are multiplied together.

    num_rows: the rows of all experts together. If each expert has few rows, the number is the least that matrix
    units take.
    """
    return 16 if num_rows <= 32 * num_experts else 64


def grouped_blocks(in_features: int, block_m: int, dtype: torch.dtype, device: torch.device) -> GroupedBlocks:
    """Return the blocks of a grouped product. block_k is the same for all numbers of rows, since it shapes a sum."""
    block_n, num_warps = (64, 4) if block_m == 16 else (128, 8)
    rule = GroupedBlocks(block_n, 128 // dtype.itemsize, num_warps, num_stages=3 if dtype == torch.float32 else 4)
    return rule._replace(**_measured_blocks(device, grouped_key(in_features, block_m, dtype)))


def split_programs(num_groups: int) -> int:
    """Return the most programs that share a context of one of num_groups sequences and KV heads.

    They are few enough that the programs which find no split of a short context cost little, and enough that one long
    context fills a large GPU.
    """
    return max(16, 1024 // max(num_groups, 1))


def prefill_blocks(head_dim: int, group: int, dtype: torch.dtype, device: torch.device) -> PrefillBlocks:
    """Return the blocks of attention of prompts, with the values that were measured to be better than the rule's.

    group: the query heads that share a head of keys and values.
    """
    small = head_dim > 128 or dtype == torch.float32
    rule = PrefillBlocks(64 if small else 128, 32 if small else 64, num_warps=4 if small else 8, num_stages=2)
    return rule._replace(**_measured_blocks(device, prefill_key(head_dim, group, dtype)))


def queries_at_once(head_dim: int, group: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the number of queries of a tile in prefill attention, each with the heads of one group."""
    return prefill_blocks(head_dim, group, dtype, device).block_m // group


def _measured_blocks(device: torch.device, key: str) -> dict[str, int]:
    return _table().get(device_name(device), {}).get(key, {})


@cache
def _table() -> Table:
    table: Table = json.loads(TABLE.read_text())
    return table
