"""An adapter's weights in memory: one buffer at its true ranks, and the layout of its matrices in it.

Knows nothing of files, slots, requests, or of how a step multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.transfers import Event

Group = tuple[str, ...]
GroupKey = tuple[int, Group]  # layer, group
ModuleKey = tuple[int, str]  # layer, projection

QKV: Group = ("q_proj", "k_proj", "v_proj")
OUT: Group = ("o_proj",)
GATE_UP: Group = ("gate_proj", "up_proj")
DOWN: Group = ("down_proj",)
GROUPS: tuple[Group, ...] = (QKV, OUT, GATE_UP, DOWN)  # projections of one group share their input

EXPERTS_GATE_UP: Group = ("experts.gate_proj", "experts.up_proj")
EXPERTS_DOWN: Group = ("experts.down_proj",)
EXPERT_GROUPS = (EXPERTS_GATE_UP, EXPERTS_DOWN)  # of which an adapter has a matrix for each expert

ALIGNED_ELEMENTS = 8
"""The number of elements at whose multiples each matrix begins: 16 bytes in 16 bits, which kernels read at once."""


def groups_of(config: ModelConfig) -> Sequence[Group]:
    """Return the groups of a model's projections."""
    if config.decoder != "own":
        return config.groups
    groups = GROUPS if config.experts is None or config.shared_size else GROUPS[:2]
    if config.experts is not None:
        groups = (*groups, *EXPERT_GROUPS)
    if config.shared_gate:
        groups = (*groups, (config.shared_gate,))
    if config.recurrence is not None:
        groups = (*groups, *config.recurrence.input_groups, (config.recurrence.output,))
    return groups


