"""Measures how a base model in small integers differs from itself in float32, and whether `auto` may choose integers.

Both compute one fixed text. The differences are kept beside the model, a file for each format, so that
each is measured once.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import time
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from engine.config import load_model_config, model_digest
from engine.cpu.importance import NOTHING, measure_importance
from engine.cpu.matrices import NativeMatrices
from engine.cpu.text import TextStates, states_of, token_ids_of
from engine.models.weights import plain_embedding, plain_linear
from kernels.cpu.library import NativeLibrary, installed
from kernels.cpu.matrix import FORMATS, Format

log = logging.getLogger(__name__)

LARGEST_DIVERGENCE_NATS = 0.002
LARGEST_PERPLEXITY_RATIO = 1.005

CACHE_DTYPE = torch.bfloat16
"""The dtype of keys and values beside matrices of 8-bit integers: half the memory of float32, at a cost of 0.00003
nats."""

TEXT = Path(__file__).with_name("prose.txt")
ROWS_OF_LOGITS = 64
"""Tokens whose logits are in memory at once: the logits of all tokens would be larger than many a model."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """The change that a format makes to a model's predictions for the tokens of a text."""

    model_digest: str
    format: str
    num_tokens: int
    """The number of the text's tokens."""
    divergence_nats: float
    """The mean Kullback-Leibler divergence of float32's predictions to the predictions in the format, in nats."""
    perplexity_ratio: float
    """The perplexity of the text in the format, divided by that in float32."""

    @property
    def holds(self) -> bool:
        """Tell whether the change is small enough to be made without being asked for."""
        near = self.divergence_nats <= LARGEST_DIVERGENCE_NATS  # false for a NaN
        return near and self.perplexity_ratio <= LARGEST_PERPLEXITY_RATIO

    def __str__(self) -> str:
        change = (self.perplexity_ratio - 1) * 100
        return f"{self.divergence_nats:.4f} nats from float32, perplexity {change:+.2f} %"


def quality_file(model_dir: str | Path, kind: Format) -> Path:
    """Return the file that keeps the quality of a model in a format."""
    return Path(model_dir) / f"lorikeet-{kind}.json"


def stored_quality(model_dir: str | Path, kind: Format) -> Quality | None:
    """Return the quality that was measured of this model before.

    None where none was measured, or where it was measured of other weights or of another version of the format.
    """
    try:
        found = msgspec.json.decode(quality_file(model_dir, kind).read_bytes(), type=Quality)
    except (OSError, msgspec.DecodeError):
        return None
    return found if (found.model_digest, found.format) == (model_digest(model_dir), FORMATS[kind]) else None


def keep_quality(model_dir: str | Path, quality: Quality, kind: Format) -> None:
    """Keep a measured quality beside the model, if files can be made there."""
    path = quality_file(model_dir, kind)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(quality), indent=2))
        beside.replace(path)
    except OSError as error:
        log.warning("the next start measures %s again: %s", kind, error)


def measure_quality(library: NativeLibrary, model_dir: str | Path, kind: Format) -> Quality | None:
    """Compare a model in a format with itself in float32, by computing `TEXT` with one layer in memory at a time.

    Return None if the model has no tokenizer, or numbers that are not finite: nothing is known of the format then.

    Raises UnsupportedModel: when the engine cannot compute one of the model's layers.
    """
    began_s = time.monotonic()
    config = load_model_config(model_dir)
    token_ids = token_ids_of(TEXT, Path(model_dir), config)
    if len(token_ids) < 2:
        return None
    log.info("comparing %s with float32 over %d tokens, once for this model", kind, len(token_ids))

    with torch.inference_mode():
        try:
            plain = states_of(model_dir, config, token_ids, plain_linear, plain_embedding, torch.float32)
            importance = measure_importance(model_dir, config) if kind == "int4" else NOTHING
            made = NativeMatrices(library, kind, importance=importance)
            quantized = states_of(model_dir, config, token_ids, made.linear, made.embedding, CACHE_DTYPE)
        except ValueError as error:
            log.warning("%s is not for this model: %s", kind, error)
            return None
        divergence, lost = differences(plain, quantized, torch.tensor(token_ids[1:]))
    quality = Quality(
        model_digest=model_digest(model_dir),
        format=FORMATS[kind],
        num_tokens=len(token_ids),
        divergence_nats=divergence,
        perplexity_ratio=math.exp(min(lost, 100.0)),
    )
    log.info("%s: %s, measured in %.1f s", kind, quality, time.monotonic() - began_s)
    return quality


def differences(plain: TextStates, quantized: TextStates, following: Tensor) -> tuple[float, float]:
    """Return the mean divergence, and the mean decrease of the log-probability of the next token."""
    divergence = lost = 0.0
    num_tokens = len(plain.hidden)
    for first in range(0, num_tokens, ROWS_OF_LOGITS):
        part = slice(first, first + ROWS_OF_LOGITS)
        ours, theirs = (each.decoder.logits(each.hidden[part]).log_softmax(-1) for each in (quantized, plain))
        divergence += (theirs.exp() * (theirs - ours)).sum().item()
        wanted = following[part][:, None]
        lost += (theirs[: len(wanted)].gather(1, wanted) - ours[: len(wanted)].gather(1, wanted)).sum().item()
    return divergence / num_tokens, lost / (num_tokens - 1)


def main() -> int:
    """Measure a model in a format, keep the figures beside it, and print them."""
    parser = argparse.ArgumentParser(prog="python -m engine.cpu.quality", description=main.__doc__)
    parser.add_argument("--model-dir", required=True, help="folder with config.json, tokenizer.json and weights")
    parser.add_argument("--format", choices=tuple(FORMATS), default="int4")
    options = parser.parse_args()
    library = installed()
    if library is None:
        sys.stderr.write("error: the native kernels are not there\n")
        return 1
    quality = measure_quality(library, options.model_dir, options.format)
    if quality is None:
        sys.stderr.write("error: the model has no usable tokenizer, or numbers that are not finite\n")
        return 1
    keep_quality(options.model_dir, quality, options.format)
    sys.stdout.write(f"{quality}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
