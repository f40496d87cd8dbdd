"""Computes a calibration text by a model layer by layer, and rounds each matrix by the inputs that it gets.

The text is in the batch twice: the first half of the rows are those of the model, the other half those of the model
whose matrices were rounded so far. So each matrix meets both inputs, and is rounded before it multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.config.cache_layout import CacheLayout, Place
from engine.cpu.attention import AttentionRows, PagedAttention, PagedCache, PrefillRows
from engine.cpu.text import token_ids_of
from engine.models.checkpoint import weights_in_turn
from engine.models.decoder import Batch, Decoder
from engine.models.weights import MakeLinear, Product, StackedMatrices, plain_linear
from engine.prepare.compensation import Float8Rows, NoDecomposition, compensated_rows
from engine.prepare.sources import PreparationFailed, progress
from kernels.linear import Linear

TEXT = Path(__file__).with_name("calibration.txt")
NUM_TOKENS = 20_480
"""The number of tokens that `TEXT` is made for."""
LENGTH = 512
"""The most tokens of a piece of the text, the tokens of which see each other."""

Add = Callable[[str, Float8Rows], None]  # of a matrix by its name


def pieces_of(text: Path, model_dir: Path, config: ModelConfig, num_tokens: int) -> list[list[int]]:
    """Return the token ids of a text in pieces, num_tokens at most together; [] where no tokenizer fits the model.

    Pieces are taken evenly from the whole text.
    """
    token_ids = token_ids_of(text, model_dir, config, is_whole=True)
    length = min(LENGTH, config.max_position, num_tokens)
    pieces = [token_ids[first : first + length] for first in range(0, len(token_ids), length)]
    number = min(len(pieces), num_tokens // length)
    return [pieces[place * len(pieces) // number] for place in range(number)]


def hidden_of(
    model_dir: Path, config: ModelConfig, pieces: Sequence[Sequence[int]], make_linear: MakeLinear, what: str
) -> tuple[Decoder, Tensor]:
    """Return the decoder, and the hidden states [T, H] of pieces of text after the last layer, in float32.

    pieces: token ids of each; T of all together. make_linear: makes the products of one layer at a time, each of which
    is called once, with the inputs of all tokens. what: the work on a layer, in words, for lines of progress.

    Raises UnsupportedModel: when the files of the weights are not those of a model that the engine computes.
    """
    lengths = [len(piece) for piece in pieces]
    num_tokens = sum(lengths)
    # One layer at a time has keys and values, so that all layers share the room of one.
    layout = CacheLayout(places=dict.fromkeys(config.cached_layers, Place()))
    with weights_in_turn(model_dir, config, make_linear) as weights:
        decoder = Decoder(config, weights)
        cache = PagedCache(config, num_tokens, max(lengths), torch.float32, layout=layout)
        rows = {view: _rows(lengths, view.window) for view in set(cache.views)}
        token_ids = torch.tensor([token for piece in pieces for token in piece])
        batch = Batch(token_ids, PagedAttention(cache, rows), torch.arange(num_tokens), None)
        number = config.num_layers
        return decoder, decoder.forward(batch, lambda index: progress(f"{what} layer {index + 1} of {number}"))


def _rows(lengths: Sequence[int], window: int | None) -> AttentionRows:
    """Return the rows of prompts of these lengths, one after the other, each of which begins its own part of the cache.

    window: the number of tokens that a row sees, itself included; None: all before it.
    """
    positions = torch.cat([torch.arange(length) for length in lengths])
    slots = torch.arange(len(positions))
    prefills, first = [], 0
    for length in lengths:
        behind = torch.arange(length)[:, None] - torch.arange(length)
        visible = (behind >= 0) & (behind < (window or length))
        prefills.append(PrefillRows(first, first + length, slots[first : first + length], visible))
        first += length
    return AttentionRows(
        positions=positions,
        angles=positions,
        slots=slots,
        num_decodes=0,
        decode_blocks=torch.empty(0, 1, dtype=torch.int64),
        decode_hidden=torch.empty(0, 1, 0, dtype=torch.bool),
        prefills=prefills,
    )


def round_by_text(
    model_dir: Path, config: ModelConfig, pieces: Sequence[Sequence[int]], kept: AbstractSet[str], add: Add
) -> None:
    """Round the matrices of a model's layers, in order, by the inputs that they get from pieces of text.

    kept: the names of matrices that stay as they are; those that share an input with one of them stay, too. add: takes
    each rounded matrix.

    Raises UnsupportedModel: when the files of the weights are not those of a model that the engine computes.
    Raises PreparationFailed: when a matrix cannot be rounded by its inputs, naming it.
    """

    def linear(matrices: StackedMatrices, bias: Tensor | None) -> Product:
        if not matrices.names[0].startswith("model.layers."):
            return Unread()
        if not kept.isdisjoint(matrices.names):
            return plain_linear(matrices, bias)
        return _RoundedByInputs(matrices, bias, add)

    with torch.inference_mode():
        hidden_of(model_dir, config, [*pieces, *pieces], linear, "rounded by the text:")


class Unread:
    """A product whose result nobody reads, in the place of the head's."""

    def __call__(self, x: Tensor) -> Tensor:
        """Raise AssertionError: nothing is to be computed with this product."""
        raise AssertionError("no logits are made")

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Raise AssertionError, as a call does."""
        return y + self(x)


class _RoundedByInputs:
    """A product of plain and of rounded matrices, which are rounded when it is called."""

    def __init__(self, matrices: StackedMatrices, bias: Tensor | None, add: Add) -> None:
        self._matrices, self._bias, self._add = matrices, bias, add

    def __call__(self, x: Tensor) -> Tensor:
        """Round the matrices by x [2T, in], and return the products [2T, out]: T of plain ones, T of rounded ones.

        Raises PreparationFailed: when the inputs have no decomposition to round by.
        """
        weight = self._matrices.tensor
        plain, met = x.chunk(2)
        try:
            rows = compensated_rows(weight, met.T @ met, (plain - met).T @ met)
        except NoDecomposition:
            names = ", ".join(self._matrices.names)
            raise PreparationFailed(f"the inputs of {names} are not finite, or too much alike to round by") from None
        first = 0
        for name, (height, _) in zip(self._matrices.names, self._matrices.shapes, strict=True):
            self._add(name, rows.part(first, first + height))
            first += height
        return torch.cat((Linear(weight, self._bias)(plain), Linear(rows.float(), self._bias)(met)))

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the products as they are when called, added to y [2T, out]."""
        return self(x).add_(y)
