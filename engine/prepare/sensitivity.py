"""Measures how far a model's predictions move when one of its matrices alone is rounded to FP8, for each of them.

All are measured by one batch: a short text is in it once as the model computes it, and once for each group of matrices
that share an input, with that group rounded. Groups stay whole, since engines that fuse them ask for one format.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.cpu.quality import differences
from engine.cpu.text import TextStates
from engine.models.weights import Product, StackedMatrices, plain_linear
from engine.prepare.calibration import hidden_of
from engine.prepare.compensation import rounded_rows
from kernels.linear import Linear

NUM_PIECES, PIECE_LENGTH = 4, 48
"""The pieces of text that each group is measured by, and the most tokens of each."""

GROUPS_OF_LAYER = ("q_proj", "o_proj", "gate_proj", "down_proj")
"""The first projection of each group of a layer."""


class Group(NamedTuple):
    """Matrices that share an input, and what rounding them costs."""

    names: tuple[str, ...]
    """The names of the matrices, as `model.layers.0.mlp.down_proj.weight`."""
    num_weights: int
    divergence_nats: float
    """The mean Kullback-Leibler divergence of the model's predictions to those with these matrices rounded."""


def groups_of(model_dir: Path, config: ModelConfig, pieces: Sequence[Sequence[int]]) -> list[Group]:
    """Return all groups of a dense model's matrices in the order of layers, measured by the beginning of some pieces.

    Raises UnsupportedModel: when the files of the weights are not those of a model that the engine computes.
    """
    number = min(NUM_PIECES, len(pieces))
    texts = [pieces[place * len(pieces) // number][:PIECE_LENGTH] for place in range(number)]
    following = torch.tensor([token for text in texts for token in text])
    num_tokens, num_groups = len(following), len(GROUPS_OF_LAYER) * config.num_layers
    found: dict[int, StackedMatrices] = {}

    def rows_of(group: int) -> slice:
        return slice((group + 1) * num_tokens, (group + 2) * num_tokens)

    def linear(matrices: StackedMatrices, bias: Tensor | None) -> Product:
        words = matrices.names[0].split(".")
        if words[:2] != ["model", "layers"]:
            return plain_linear(matrices, bias)
        group = len(GROUPS_OF_LAYER) * int(words[2]) + GROUPS_OF_LAYER.index(words[-2])
        found[group] = matrices
        return _RoundedInPart(matrices, bias, rows_of(group))

    with torch.inference_mode():
        decoder, hidden = hidden_of(model_dir, config, texts * (num_groups + 1), linear, "measured by the text:")
        plain = TextStates(decoder, hidden[:num_tokens])
        return [
            Group(
                matrices.names,
                sum(height * width for height, width in matrices.shapes),
                differences(plain, TextStates(decoder, hidden[rows_of(group)]), following[1:])[0],
            )
            for group, matrices in sorted(found.items())
        ]


class _RoundedInPart:
    """A product with matrices, which are rounded for some rows of its input alone."""

    def __init__(self, matrices: StackedMatrices, bias: Tensor | None, rows: slice) -> None:
        weight = matrices.tensor
        self._plain, self._rows = Linear(weight, bias), rows
        self._rounded = Linear(rounded_rows(weight, None).float(), bias)
        matrices.__dict__.pop("tensor")  # the group's name and shape are wanted later, and not its numbers

    def __call__(self, x: Tensor) -> Tensor:
        """Return the products with x [N, in]: [N, out]."""
        out = self._plain(x)
        out[self._rows] = self._rounded(x[self._rows])
        return out

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the products with x, added to y [N, out]."""
        return self(x).add_(y)


def most_sensitive(groups: Sequence[Group], share: float) -> list[Group]:
    """Return the groups whose rounding costs most for their size, up to a share of all weights, dearest first."""
    left = share * sum(group.num_weights for group in groups)
    chosen = []
    for group in sorted(groups, key=lambda group: group.divergence_nats / group.num_weights, reverse=True):
        if group.num_weights <= left and group.divergence_nats > 0:
            left -= group.num_weights
            chosen.append(group)
    return chosen
