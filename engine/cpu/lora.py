"""The adapters of one step on a CPU: the rows of the batch beside the rows of tables.

A batch without adapters has no `BatchedLora` and runs no LoRA operation. Knows nothing of requests, nor of how adapters
get into tables (`engine.cpu.tables`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from engine.lora.layer import EXPERT_GROUPS, Group, GroupKey, GroupWeights, LoadedAdapter
from kernels.activation import silu_mul
from kernels.cpu.decoder import dtype_number
from kernels.cpu.experts import EXPERT_FACTORS
from kernels.cpu.experts import add_expert_lora_ as add_native_expert_lora_
from kernels.cpu.library import installed
from kernels.expert_lora import ExpertFactors, ExpertSegments, add_expert_lora_, expert_segments
from kernels.experts import ExpertRows
from kernels.lora import Run, add_batched_lora_
from kernels.workspace import Workspace

FactorsOf = Callable[[LoadedAdapter], Mapping[GroupKey, NDArray[np.void]]]
"""A function that returns the addresses of an adapter's matrices of experts, for the native kernels."""


class Span(NamedTuple):
    """Rows [first, last) of a table."""

    first: int
    last: int
    take: Tensor | None
    """The rows of the batch that the span has, as in `kernels.lora.Run`."""


class TableBatch:
    """Rows of the adapters of one table, within a part of the batch.

    places, rows: as for `kernels.lora.add_batched_lora_`, in that part.
    groups, scales: the matrices and the scalings of the table. scratch: working memory in the table's dtype.
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
    ) -> None:
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


class ExpertAdapters:
    """The adapters of one step on experts, which are multiplied where they lie.

    segments: the rows of each adapter that targets experts. Hold this object until no thread of the native kernels
    reads the adapters any more (`lorikeet_wait_for_helpers`).
    """

    def __init__(self, segments: Sequence[Segment], factors_of: FactorsOf) -> None:
        self.adapters = list({segment.adapter.key: segment.adapter for segment in segments}.values())
        self._factors_of = factors_of
        self._factors: dict[GroupKey, NDArray[np.void] | None] = {}
        numbers = {adapter.key: number for number, adapter in enumerate(self.adapters)}
        self._of_tokens = torch.full((max(segment.last for segment in segments),), -1)
        for segment in segments:
            self._of_tokens[segment.first : segment.last] = numbers[segment.adapter.key]
        self._segments: tuple[ExpertRows, ExpertSegments] | None = None

    def add_(self, key: GroupKey, x: Tensor, out: Tensor, rows: ExpertRows, sizes: Sequence[int]) -> None:
        """Add the products of a group of experts in place: x [M, in], out [M, sum(sizes)], M rows by expert."""
        num_tokens = len(rows.places)
        if len(self._of_tokens) < num_tokens:  # of the base model, behind all others
            self._of_tokens = pad(self._of_tokens, (0, num_tokens - len(self._of_tokens)), value=-1)
        of_tokens = self._of_tokens[:num_tokens]
        library = installed()
        if library is None or out.dtype == torch.float16:
            self._add_slowly(key, x, out, self._segments_of(rows, of_tokens), sizes)
            return
        try:
            factors = self._factors[key]
        except KeyError:
            found = np.stack([self._factors_of(adapter)[key] for adapter in self.adapters])
            factors = self._factors[key] = found if found["ranks"].any() else None
        if factors is not None:
            add_native_expert_lora_(library, out, sizes, x, rows, of_tokens, factors)

    def _add_slowly(
        self, key: GroupKey, x: Tensor, out: Tensor, segments: ExpertSegments, sizes: Sequence[int]
    ) -> None:
        factors = [
            ExpertFactors(*adapter.groups[key], adapter.scalings[key]) if key in adapter.groups else None
            for adapter in self.adapters
        ]
        add_expert_lora_(torch.split(out, list(sizes), -1), x, segments, factors)

    def _segments_of(self, rows: ExpertRows, of_tokens: Tensor) -> ExpertSegments:
        """Return the segments of a layer's rows, made once for the layer."""
        if self._segments is None or self._segments[0] is not rows:
            self._segments = rows, expert_segments(rows, of_tokens.index_select(0, rows.tokens))
        return self._segments[1]


class BatchedLora:
    """The adapters of one step, or of several steps whose rows use the same ones (`engine.models.decoder.StepLora`).

    batches: the batch of each table. experts: None if no adapter of the step targets experts.
    """

    def __init__(self, batches: Sequence[TableBatch], experts: ExpertAdapters | None = None) -> None:
        self.batches = batches
        self.experts = experts

    def begin(self, layer: int, group: Group, x: Tensor) -> BatchedDelta:
        """Return the delta of x [N, in] to a group's product; nothing is computed before the delta is added."""
        return BatchedDelta(self.batches, (layer, group), x)

    def begin_experts(self, layer: int, group: Group, x: Tensor, rows: ExpertRows) -> ExpertsDelta:
        """Return the delta of rows of experts x [M, in]; nothing is computed before the delta is added."""
        return ExpertsDelta(self.experts, (layer, group), x, rows)


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

    experts: ExpertAdapters | None
    key: GroupKey
    x: Tensor
    rows: ExpertRows

    def add_(self, out: Tensor, sizes: Sequence[int]) -> None:
        """Add the deltas of all batches of rows to the experts' out [M, sum(sizes)] in place."""
        if self.experts is not None:
            self.experts.add_(self.key, self.x, out, self.rows, sizes)


def expert_factors_of(adapter: LoadedAdapter) -> dict[GroupKey, NDArray[np.void]]:
    """Return the addresses of an adapter's matrices of experts, by layer and group; none for a group without any.

    Raises ValueError: for matrices in a dtype that the native kernels do not compute in.
    """
    found: dict[GroupKey, NDArray[np.void]] = defaultdict(lambda: _NO_FACTORS)
    for key, weights in adapter.groups.items():
        if key[1] in EXPERT_GROUPS:
            made = _NO_FACTORS.copy()
            made["a"], made["dtype"] = weights.a.data_ptr(), dtype_number(weights.a.dtype)
            for p, b, scaling in zip(weights.projections, weights.bs, adapter.scalings[key], strict=True):
                made["bs"][p], made["ranks"][p], made["scalings"][p] = b.data_ptr(), b.shape[1], scaling
            found[key] = made
    return found


_NO_FACTORS: NDArray[np.void] = np.zeros((), dtype=EXPERT_FACTORS)
