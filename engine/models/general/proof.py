"""The proof, at each start, that a model computes over our cache what transformers computes with attention of its own.

Two short texts are computed in two pieces each, side by side in one batch, and again by transformers alone, each at
once, with its eager attention. A model differs that keeps a state beside keys and values, lets tokens meet elsewhere
than in attention, or rotates by the length of the text.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.config import UnsupportedModel
from engine.models.general.decoder import GeneralDecoder
from engine.models.general.interface import STEPS, LayerAttention

LENGTHS = (13, 9)
CUTS = (7, 4)
STEP = 7919  # between the ids of one text, so that they come from all over the vocabulary
EXACT = 1e-3
"""The largest relative distance of any row of logits in float32."""
ROUNDED = 0.4
"""The largest relative distance, in 16 bits, of half of the rows of logits of the second pieces.

Rounding alone moves them by 0.1 in a model of 30 layers, as it does between transformers' own ways to attend; a row may
also go to another expert. A row that is computed without its past is at a distance of 1 and more.
"""


class TextsInTurn:
    """Attention of several texts side by side, with all keys and values of each (`RotatedAttention`).

    By its definition, and slow: what it computes does not depend on any cache of ours.
    """

    def __init__(self, layers: list[LayerAttention]) -> None:
        self._layers = layers
        self._seen: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.parts: list[tuple[int, int]] = []
        """The text, and the number of rows, of each part of the batch."""

    def attend_rotated(self, index: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        """Attend in layer `index` to all rows of each text so far, which are remembered as they came.

        sinks: as for `RotatedAttention.attend_rotated`.
        """
        sizes = [num_rows for _, num_rows in self.parts]
        outs = []
        for (text, _), *rows in zip(self.parts, *(torch.split(each, sizes) for each in (q, k, v)), strict=True):
            queries, keys, values = rows
            if (text, index) in self._seen:
                before = self._seen[text, index]
                keys, values = torch.cat((before[0], keys)), torch.cat((before[1], values))
            self._seen[text, index] = keys, values
            outs.append(_attention(self._layers[index], queries, keys, values, sinks))
        return torch.cat(outs)


def prove(model: PreTrainedModel, decoder: GeneralDecoder) -> None:
    """Compute sample texts over the cache in pieces, and by transformers at once.

    Raises UnsupportedModel: when the results differ by more than rounding, or transformers' own are not finite.
    """
    size = model.config.vocab_size
    texts = [
        (torch.arange(length, device=decoder.device) * STEP + 11 * number + 3) % size
        for number, length in enumerate(LENGTHS)
    ]
    try:
        found = _states_in_pieces(decoder, texts)
        model.set_attn_implementation("eager")
        expected = [model(input_ids=text[None], use_cache=False).logits[0].float() for text in texts]
    except Exception as error:  # whatever a model's code raises where its config contradicts itself
        reason = str(error)[:300]
        raise UnsupportedModel(f"{type(model).__name__} cannot compute a text by this config.json: {reason}") from None
    finally:
        model.set_attn_implementation(STEPS)
    if not all(bool(logits.isfinite().all()) for logits in expected):
        raise UnsupportedModel(f"the checkpoint's weights give {type(model).__name__} logits that are not finite")
    lost = [_distance(*each) for each in zip(found, expected, strict=True)]
    if decoder.dtype == torch.float32:
        worst, allowed = float(torch.cat(lost).max()), EXACT
    else:
        second = torch.cat([rows[cut:] for rows, cut in zip(lost, CUTS, strict=True)])
        worst, allowed = float(second.median()), ROUNDED
    if not math.isfinite(worst) or worst > allowed:
        raise UnsupportedModel(
            f"{type(model).__name__}: in pieces, a text differs from itself at once by {worst:.2g} of its logits: "
            "it keeps a state beside keys and values, or its positions depend on the text"
        )


def _states_in_pieces(decoder: GeneralDecoder, texts: list[Tensor]) -> list[Tensor]:
    attention = TextsInTurn(decoder.layers)
    pieces: list[list[Tensor]] = [[] for _ in texts]
    for is_second in (False, True):
        spans = [slice(cut, None) if is_second else slice(0, cut) for cut in CUTS]
        parts = [text[span] for text, span in zip(texts, spans, strict=True)]
        sizes = [len(part) for part in parts]
        attention.parts = list(enumerate(sizes))
        where = [torch.arange(len(text), device=text.device)[span] for text, span in zip(texts, spans, strict=True)]
        hidden = decoder.forward(torch.cat(parts), torch.cat(where), attention, torch.arange(sum(sizes)), None)
        for piece, logits in zip(pieces, torch.split(decoder.logits(hidden), sizes), strict=True):
            piece.append(logits.clone())
    return [torch.cat(piece) for piece in pieces]


def _distance(found: Tensor, expected: Tensor) -> Tensor:
    """Return how far each row of logits is from the one that is expected, as a part of how far its logits are apart."""
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1).clamp_min(1e-6)
    lost: Tensor = (found - expected).norm(dim=-1) / spread
    return lost


def _attention(layer: LayerAttention, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the attention [T, H, E] of the newest T of all C tokens of one text.

    sinks: [H]; None without any.
    """
    group = layer.num_heads // layer.num_kv_heads
    keys, values = k.float().repeat_interleave(group, 1), v.float().repeat_interleave(group, 1)
    scores = torch.einsum("thd,chd->htc", q.float(), keys) * layer.scaling
    if layer.cap is not None:
        scores = layer.cap * torch.tanh(scores / layer.cap)
    behind = torch.arange(len(k) - len(q), len(k), device=k.device)[:, None] - torch.arange(len(k), device=k.device)
    scores = scores.masked_fill((behind < 0) | (behind >= (layer.window or len(k))), -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[:, None, None].expand(-1, len(q), 1)), -1)
    weights = scores.softmax(-1)[..., : len(k)]
    return torch.einsum("htc,chd->thd", weights, values).to(q.dtype)
