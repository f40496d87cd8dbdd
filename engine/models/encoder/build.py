"""Builds an encoder from a folder, tries and proves it, and finds what adapters may target on it.

The proof, at each start: texts of several lengths side by side in one step give what each gives by itself, computed by
transformers alone with its eager attention: hidden states, and the score where the model ranks. One text is a pair of
segments where the model has segments. A model that is served in 16 bits is proven in float32 first, unless it is large.
"""

from __future__ import annotations

import gc
import inspect
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from adapters.patterns.module_names import module_name
from engine.config import ModelConfig, UnsupportedModel
from engine.config.general import linear_modules, tensors_of
from engine.models.encoder.attention import Texts
from engine.models.encoder.model import Classifier, Encoder
from engine.models.encoder.trial import NUM_ROWS, first_position, try_encoder
from engine.models.general.interface import STEPS
from engine.models.general.linears import StepAdapters, adapt_linears, mark_rows, settle_linears
from engine.models.general.loading import ModelKind, check_sizes, load_model, read_config

log = logging.getLogger(__name__)

LENGTHS = (13, 9, 13, 1)
NUM_FIRST = 5
"""The tokens of the first segment of the first text, where a model has segments."""
STEP = 7919  # between the ids of one text, so that they come from all over the vocabulary
EXACT, ROUNDED = 1e-3, 0.4
"""The largest distance of a row's hidden state as a part of its length, in float32 and in 16 bits."""
MOST_IN_FLOAT32 = 10**9
"""The most weights of a model that is loaded in float32 for its proof, which takes 4 bytes of memory for each."""

EMBEDS = ModelKind(
    AutoModel, optional_weights=("pooler.",), ignored_tensors=("cls.", "lm_head.", "head.", "decoder.", "classifier.")
)
RANKS = ModelKind(AutoModelForSequenceClassification)


def model_kind_of(config: ModelConfig) -> ModelKind:
    """Return the kind of transformers' classes that computes an encoder."""
    return RANKS if config.task.scored_by else EMBEDS


FindFirst = Callable[[nn.Module], int]


class EncoderModel(NamedTuple):
    """An encoder, and its configuration with the modules that adapters may target as the loaded model has them."""

    config: ModelConfig
    encoder: Encoder


@torch.inference_mode()
def load_encoder(
    model_dir: str | Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    find_first: FindFirst = first_position,
) -> EncoderModel:
    """Load an encoder, and prove by sample texts that the engine computes what transformers does.

    find_first: returns the number of a text's first position.

    Raises UnsupportedModel: when something is missing; the error names the key or the tensor.
    """
    folder = Path(model_dir)
    if dtype != torch.float32 and sum(math.prod(shape) for _, shape in tensors_of(folder)) <= MOST_IN_FLOAT32:
        _load(folder, config, torch.float32, device, find_first)
        gc.collect()  # a model and its attention know each other
    found = _load(folder, config, dtype, device, find_first)
    targets = ", ".join(name for name, _, _ in found.config.modules)
    log.info("transformers computes this encoder (%s); adapters on: %s", config.family, targets or "-")
    return found


def _load(
    folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device, find_first: FindFirst
) -> EncoderModel:
    """Load an encoder in a dtype, and check its results against transformers' own."""
    kind = model_kind_of(config)
    theirs = read_config(folder, config.family, kind)
    check_sizes(theirs, config)
    model = load_model(folder, theirs, dtype, device, kind)
    texts = _texts(theirs.vocab_size, getattr(theirs, "pad_token_id", None), config.max_position, device)
    types = _segments(model, texts)
    expected = _by_transformers(model, texts, types, config)
    adapters = StepAdapters()
    linears = adapt_linears(model, adapters)
    inner = model.base_model
    tried = try_encoder(model, inner, adapters, config.num_layers)
    mark_rows(linears, tried.calls, NUM_ROWS)
    modules = linear_modules(
        (
            (module_name(each.layer, each.name), (each.out_features, each.in_features))
            for each in linears
            if each.takes_adapters
        ),
        config.num_layers,
    )
    targets = {name for name, _, _ in modules}
    for linear in linears:
        linear.takes_adapters = linear.name in targets
    groups = settle_linears(linears, tried.calls, adapters)
    classifier = Classifier(model, inner, tried.output_class) if config.task.scored_by else None
    encoder = Encoder(inner, tried.layers, tried.order, adapters, find_first(inner), classifier)
    _prove(encoder, texts, types, expected, config)
    return EncoderModel(msgspec.structs.replace(config, modules=modules, groups=groups), encoder)


