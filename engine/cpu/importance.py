"""Measures how large the inputs of a model's matrices are, so that 4-bit integers lose least where it counts.

A weight's error reaches the output times its input. The inputs are those of a fixed text, another one than the text
that `engine.cpu.quality` measures by, and matrices are the model's own in float32. The idea is that of the importance
matrix of llama.cpp (https://github.com/ggml-org/llama.cpp, tools/imatrix).
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.cpu.text import states_of, token_ids_of
from engine.models.weights import Product, Stacked, plain_embedding, plain_linear

log = logging.getLogger(__name__)

TEXT = Path(__file__).with_name("mixture.txt")
MOST_TOKENS = 1024
LEAST_SHARE = 0.01
"""The part of the mean that an input counts for at least: another text may well have what this one lacks."""


class Importance:
    """The mean square of each input of a model's matrices, by the names of the matrices [in]."""

    def __init__(self, squares: Mapping[str, Tensor]) -> None:
        self._squares = squares

    def of(self, name: str) -> Tensor | None:
        """Return the importance of the inputs of a matrix [in]; None where nothing was measured."""
        found = self._squares.get(name)
        return None if found is None else found + LEAST_SHARE * found.mean()


NOTHING = Importance({})
"""Every input counts alike."""


@cache
def text_digest() -> str:
    """Return a short digest of the text, which is part of what matrices were made of."""
    return hashlib.sha256(TEXT.read_bytes()).hexdigest()[:12]


def measure_importance(model_dir: str | Path, config: ModelConfig) -> Importance:
    """Compute the text by a model in float32, a layer of weights in memory at a time.

    Return NOTHING where the model has no tokenizer that fits it.

    Raises UnsupportedModel.
    """
    began_s = time.monotonic()
    token_ids = token_ids_of(TEXT, Path(model_dir), config)[:MOST_TOKENS]
    if not token_ids:
        return NOTHING
    log.info("measuring which inputs count over %d tokens, once for this model", len(token_ids))
    observed = _Observed()
    with torch.inference_mode():
        states_of(model_dir, config, token_ids, observed.linear, plain_embedding, torch.float32)
    log.info("measured which inputs count in %.1f s", time.monotonic() - began_s)
    return Importance({name: total / len(token_ids) for name, total in observed.totals.items()})


class _Observed:
    """Makes plain products that add up the squares of their inputs."""

    def __init__(self) -> None:
        self.totals: dict[str, Tensor] = {}

    def linear(self, matrices: Stacked, bias: Tensor | None) -> Product:
        """Return the product with the matrices."""
        return _ObservedLinear(plain_linear(matrices, bias), matrices.names, self.totals)


class _ObservedLinear:
    """A product that adds up the squares of its inputs under the names of its matrices."""

    def __init__(self, product: Product, names: tuple[str, ...], totals: dict[str, Tensor]) -> None:
        self._product, self._names, self._totals = product, names, totals

    def __call__(self, x: Tensor) -> Tensor:
        self._observe(x)
        return self._product(x)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the product with x, added to y."""
        self._observe(x)
        return self._product.add(x, y)

    def _observe(self, x: Tensor) -> None:
        squares = x.float().square().sum(0)
        for name in self._names:
            self._totals[name] = self._totals[name] + squares if name in self._totals else squares
