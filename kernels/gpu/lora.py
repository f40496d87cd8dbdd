"""Low-rank adapters (Hu et al., 2021) of many requests in one batch, on a GPU (Chen et al., 2023: Punica).

Semantics, for row n with an adapter in slot s and each projection p of a group that shares the input x:
    out[n, columns of p] += scaling[p, s] * (x[n] @ A[p, s]^T) @ B[p, s]      A [r, in], B [r, out], r = rank[p, s]
    added in fp32 and rounded once; rows without an adapter, and projections of rank 0, are left as they are

Two launches for a group: shrink (x @ A^T) sums every fixed stretch of `in` in fp32; expand adds these sums in their
order, multiplies with B and adds to out. There are no atomics, and no sum's order depends on who else is in the batch:
the bits of a row's delta are those of the row and its adapter, and of whether its chunk is one of one or two rows,
which the batch's number of rows decides (`kernels.gpu.tuning.lora_block_m`). Only true ranks are read: an adapter costs
its bytes. The gate and up projections' expand does the gated activation as well (`kernels.gpu.activation`), for all
rows: their output, the widest of a layer, is then read once and never written. Weights are found through tables of
addresses; where they lie is the caller's affair. The programs are in `kernels.gpu.lora_kernels` and
`lora_pairs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.gpu.launch import Arguments, Launch, blocks_of, check_workspace, dot_precision
from kernels.gpu.lora_kernels import activate_kernel, expand_kernel, resolve_kernel, shrink_kernel
from kernels.gpu.lora_pairs import activate_rows_kernel, expand_rows_kernel
from kernels.gpu.tuning import (
    ExpandBlocks,
    ShrinkBlocks,
    ShrinkSums,
    activate_blocks,
    expand_blocks,
    lora_block_m,
    shrink_blocks,
    shrink_sums,
)
from kernels.gpu.work_list import WorkList

MAX_PROJECTIONS = 3  # of a group
PAIR = 2  # rows of a chunk that is expanded without matrix units
MIN_ROWS = 16  # of a factor of tl.dot
EXPAND_BLOCK_R = 16  # fixed, since it shapes a sum
ENOUGH_PROGRAMS = 256  # to fill a large GPU
RESOLVE_BLOCK = 64  # chunks
TABLE_DTYPES = (torch.int64, torch.int64, torch.int32, torch.float32)  # of `SlotTable`


class SlotTable(NamedTuple):
    """The adapters in all slots, by layer and projection: [L, P, S]."""

    a: Tensor
    """int64, device addresses of A [rank, in]: contiguous, in the dtype of the inputs, at multiples of 16 bytes."""
    b: Tensor
    """int64, device addresses of B, transposed, [rank, out], like those of A."""
    ranks: Tensor
    """int32, 0 where a slot adapts nothing (addresses are not read then)."""
    scalings: Tensor
    """fp32, the factor of each slot's deltas by layer and projection."""

    @classmethod
    def empty(cls, num_layers: int, num_projections: int, num_slots: int, device: torch.device) -> SlotTable:
        """Return a table of adapters in which no slot has one."""
        shape = (num_layers, num_projections, num_slots)
        return cls(*(torch.zeros(shape, dtype=dtype, device=device) for dtype in TABLE_DTYPES))

    def of_chunks(self, work: WorkList) -> ChunkTable:
        """Return the fields of the step's chunks, looked up once for all layers."""
        num_layers, num_projections, _ = self.ranks.shape
        table = ChunkTable.empty(num_layers, num_projections, len(work.chunks), self.ranks.device)
        resolve_launch(table, self, work).run()
        return table


class ChunkTable(NamedTuple):
    """The fields of `SlotTable` by the chunks of a work list: [L, P, C], or [P, C] for a group of one layer."""

    a: Tensor
    b: Tensor
    ranks: Tensor
    scalings: Tensor

    @classmethod
    def empty(cls, num_layers: int, num_projections: int, num_chunks: int, device: torch.device) -> ChunkTable:
        """Return a table whose memory is allocated and not initialized."""
        shape = (num_layers, num_projections, num_chunks)
        return cls(*(torch.empty(shape, dtype=dtype, device=device) for dtype in TABLE_DTYPES))

    def group(self, layer: int, first: int, last: int) -> ChunkTable:
        """Return views of the projections [first, last) of one layer."""
        return ChunkTable(*(tensor[layer, first:last] for tensor in self))


