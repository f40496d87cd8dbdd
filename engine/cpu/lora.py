"""The adapters of one step on a CPU: the rows of the batch beside the rows of tables.

A batch without adapters has no `BatchedLora` and runs no LoRA operation. Knows nothing of requests, nor of how adapters
get into tables (`engine.cpu.tables`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from engine.lora.layer import Group, GroupKey, GroupWeights, LoadedAdapter
from kernels.activation import silu_mul
from kernels.expert_lora import ExpertSegments, add_expert_lora_, expert_segments
from kernels.experts import ExpertRows
from kernels.lora import Run, add_batched_lora_
from kernels.workspace import Workspace


class Span(NamedTuple):
    """Rows [first, last) of a table; take as in `kernels.lora.Run`."""

    first: int
    last: int
    take: Tensor | None


class TableBatch:
    """Rows of the adapters of one table, within a part of the batch.

    places, rows: as for `kernels.lora.add_batched_lora_`, in that part.
    table_rows: [rows of that part] int64, the row of the table that each uses; -1: none.
    groups, scales: those of the table. scratch: memory of its dtype.
    """

    def __init__(
        self,
        groups: Mapping[GroupKey, GroupWeights],
        scales: Mapping[GroupKey, Tensor],
        scratch: Workspace,
        part: slice,
        spans: Sequence[Span],
        places: Tensor | None,
        rows: Tensor | None,
        table_rows: Tensor,
    ) -> None:
        self.table_rows = table_rows
        self._segments: tuple[ExpertRows, ExpertSegments] | None = None
        self.spans, self.places, self.rows = spans, places, rows
        self._groups = groups
        self._scales = scales
        self._scratch = scratch
        self._part = part
        self._runs: dict[GroupKey, tuple[tuple[int, ...], list[Run]] | None] = {}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the LoRA products."""
        return self._scratch.dtype

    def add_(self, key: GroupKey, x: Tensor, out: Tensor, sizes: Sequence[int]) -> None:
        """Add a group's products in place, as `BatchedDelta.add_` says."""
        try:
            of_group = self._runs[key]
        except KeyError:
            of_group = self._runs[key] = self._runs_of(key)
        if of_group is None:
            return
        projections, runs = of_group
        x, out = x[self._part], out[self._part]
        outs = torch.split(out, list(sizes), -1) if len(sizes) > 1 else (out,)
        adapted = outs if len(projections) == len(outs) else [outs[p] for p in projections]
        add_batched_lora_(adapted, x, runs, self.places, self.rows, self._scratch)

    def add_experts_(self, key: GroupKey, x: Tensor, out: Tensor, rows: ExpertRows, sizes: Sequence[int]) -> None:
        """Add the products of a group of experts in place: x [M, in], out [M, sum(sizes)], M rows by expert."""
        weights = self._groups.get(key)
        if weights is None:
            return
        outs = torch.split(out, list(sizes), -1)
        add_expert_lora_(
            [outs[p] for p in weights.projections],
            x,
            self._segments_of(rows),
            weights.a,
            weights.bs,
            self._scales.get(key),
        )

    def _segments_of(self, rows: ExpertRows) -> ExpertSegments:
        """Return the segments of a layer's rows, made once for the layer."""
        if self._segments is not None and self._segments[0] is rows:
            return self._segments[1]
        places = rows.tokens - self._part.start
        is_inside = (places >= 0) & (places < len(self.table_rows))
        found = self.table_rows.index_select(0, places.clamp(0, len(self.table_rows) - 1))
        segments = expert_segments(rows, torch.where(is_inside, found, -1))
        self._segments = rows, segments
        return segments

    def _runs_of(self, key: GroupKey) -> tuple[tuple[int, ...], list[Run]] | None:
        """Return a group's runs, None where no adapter has the group.

        Views cost as much as small products: they are made once for all steps that use this batch.
        """
        weights = self._groups.get(key)
        if weights is None:
            return None
        scale = self._scales.get(key)
        runs = [
            Run(take, weights.a[i:j], tuple(b[i:j] for b in weights.bs), None if scale is None else scale[i:j])
            for i, j, take in self.spans
        ]
        return weights.projections, runs


class Segment(msgspec.Struct, frozen=True):
    """Rows [first, last) of the batch that all use one adapter: a decode with its drafts, or a prefill chunk."""

    adapter: LoadedAdapter
    first: int
    last: int


class BatchedLora:
    """The adapters of one step, or of several steps whose rows use the same ones (`engine.models.decoder.StepLora`)."""

    def __init__(self, batches: Sequence[TableBatch]) -> None:
        self.batches = batches

    def begin(self, layer: int, group: Group, x: Tensor) -> BatchedDelta:
        """Return the delta of x [N, in] to a group's product; nothing is computed before the delta is added."""
        return BatchedDelta(self.batches, (layer, group), x)

    def begin_experts(self, layer: int, group: Group, x: Tensor, rows: ExpertRows) -> ExpertsDelta:
        """Return the delta of rows of experts x [M, in]; nothing is computed before the delta is added."""
        return ExpertsDelta(self.batches, (layer, group), x, rows)


class BatchedDelta(NamedTuple):
    """The deltas of one group of projections, computed when they are added (`engine.models.decoder.Delta`)."""

    batches: Sequence[TableBatch]
    key: GroupKey
    x: Tensor

    def add_(self, out: Tensor, sizes: Sequence[int]) -> None:
        """Add the deltas of all batches of rows to out [N, sum(sizes)] in place."""
        for batch in self.batches:
            batch.add_(self.key, self.x, out, sizes)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Add the deltas to gate and up [N, 2 * I] in place, and return the gated activation [N, I]."""
        self.add_(gate_up, (gate_up.shape[1] // 2,) * 2)
        return silu_mul(gate_up)


class ExpertsDelta(NamedTuple):
    """The deltas of one group of experts' projections, computed when they are added (`engine.models.decoder`)."""

    batches: Sequence[TableBatch]
    key: GroupKey
    x: Tensor
    rows: ExpertRows

    def add_(self, out: Tensor, sizes: Sequence[int]) -> None:
        """Add the deltas of all batches of rows to the experts' out [M, sum(sizes)] in place."""
        for batch in self.batches:
            batch.add_experts_(self.key, self.x, out, self.rows, sizes)
