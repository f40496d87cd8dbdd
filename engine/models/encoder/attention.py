"""Attention of a step's texts, in both directions, each text by itself. Knows no model and no request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class EncoderLayer(msgspec.Struct, frozen=True):
    """The parameters of one layer's attention."""

    scaling: float
    """The factor of the scores."""
    reach: int | None = None
    """The largest distance at which a token is seen, on either side; None: at any."""


class Texts:
    """The texts of one step, one after the other. Texts of one length that are neighbors are computed together."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._groups = [(length, len(list(same))) for length, same in groupby(lengths)]
        self._device = device
        self._masks: dict[tuple[int, int], Tensor | None] = {}

    def attend(self, layer: EncoderLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute attention: q [1, heads, N, D], k [1, kv_heads, N, D], v [1, kv_heads, N, E] -> [1, N, heads, E]."""
        outs = []
        for first, length, count in self._slices():
            parts = [each[0, :, first : first + length * count] for each in (q, k, v)]
            queries, keys, values = (each.reshape(len(each), count, length, -1).transpose(0, 1) for each in parts)
            out = scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=self._mask(length, layer.reach),
                scale=layer.scaling,
                enable_gqa=queries.shape[1] != keys.shape[1],
            )
            outs.append(out.transpose(1, 2).flatten(0, 1))  # [count * length, heads, E]
        return (outs[0] if len(outs) == 1 else torch.cat(outs))[None]

    def _slices(self) -> Iterator[tuple[int, int, int]]:
        """Yield the first row of each group of texts, their length, and their number."""
        first = 0
        for length, count in self._groups:
            yield first, length, count
            first += length * count

    def _mask(self, length: int, reach: int | None) -> Tensor | None:
        if reach is None or reach >= length - 1:
            return None
        if (length, reach) not in self._masks:
            position = torch.arange(length, device=self._device)
            self._masks[length, reach] = (position[:, None] - position).abs() <= reach
        return self._masks[length, reach]
