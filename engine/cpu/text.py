"""The hidden states of a fixed text by a model whose layers are read one by one, in any format of matrices.

In this way a model that is larger than the memory can be computed. Knows nothing of what is measured by it.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import torch
from tokenizers import Tokenizer
from torch import Tensor

from engine.config import ModelConfig
from engine.cpu.attention import AttentionRows, PagedAttention, PagedCache, PrefillRows
from engine.models.checkpoint import weights_in_turn
from engine.models.decoder import Batch, Decoder
from engine.models.weights import MakeEmbedding, MakeLinear

log = logging.getLogger(__name__)


class TextStates(msgspec.Struct, frozen=True):
    """The hidden states of all tokens of the text, and the decoder that makes logits of them."""

    decoder: Decoder
    hidden: Tensor  # [T, H]


def states_of(
    model_dir: str | Path,
    config: ModelConfig,
    token_ids: list[int],
    make_linear: MakeLinear,
    make_embedding: MakeEmbedding,
    cache_dtype: torch.dtype,
) -> TextStates:
    """Compute a text as one prompt in float32, and return the hidden state of each token after the last layer.

    make_linear, make_embedding: make the products of one layer at a time from its weights.
    cache_dtype: the dtype that keys and values are rounded to.

    Raises UnsupportedModel: when the files of the weights are not those of a model that the engine computes.
    """
    num_tokens = len(token_ids)
    with weights_in_turn(model_dir, config, make_linear, make_embedding) as weights:
        decoder = Decoder(config, weights)
        cache = PagedCache(config, num_tokens, num_tokens, torch.float32, rounded_to=cache_dtype)
        shift = cache.length_switch if num_tokens > cache.length_switch else 0
        rows = {view: _rows(num_tokens, view.window, shift) for view in set(cache.views)}
        everything = torch.arange(num_tokens)
        batch = Batch(torch.tensor(token_ids), PagedAttention(cache, rows), everything, None)
        return TextStates(decoder, decoder.forward(batch))


def _rows(num_tokens: int, window: int | None, shift: int) -> AttentionRows:
    """Return the rows of one prompt that begins the cache.

    window: the number of tokens that a row sees, itself included; None: all before it.
    shift: the distance of the rows of angles from the positions.
    """
    positions = torch.arange(num_tokens)
    behind = positions[:, None] - positions
    visible = (behind >= 0) & (behind < (window or num_tokens))
    return AttentionRows(
        positions=positions,
        angles=positions + shift,
        slots=positions,
        num_decodes=0,
        decode_blocks=torch.empty(0, 1, dtype=torch.int64),
        decode_hidden=torch.empty(0, 1, 0, dtype=torch.bool),
        prefills=[PrefillRows(0, num_tokens, positions, visible)],
    )


def token_ids_of(text: Path, model_dir: Path, config: ModelConfig, *, is_whole: bool = False) -> list[int]:
    """Return a text as the model's tokens; [] where it has no tokenizer that fits it.

    is_whole: True: the whole text, and not only as much of it as fits the model's longest sequence.
    """
    try:
        ids: list[int] = Tokenizer.from_file(str(model_dir / "tokenizer.json")).encode(text.read_text()).ids
    except Exception as error:  # what the library raises for a file that it cannot read
        log.warning("quantization cannot be measured: no usable tokenizer.json (%s)", error)
        return []
    length = len(ids) if is_whole else config.max_position
    return ids[:length] if max(ids, default=0) < config.vocab_size else []