def resolve_launch(table: ChunkTable, slots: SlotTable, work: WorkList) -> Launch:
    """Return the launch of `SlotTable.of_chunks`."""
    num_layers, num_projections, num_slots = slots.ranks.shape
    arguments: Arguments = {
        **table._asdict(),
        "a_table": slots.a,
        "b_table": slots.b,
        "rank_table": slots.ranks,
        "scaling_table": slots.scalings,
        "chunks": work.chunks,
        "num_slots": num_slots,
        "num_chunks": len(work.chunks),
        "BLOCK": RESOLVE_BLOCK,
    }
    return Launch(resolve_kernel, (num_layers * num_projections,), arguments, num_warps=2)


def lora_reference(
    out: Tensor,
    x: Tensor,
    adapters: Sequence[Sequence[tuple[Tensor, Tensor, float] | None]],
    sizes: Sequence[int],
    slots: Sequence[int],
) -> Tensor:
    """Return the new out [N, sum(sizes)], by the definition, in fp32.

    adapters[s][p]: (A [r, in], B [r, out], scaling) of slot s for projection p, or None.
    """
    rows = []
    for n, slot in enumerate(slots):
        of_row = [None] * len(sizes) if slot < 0 else adapters[slot]
        deltas = []
        for size, matrices in zip(sizes, of_row, strict=True):
            a, b, scaling = matrices or (x.new_zeros(1, x.shape[1]), x.new_zeros(1, size), 0.0)
            deltas.append(scaling * (x[n].float() @ a.float().T) @ b.float())
        rows.append(out[n].float() + torch.cat(deltas))
    return torch.stack(rows).to(out.dtype)


def workspace_elements(
    num_rows: int, in_features: int, num_projections: int, max_rank: int, dtype: torch.dtype, device: torch.device
) -> int:
    """Return the most fp32 elements that the sums of a `Shrink` need."""
    num_splits = blocks_of(in_features, shrink_sums(in_features, dtype, device).split_length)
    return num_splits * num_projections * num_rows * max_rank


class Shrink(NamedTuple):
    """The product of x [N, in] and the A's of one group of projections, table [P, C]."""

    x: Tensor
    table: ChunkTable
    max_rank: int
    work: WorkList
    workspace: Tensor
    sums: ShrinkSums
    """The split of x's width."""
    all_at_once: bool
    """True: one program sums all splits, which changes no bit."""

    @classmethod
    def of(
        cls,
        x: Tensor,
        table: ChunkTable,
        max_rank: int,
        work: WorkList,
        workspace: Tensor,
        sums: ShrinkSums | None = None,
        all_at_once: bool | None = None,
    ) -> Shrink:
        """Make a shrink of x for one group of projections.

        x [N, in], elements of a row contiguous (bf16, fp16 or fp32); table: [P, C], P <= 3, of work's chunks; max_rank:
        no rank of the engine is larger; work: the work list of the N rows; workspace: fp32, at least
        `workspace_elements`, with any contents. sums, all_at_once: values to use instead of the device's own.

        Raises ValueError: when the workspace is too small or not of fp32.
        """
        num_rows, in_features = x.shape
        sums = sums or shrink_sums(in_features, x.dtype, x.device)
        if all_at_once is None:  # where there are programs enough without splits: their sums never leave registers
            all_at_once = num_rows // lora_block_m(num_rows) * len(table.ranks) >= ENOUGH_PROGRAMS
        shrink = cls(x, table, max_rank, work, workspace, sums, all_at_once)
        check_workspace(workspace, shrink.num_parts * len(table.ranks) * num_rows * max_rank)
        return shrink

    @property
    def num_parts(self) -> int:
        """The number of sums of each row that expand adds."""
        return 1 if self.all_at_once else self._num_splits

    @property
    def _num_splits(self) -> int:
        return blocks_of(self.x.shape[1], self.sums.split_length)

    def launch(self, blocks: ShrinkBlocks | None = None) -> Launch:
        """Return the launch of this shrink. blocks: sizes of blocks other than the device's."""
        in_features = self.x.shape[1]
        blocks = blocks or shrink_blocks(in_features, self.work.block_m, self.x.dtype, self.x.device)
        arguments: Arguments = {
            **self._common_arguments(),
            "x": self.x,
            "x_stride": self.x.stride(0),
            "a_table": self.table.a,
            "in_features": in_features,
            "BLOCK_M": max(self.work.block_m, MIN_ROWS),
            "SPLIT_LENGTH": self.sums.split_length,
            "SPLITS_AT_ONCE": self._num_splits if self.all_at_once else 1,
            "BLOCK_K": self.sums.block_k,
            "BLOCK_R": blocks.block_r,
            "PRECISION": dot_precision(self.x.dtype),
        }
        grid = len(self.work.chunks), self.num_parts, len(self.table.ranks)
        return Launch(shrink_kernel, grid, arguments, blocks.num_warps, blocks.num_stages)

    def expand_arguments(self, blocks: ExpandBlocks) -> Arguments:
        """Return the arguments of the expand after this shrink, without or with the activation.

        The arguments for chunks of one or two rows differ from those for more.
        """
        arguments: Arguments = {
            **self._common_arguments(),
            "b_table": self.table.b,
            "scaling_table": self.table.scalings,
            "NUM_PARTS": self.num_parts,
            "BLOCK_R": EXPAND_BLOCK_R,
            "BLOCK_N": blocks.block_n,
            "STAGES": blocks.num_stages,
        }
        if self.in_pairs:
            return arguments
        # fp16's B is exact in TF32; the shrink's sums could overflow in fp16, not in bf16.
        precision = {torch.float32: "ieee", torch.float16: "tf32x3"}.get(self.x.dtype, "bf16x2")
        return {**arguments, "BLOCK_M": self.work.block_m, "TILES": blocks.tiles, "PRECISION": precision}

    @property
    def in_pairs(self) -> bool:
        """True where rows are expanded in pairs, without matrix units."""
        return self.work.block_m == PAIR

    def _common_arguments(self) -> Arguments:
        return {
            "rows": self.work.rows,
            "chunks": self.work.chunks,
            "rank_table": self.table.ranks,
            "partials": self.workspace,
            "num_rows": len(self.x),
            "MAX_RANK": self.max_rank,
        }