def _texts(vocab_size: int, pad_id: int | None, most: int, device: torch.device) -> list[Tensor]:
    """Return texts without the padding token, by which some models find positions.

    pad_id: the id of the padding token; None without one. most: the most tokens of a text.
    """
    lengths = [min(length, most) for length in LENGTHS]
    texts = [
        (torch.arange(length, device=device) * STEP + 11 * number + 3) % vocab_size
        for number, length in enumerate(lengths)
    ]
    return [torch.where(text.eq(-1 if pad_id is None else pad_id), (text + 1) % vocab_size, text) for text in texts]


def _segments(model: PreTrainedModel, texts: list[Tensor]) -> list[Tensor]:
    """Return the segment of each token of each text: the first text has two segments if the model knows two."""
    types = [torch.zeros_like(text) for text in texts]
    takes = "token_type_ids" in inspect.signature(model.base_model.forward).parameters
    if takes and (getattr(model.config, "type_vocab_size", None) or 1) > 1:
        types[0][NUM_FIRST:] = 1
    return types


def _by_transformers(
    model: PreTrainedModel, texts: list[Tensor], types: list[Tensor], config: ModelConfig
) -> list[tuple[Tensor, Tensor]]:
    """Return the hidden states of each text, and its score, where there is one, by transformers alone."""
    model.set_attn_implementation("eager")
    found = []
    try:
        for text, segments in zip(texts, types, strict=True):
            inputs = {"input_ids": text[None], "attention_mask": torch.ones_like(text)[None]}
            if bool(segments.any()):
                inputs["token_type_ids"] = segments[None]
            hidden = model.base_model(**inputs).last_hidden_state[0].float()
            score = model(**inputs).logits[0].float() if config.task.scored_by else hidden.new_zeros(1)
            found.append((hidden, score))
    except Exception as error:  # whatever a model's code raises where its config contradicts itself
        reason = str(error)[:300]
        raise UnsupportedModel(f"{type(model).__name__} cannot compute a text by this config.json: {reason}") from None
    finally:
        model.set_attn_implementation(STEPS)
    return found


def _prove(
    encoder: Encoder,
    texts: list[Tensor],
    types: list[Tensor],
    expected: list[tuple[Tensor, Tensor]],
    config: ModelConfig,
) -> None:
    """Check that the encoder computes what is expected of texts side by side.

    Raises UnsupportedModel: when the results differ by more than rounding, or expected ones are not finite.
    """
    if not all(bool(each.isfinite().all()) for of_text in expected for each in of_text):
        raise UnsupportedModel(f"the checkpoint's weights give {config.family} states that are not finite")
    lengths = [len(text) for text in texts]
    positions = torch.cat([torch.arange(length, device=encoder.device) for length in lengths])
    token_ids = torch.cat(texts)
    try:
        hidden = encoder.forward(token_ids, positions, torch.cat(types), Texts(lengths, encoder.device), None)
        rows = torch.split(hidden, lengths)
        wanted = torch.cat([each for each, _ in expected])
        lost = float(((hidden.float() - wanted).norm(dim=1) / wanted.norm(dim=1).clamp_min(1e-6)).max())
        if config.task.scored_by:
            scores = encoder.scores(torch.stack([pooled(each, config.task.pooling) for each in rows]))
            targets = torch.stack([score for _, score in expected])
            lost = max(lost, float(((scores - targets).abs() / targets.abs().clamp_min(1.0)).max()))
    except Exception as error:  # whatever a model's code raises
        raise UnsupportedModel(f"{config.family} cannot compute texts side by side: {str(error)[:300]}") from None
    allowed = EXACT if encoder.dtype == torch.float32 else ROUNDED
    if not math.isfinite(lost) or lost > allowed:
        raise UnsupportedModel(
            f"{config.family}: beside others, a text differs from itself alone by {lost:.2g}: its tokens meet "
            "elsewhere than in attention, or its positions depend on more than its length"
        )


def pooled(rows: Tensor, pooling: str) -> Tensor:
    """Return the embedding of a text from its hidden states [T, hidden], by a pooling."""
    if pooling == "mean":
        return rows.float().mean(0).to(rows.dtype)
    return rows[0] if pooling == "cls" else rows[-1]
