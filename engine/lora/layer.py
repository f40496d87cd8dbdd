"""An adapter's weights in memory, and the adapters of one step: which rows of the batch use which.

An adapter is one buffer at its true ranks. Its layout says where each matrix lies; adapters of equal layouts can be
multiplied in one batch (`engine.lora.table`). A batch without adapters has no `StepLora` and runs no LoRA
operation. Knows nothing of files, slots or requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from kernels.lora import Run, add_batched_lora_
from kernels.workspace import Workspace

Group = tuple[str, ...]
GroupKey = tuple[int, Group]  # layer, group
ModuleKey = tuple[int, str]  # layer, projection

QKV: Group = ("q_proj", "k_proj", "v_proj")
OUT: Group = ("o_proj",)
GATE_UP: Group = ("gate_proj", "up_proj")
DOWN: Group = ("down_proj",)
GROUPS = (QKV, OUT, GATE_UP, DOWN)  # projections of one group share their input


class _Matrix(NamedTuple):
    """Elements [first, first + rows * columns) of a buffer."""

    first: int
    rows: int
    columns: int

    def of(self, buffers: Tensor) -> Tensor:
        """buffers [..., E] -> view [..., rows, columns]."""
        flat = buffers[..., self.first : self.first + self.rows * self.columns]
        return flat.view(*buffers.shape[:-1], self.rows, self.columns)


class GroupWeights(NamedTuple):
    """One group of one layer, for one adapter or, with a leading axis, for a table of them.

    projections: which of the group's are adapted, as positions in it; a [sum(r), in]: their A's below each other;
    bs: their B's, transposed: [r, out].
    """

    projections: tuple[int, ...]
    a: Tensor
    bs: tuple[Tensor, ...]


class AdapterLayout:
    """Where the matrices of adapters with equal ranks lie in a buffer: the A's of all groups, then all B's.

    ranks: {(layer, projection): r} of what is adapted; targets: {projection: (in_features, out_features)}. Layouts are
    equal only if they are the same object: whoever makes them makes one for equal ranks.
    """

    def __init__(self, ranks: Mapping[ModuleKey, int], targets: Mapping[str, tuple[int, int]]) -> None:
        adapted = {
            (layer, group): [p for p, name in enumerate(group) if (layer, name) in ranks]
            for layer in sorted({layer for layer, _ in ranks})
            for group in GROUPS
        }
        self._groups: dict[GroupKey, tuple[tuple[int, ...], _Matrix, tuple[_Matrix, ...]]] = {}
        shrinks: dict[GroupKey, _Matrix] = {}
        end = 0
        for (layer, group), positions in adapted.items():
            rank = sum(ranks[layer, group[p]] for p in positions)
            if rank:
                shrinks[layer, group] = _Matrix(end, rank, targets[group[0]][0])
                end += rank * targets[group[0]][0]
        self.num_shrink_elements = end
        for (layer, group), a in shrinks.items():
            bs = []
            for p in adapted[layer, group]:
                bs.append(_Matrix(end, ranks[layer, group[p]], targets[group[p]][1]))
                end += bs[-1].rows * bs[-1].columns
            self._groups[layer, group] = (tuple(adapted[layer, group]), a, tuple(bs))
        self.num_elements = end
        self.num_ranks = sum(a.rows for _, a, _ in self._groups.values())

    def scales_of(self, factors: Tensor) -> dict[GroupKey, Tensor]:
        """factors [G, num_ranks] -> [G, 1, sum(r)] of each group, views."""
        sizes = [a.rows for _, a, _ in self._groups.values()]
        return {key: part[:, None] for key, part in zip(self._groups, torch.split(factors, sizes, 1), strict=True)}

    def by_rank(self, scalings: Mapping[GroupKey, Sequence[float]]) -> Tensor:
        """An adapter's scalings, repeated for every rank of their projections: [num_ranks] fp32."""
        values = [scaling for key in self._groups for scaling in scalings[key]]
        counts = [b.rows for _, _, bs in self._groups.values() for b in bs]
        return torch.repeat_interleave(torch.tensor(values), torch.tensor(counts))

    def groups_of(self, buffers: Tensor) -> dict[GroupKey, GroupWeights]:
        """Views of buffers [..., num_elements]: of one adapter, or of several below each other."""
        return {
            key: GroupWeights(positions, a.of(buffers), tuple(b.of(buffers) for b in bs))
            for key, (positions, a, bs) in self._groups.items()
        }


class LoadedAdapter(msgspec.Struct, frozen=True, eq=False):
    """An adapter in memory. scalings: {(layer, group): one per adapted projection}; groups: views of weights.

    By default it adapts nothing, and its bytes are what they are said to be.
    """

    digest: str
    scalings: dict[GroupKey, tuple[float, ...]]
    num_bytes: int
    layout: AdapterLayout = AdapterLayout({}, {})
    weights: Tensor = msgspec.field(default_factory=lambda: torch.empty(0))
    groups: dict[GroupKey, GroupWeights] = {}


class Span(NamedTuple):
    """Rows [first, last) of a table; take as in `kernels.lora.Run`."""

    first: int
    last: int
    take: Tensor | None


class TableBatch:
    """Rows of the adapters of one table, within a part of the batch; places and rows of that part as in
    `kernels.lora.add_batched_lora_`. groups and scales: of the table, scratch: of its dtype."""

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
        """Of the products."""
        return self._scratch.dtype

    def add_(self, key: GroupKey, x: Tensor, out: Tensor, sizes: Sequence[int]) -> None:
        """See `StepLora.add_`."""
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
        """Views cost as much as small products: they are made once for all steps that use this batch."""
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


class StepLora:
    """The adapters of one step, or of several steps whose rows use the same ones."""

    def __init__(self, batches: Sequence[TableBatch]) -> None:
        self.batches = batches

    def add_(self, layer: int, group: Group, x: Tensor, out: Tensor, sizes: Sequence[int]) -> None:
        """Add every row's delta: x [N, in], out [N, sum(sizes)] in place, sizes the group's outputs side by side."""
        for batch in self.batches:
            batch.add_((layer, group), x, out, sizes)