def expand_launch(out: Tensor, sizes: Sequence[int], shrink: Shrink, blocks: ExpandBlocks | None = None) -> Launch:
    """Return the launch of `expand_`. blocks: sizes of blocks other than the device's."""
    blocks = blocks or expand_blocks(sum(sizes), shrink.work.block_m, out.dtype, out.device)
    arguments: Arguments = {
        **shrink.expand_arguments(blocks),
        "out": out,
        "out_stride": out.stride(0),
        **{f"SIZE_{p}": sizes[p] if p < len(sizes) else 0 for p in range(MAX_PROJECTIONS)},
        "NUM_PROJECTIONS": len(sizes),
    }
    kernel = expand_rows_kernel if shrink.in_pairs else expand_kernel
    width = blocks.block_n * (1 if shrink.in_pairs else blocks.tiles)
    stretches = sum(blocks_of(size, width) for size in sizes)
    return Launch(kernel, (len(shrink.work.chunks), stretches), arguments, blocks.num_warps, blocks.num_stages)


def activate_launch(out: Tensor, gate_up: Tensor, shrink: Shrink, blocks: ExpandBlocks | None = None) -> Launch:
    """Return the launch of `expand_and_silu_mul`. blocks: sizes of blocks other than the device's."""
    width = out.shape[1]
    blocks = blocks or activate_blocks(width, shrink.work.block_m, out.dtype, out.device)
    arguments: Arguments = {**shrink.expand_arguments(blocks), "out": out, "gate_up": gate_up, "WIDTH": width}
    kernel = activate_rows_kernel if shrink.in_pairs else activate_kernel
    grid = len(shrink.work.chunks), blocks_of(width, blocks.block_n * (1 if shrink.in_pairs else blocks.tiles))
    return Launch(kernel, grid, arguments, blocks.num_warps, blocks.num_stages)


def expand_(out: Tensor, sizes: Sequence[int], shrink: Shrink) -> None:
    """Add every row's deltas to out, in place, once the shrink has run.

    out [N, >= sum(sizes)], elements of a row contiguous, of x's dtype; sizes: the columns of each projection, side by
    side in out.
    """
    expand_launch(out, sizes, shrink).run()


def expand_and_silu_mul(gate_up: Tensor, shrink: Shrink) -> Tensor:
    """Return silu(gate) * up [N, I] of all rows of gate_up [N, 2I], contiguous, with the deltas of both halves added.

    The shrink must have run. The bits are those that `expand_` and `kernels.gpu.activation.silu_mul` give. gate_up
    stays as it is.
    """
    num_rows, width = gate_up.shape
    out = torch.empty(num_rows, width // 2, dtype=gate_up.dtype, device=gate_up.device)
    activate_launch(out, gate_up, shrink).run()
    return out