def shapes_of(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return (in_features, out_features) of each projection of the groups."""
    return config.projection_shapes() | config.expert_shapes()


class _Matrix(NamedTuple):
    """Elements [first, last) of a buffer: a matrix, or one for each of a number of experts, one after the other."""

    first: int
    rows: int
    columns: int
    num_experts: int | None = None

    @property
    def last(self) -> int:
        return self.first + (self.num_experts or 1) * self.rows * self.columns

    @property
    def next(self) -> int:
        """The place of the matrix after this one. Only where a projection has few outputs is there a gap."""
        return -(-self.last // ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS

    def view_of(self, buffers: Tensor) -> Tensor:
        """Return a view [..., rows, columns] of buffers [..., elements], or [..., experts, rows, columns]."""
        flat = buffers[..., self.first : self.last]
        experts = () if self.num_experts is None else (self.num_experts,)
        return flat.view(*buffers.shape[:-1], *experts, self.rows, self.columns)


class GroupWeights(NamedTuple):
    """One group of one layer, for one adapter or, with a leading axis, for a table of adapters.

    Groups of experts have an axis of experts before the last two.
    """

    projections: tuple[int, ...]
    """The adapted projections of the group, as positions in it."""
    a: Tensor
    """[sum(r), in]: the A's of the projections below each other."""
    bs: tuple[Tensor, ...]
    """The B's of the projections, transposed: [r, out]."""


class AdapterLayout:
    """The places of the matrices of adapters with equal ranks in a buffer: the A's of all groups, then all B's.

    ranks: {(layer, projection): r} of the adapted projections. targets: {projection: (in_features, out_features)}.
    groups: the groups of the model's projections; num_experts: the number of experts in groups that have a matrix for
    each. Layouts are equal only if they are the same object: their maker makes one for equal ranks.
    """

    def __init__(
        self,
        ranks: Mapping[ModuleKey, int],
        targets: Mapping[str, tuple[int, int]],
        groups: Sequence[Group] = GROUPS,
        num_experts: int = 0,
    ) -> None:
        adapted = {
            (layer, group): [p for p, name in enumerate(group) if (layer, name) in ranks]
            for layer in sorted({layer for layer, _ in ranks})
            for group in groups
        }
        self._groups: dict[GroupKey, tuple[tuple[int, ...], _Matrix, tuple[_Matrix, ...]]] = {}
        shrinks: dict[GroupKey, _Matrix] = {}
        end = 0
        for (layer, group), positions in adapted.items():
            rank = sum(ranks[layer, group[p]] for p in positions)
            if rank:
                each = num_experts if group in EXPERT_GROUPS else None
                shrinks[layer, group] = _Matrix(end, rank, targets[group[0]][0], each)
                end = shrinks[layer, group].next
        self.num_shrink_elements = end
        for (layer, group), a in shrinks.items():
            bs = []
            for p in adapted[layer, group]:
                bs.append(_Matrix(end, ranks[layer, group[p]], targets[group[p]][1], a.num_experts))
                end = bs[-1].next
            self._groups[layer, group] = (tuple(adapted[layer, group]), a, tuple(bs))
        self.num_elements = end
        self.num_ranks = sum(a.rows for _, a, _ in self._groups.values())
        self.without_experts: AdapterLayout = self
        """The layout of these adapters without their matrices of experts; this same layout if they have none."""
        if any(group in EXPERT_GROUPS for _, group in self._groups):
            of_experts = {name for group in EXPERT_GROUPS for name in group}
            rest = {key: rank for key, rank in ranks.items() if key[1] not in of_experts}
            self.without_experts = AdapterLayout(rest, targets, [each for each in groups if each not in EXPERT_GROUPS])

    def spans_of(self, layer: int) -> list[tuple[int, int]]:
        """Return the elements [first, last) of a buffer that hold one layer: those of its A's, and those of its B's."""
        mine = [(a, bs) for (of_layer, _), (_, a, bs) in self._groups.items() if of_layer == layer]
        if not mine:
            return []
        parts = [a for a, _ in mine], [b for _, bs in mine for b in bs]
        return [(part[0].first, part[-1].last) for part in parts]

    def scales_of(self, factors: Tensor) -> dict[GroupKey, Tensor]:
        """Return factors [G, num_ranks] as views [G, 1, sum(r)] of each group."""
        sizes = [a.rows for _, a, _ in self._groups.values()]
        return {key: part[:, None] for key, part in zip(self._groups, torch.split(factors, sizes, 1), strict=True)}

    def by_rank(self, scalings: Mapping[GroupKey, Sequence[float]]) -> Tensor:
        """Return an adapter's scalings, repeated for every rank of their projections: [num_ranks] fp32."""
        values = [scaling for key in self._groups for scaling in scalings[key]]
        counts = [b.rows for _, _, bs in self._groups.values() for b in bs]
        return torch.repeat_interleave(torch.tensor(values), torch.tensor(counts))

    def groups_of(self, buffers: Tensor) -> dict[GroupKey, GroupWeights]:
        """Return views of buffers [..., num_elements]: of one adapter, or of several below each other."""
        return {
            key: GroupWeights(positions, a.view_of(buffers), tuple(b.view_of(buffers) for b in bs))
            for key, (positions, a, bs) in self._groups.items()
        }


class LoadedAdapter(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """An adapter in memory. By default it adapts nothing, and num_bytes need not be true."""

    key: str
    """The key of the adapter's content (`adapters.ref`)."""
    scalings: dict[GroupKey, tuple[float, ...]]
    """{(layer, group): one scaling for each adapted projection}."""
    num_bytes: int
    """Bytes of memory that the weights take."""
    layout: AdapterLayout = AdapterLayout({}, {})
    """The places of the matrices in `weights`."""
    weights: Tensor = msgspec.field(default_factory=lambda: torch.empty(0))
    """The elements of all matrices, one after the other."""
    groups: dict[GroupKey, GroupWeights] = {}
    """Views of the weights."""
    arrivals: Sequence[Event] = ()
    """While the adapter is copied to a device, the event of each layer's weights; none once all weights are there."""
